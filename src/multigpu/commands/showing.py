"""How the command looks: calm in a terminal, plain text when piped or with NO_COLOR."""

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Literal

from rich.console import Console
from rich.text import Text

from multigpu.checking.verdicts import SHOWN_LINES, Verdict

LOOKS = {  # status: mark, the same in ASCII, color
    "pass": ("✓", "+", "green"),
    "wrong": ("✗", "x", "red"),
    "crash": ("✗", "x", "red"),
    "hang": ("✗", "x", "red"),
    "missing_file": ("✗", "x", "red"),
    "not_started": ("○", "o", "yellow"),
    "checker_fault": ("!", "!", "magenta"),
}
LABEL_WIDTH = 10
WIDTH = 100


def console(file: IO[str] | None = None) -> Console:
    """The console on standard output, or on ``file``.  Piped text is never wrapped."""
    plain = bool(os.environ.get("NO_COLOR"))  # rich alone would still write bold
    colors: Literal["auto"] | None = None if plain else "auto"
    return Console(file=file, highlight=False, emoji=False, soft_wrap=True, color_system=colors)


def option(name: str) -> str:
    """``--batch-size`` for ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def as_options(message: str, names: Iterable[str]) -> str:
    """``batch_size=100`` in a message as it is typed: ``--batch-size 100``."""

    def typed(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("'")
        switches = {"True": option(name), "False": option(f"no_{name}")}
        return switches.get(value, f"{option(name)} {value}")

    return re.sub(rf"(?<![-\w./])({'|'.join(names)})=('[^']*'|[-+.\w]*\w)", typed, message)


def mark(status: str) -> Text:
    """One colored character for a status."""
    pretty, plain, color = LOOKS[status]
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return Text(pretty if encoding == "utf8" else plain, style=color)


def heading(name: str, remark: str) -> Text:
    """A name and, beside it, a quiet remark."""
    return Text.assemble((name, "bold"), (f"  {remark}", "dim"))


def indented(text: str) -> Text:
    """A block of text without the marks that only a page needs; words of code are colored."""
    plain = text.strip("\n").replace("``", "`").replace("::\n", ":\n")
    block = Text(textwrap.indent(plain, "  "))
    block.highlight_regex(r"`[^`]+`", "cyan")
    return block


def show_verdicts(
    verdicts: Sequence[Verdict],
    out: Console,
    *,
    folder: Path | None = None,
    messages: Path | None = None,
) -> None:
    """Each verdict on a line, with its explanation below it.

    With ``folder``, which has the answers, a place in a file is given relative to the current
    folder, so that an editor's terminal can open it.  With ``messages``, the built page that
    explains them, a message id is a link to its entry.  Several exercises that have not been begun
    share one line.
    """
    untouched = sum(verdict.status == "not_started" for verdict in verdicts)
    for verdict in verdicts:
        name = Text.assemble(mark(verdict.status), " ", (verdict.exercise, "bold"))
        line = name + Text.assemble("  ", (verdict.status, LOOKS[verdict.status][2]))
        count = f"{verdict.passed} of {verdict.total} checks passed  {verdict.seconds:.1f} s"
        too_long = out.is_terminal and line.cell_len + 2 + len(count) > out.width
        out.print(line + Text(f"\n  {count}" if too_long else f"  {count}", "dim"))
        if verdict.parts and not (verdict.status == "not_started" and untouched > 1):
            out.print()
            show_message(verdict, out, folder, messages)
            out.print()


def show_message(
    verdict: Verdict, out: Console, folder: Path | None, messages: Path | None
) -> None:
    """The explanation with its labels in a column, and what the learner's code printed."""
    for label, text in verdict.parts.items():
        if label == "where" and folder:
            found = r"\b\w+\.py(?=:\d|$)"
            text = re.sub(found, lambda file: seen_from_here(folder, file[0]), text, flags=re.M)
        first, *more = text.splitlines()
        show_row(label, first, out)
        for line in more:
            show_row("", line.removeprefix("      "), out)
    if verdict.message_id and verdict.status != "not_started":
        built = messages if messages and messages.is_file() else None
        link = f" link {built.as_uri()}#{verdict.message_id}" if built else ""
        show_row("message", verdict.message_id, out, style=f"dim{link}")
    if verdict.output.strip():
        lines = verdict.output.rstrip().splitlines()
        more = [f"... and {len(lines) - SHOWN_LINES} lines more"] if lines[SHOWN_LINES:] else []
        for number, line in enumerate([*lines[:SHOWN_LINES], *more]):
            show_row("" if number else "printed", line, out, style="dim")


def seen_from_here(folder: Path, file: str) -> str:
    """The way from the current folder to a file of ``folder``; the bare name of any other."""
    path = folder / file
    return os.path.relpath(path) if path.is_file() else file


def show_row(label: str, text: str, out: Console, *, style: str = "") -> None:
    """A label and its text, which is wrapped in its own column in a terminal."""
    start = Text.assemble("  ", (f"{label:<{LABEL_WIDTH}}", "cyan"))
    show_beside(start, Text(text, style), out)


def show_beside(start: Text, text: Text, out: Console) -> None:
    """``text`` after ``start``; in a terminal its further lines begin below its first."""
    width = min(out.width, WIDTH) - start.cell_len
    inner = len(text.plain) - len(text.plain.lstrip())
    deeper = inner + 2 if inner else 0  # the rest of an item in a list is indented like its words
    lines = text.wrap(out, width - deeper) if out.is_terminal else [text]
    for number, line in enumerate(lines):
        line.rstrip()
        out.print((Text(" " * (start.cell_len + deeper)) if number else start) + line)
