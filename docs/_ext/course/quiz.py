"""``.. quiz::``: one question, several choices, an answer to each of them.

Without JavaScript every choice is a ``<details>`` that unfolds its answer. Our script turns the
list into a group of radio buttons and shows the answer of the choice that was pressed.
"""

import re
from dataclasses import dataclass

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course.element import box, html

CHOICE = re.compile(r"^- \[(?P<mark>[ xX])\] (?P<words>.*)$")
YES = re.compile(r"Yes[.,:]? ?")
BACKTICKS = re.compile(r"(?<![`:\w])`(?!`)([^`<]+)`(?![`_])")


@dataclass(frozen=True)
class Choice:
    words: str
    answer: str
    is_right: bool
    line: int


def choices_of(lines):
    """Choices of a quiz's body; a line that starts no choice continues the one before.

    Raises:
        ValueError: with the offending text and what to write instead.
    """
    items = []
    for number, line in enumerate(lines):
        if match := CHOICE.match(line):
            items.append((number, match["mark"] in "xX", [match["words"]]))
        elif line.strip() and not items:
            raise ValueError(f"a choice starts with '- [ ] ' or '- [x] ', not with {line!r}")
        elif line.strip():
            items[-1][2].append(line.strip())
    choices = []
    for number, is_right, parts in items:
        words = " ".join(parts)
        choice, bar, answer = words.partition(" | ")
        if not bar or not answer.strip():
            raise ValueError(f"{words!r} has no answer: write '- [ ] choice | answer to it'")
        choices.append(Choice(choice.strip(), answer.strip(), is_right, number))
    if len(choices) < 2 or not any(choice.is_right for choice in choices):
        raise ValueError("a quiz needs two choices or more, and one of them marked [x]")
    return choices


class Quiz(SphinxDirective):
    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def inline(self, words, line=0):
        """Inline markup; single backticks mean code, as people write them in Markdown."""
        words = BACKTICKS.sub(r"``\1``", words)
        children, problems = self.parse_inline(words, lineno=self.lineno + line)
        return [*children, *problems]

    def run(self):
        try:
            choices = choices_of(list(self.content))
        except ValueError as problem:
            raise self.error(f"quiz: {problem}") from None
        name = f"quiz-{self.env.new_serialno('course-quiz')}"
        question = self.inline(self.arguments[0])
        return [
            box(
                "quiz",
                "Quiz",
                html("p", *question, classes=["course-question"], ids=[name]),
                html("ul", *map(self.listed, choices), classes=["course-choices"]),
                # The script writes the answer here; a screen reader then says it.
                html("div", classes=["course-said"], role="status"),
                data_quiz=name,
            )
        ]

    def listed(self, choice):
        line = self.content_offset - self.lineno + choice.line + 1
        verdict = "Correct. " if choice.is_right else "Incorrect. "
        said = choice.answer
        if choice.is_right and (own := YES.match(said)):  # the answer says so by itself
            verdict, said = own[0], said[own.end() :]
        answer = html("p", nodes.strong("", verdict), *self.inline(said, line))
        summary = html("summary", *self.inline(choice.words, line))
        return html(
            "li", html("details", summary, answer), data_right="yes" if choice.is_right else "no"
        )


def setup(app):
    app.add_directive("quiz", Quiz)
