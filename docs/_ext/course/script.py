"""The site's one script: the parts in ``docs/_script``, one after the other, as ``course.js``.

Each part has a page's worth of code and a name for what it does. They share one scope, so what is
extended stands before what extends it; ``start.js`` comes last.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "_script"
PARTS = (
    *("opening", "elements", "quiz", "notebook_button", "explorer", "copies", "stepper"),
    *("device_lanes", "bars", "plan", "mesh", "schedule", "server_and_ring", "moments", "words"),
    *("messages", "search_order", "printing", "own_place", "start"),
)


def joined(folder):
    """The whole script, from the parts in ``folder``."""
    return "\n".join((folder / f"{part}.js").read_text(encoding="utf-8") for part in PARTS)


def ship(app):
    """Put the script where pages look for it, before the first page asks for its checksum."""
    target = Path(app.outdir) / "_static" / "course.js"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(joined(FOLDER), encoding="utf-8")


def setup(app):
    app.connect("builder-inited", ship)


if __name__ == "__main__":  # for `make lint`
    print(joined(FOLDER), end="")
