"""Pictures one after the other, with a button for each: a stepper that needs no script.

It works in a notebook and on a page alike, because it is made of radio buttons and style rules
alone: click a step, or go through them with the arrow keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from uuid import uuid4

from multigpu.pictures.picture import Picture

STYLE = """
#ID { border: 0; margin: 0; padding: 0; min-width: 0; }
#ID > legend { float: none; width: auto; margin: 0 0 .5em; padding: 0; font-weight: 650;
  font-size: 1em; }
#ID > input { position: absolute; opacity: 0; }
#ID > label { display: inline-block; margin: 0 .3em .4em 0; padding: .25em .65em;
  border: 1px solid #6E7781; border-radius: 7px; font: 600 .85em ui-monospace, monospace;
  cursor: pointer; }
#ID > input:checked + label { background: #005a8f; border-color: #005a8f; color: #fff; }
#ID > input:focus-visible + label { outline: 3px solid #56B4E9; outline-offset: 2px; }
#ID > div > div { display: none; }
#ID > div p { margin: .4em 0; }
@media print { #ID > div > div { display: block !important; } }
"""
KEYS = 'data-lm-suppress-shortcuts="true"'  # else JupyterLab takes the arrow keys for itself
# While no step is chosen by these rules nothing shows, so there is one rule per step.
SHOW = "#ID > input:nth-of-type({n}):checked ~ div > div:nth-child({n}) {{ display: block; }}"


@dataclass(frozen=True)
class Slide:
    """One step: what its button says, its picture, and a sentence or two below it."""

    label: str
    picture: Picture
    says: str = ""


@dataclass(frozen=True)
class Slides:
    """Steps that a notebook shows one at a time. `text()` is all of them in letters."""

    title: str
    slides: Sequence[Slide]

    def text(self) -> str:
        """All steps one below the other, for a terminal."""
        blocks = ("\n".join((slide.label, *slide.picture.lines)) for slide in self.slides)
        return "\n".join((self.title, "", *blocks))

    def html(self) -> str:
        """The stepper as one self-contained piece of HTML. Its ids are new in every call."""
        name = f"steps-{uuid4().hex[:8]}"
        rules = [SHOW.format(n=number + 1) for number in range(len(self.slides))]
        style = "\n".join((STYLE, *rules)).replace("ID", name)
        buttons = "".join(
            f'<input type="radio" name="{name}" id="{name}-{number}" {KEYS}'
            f"{' checked' if number == 0 else ''}>"
            f'<label for="{name}-{number}">{escape(slide.label)}</label>'
            for number, slide in enumerate(self.slides)
        )
        shown = "".join(
            f"<div>{slide.picture.svg()}<p>{escape(slide.says)}</p></div>" for slide in self.slides
        )
        # In a page's body HTML allows a style sheet only inside a drawing; it holds for all.
        hidden = 'width="0" height="0" aria-hidden="true" style="position:absolute"'
        sheet = f"<svg {hidden}><style>{style}</style></svg>"
        return (
            f'{sheet}<fieldset id="{name}"><legend>{escape(self.title)}</legend>'
            f"{buttons}<div>{shown}</div></fieldset>"
        )

    def _repr_html_(self) -> str:
        return self.html()

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(self.text())  # type: ignore[attr-defined]
