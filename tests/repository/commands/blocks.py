"""Reads the shell commands of a page: those in its blocks, and those inside its sentences.

A block is ``.. code-block:: console`` in a page of the site, or a fence without a language in
Markdown.  Where its lines begin with ``$``, the others are what the command must print; ``…`` there
stands for anything.  A remark above the block, which no reader of the page sees, tells what is not
to be run, or that a command must fail.  Without words after the second colon it means the whole
block, else the commands that begin with them::

    .. commands: long                            <!-- commands: long -->
    .. commands: server: multigpu watch          <!-- commands: exits 1: multigpu check -->

A code block with a caption such as ``tests/new.py, a new file`` is text that the reader writes.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

KINDS = {
    "server": "goes on until it is stopped",
    "long": "takes long",
    "gpu": "needs a GPU",
    "install": "installs",
    "elsewhere": "for another machine",
    "example": "with files of the reader's own",
}
MARK = re.compile(r"^(?:\.\.|<!--) commands: (exits \d+|\w+)(?:: (.*?))?(?: -->)?$")
BLOCK = re.compile(r"^(?:\.\. code-block:: (?:console|shell)|```(?:console|shell|sh|bash)?)$")
FILE = re.compile(r"^:caption: ([\w./]+), (a new file|at the end|above ``(.+)``)$")
ONLY_NAMED = re.compile(r"multigpu \w+|torchrun --?[\w-]+|python -m [\w.]+")
INLINE = re.compile(r"(?<!`)(`{1,2})((?:multigpu|torchrun|make|python|pytest) [^`]+?)\1(?!`)")
PROMPT = "$ "
ENDS = ("done", "fi", "}", "EOF")  # of what began in an earlier line


class Unfit(Exception):
    """A remark about commands that fits none, or that nobody understands."""


@dataclass(frozen=True)
class Command:
    """One command of a page.  ``kind`` is why it is not run, None where it is."""

    place: str  # README.md:44
    text: str
    prints: tuple[str, ...] = ()
    kind: str | None = None
    code: int = 0  # with which it must end


@dataclass(frozen=True)
class Insert:
    """Text that the reader of a page writes into a file: a new one, at its end or above a line."""

    place: str
    path: str
    text: str
    above: str | None = None
    new: bool = False


def commands_in(text: str, page: str) -> list[Command]:
    """The commands of a page's blocks, in their order."""
    lines = text.splitlines()
    found: list[Command] = []
    marks: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        if MARK.match(line.strip()):
            marks.append((number, line.strip()))
        elif BLOCK.match(line.strip()) and not _closes(lines, number):
            own = list(_commands(body_of(lines, number), page))
            found += _marked(own, [mark for _, mark in marks], page)
            marks = []
        elif marks and line.strip():
            raise Unfit(f"{page}:{marks[0][0] + 1}: no block of commands follows this remark")
    return found


def inserts_in(text: str, page: str) -> list[Insert]:
    """What a page tells its reader to write into files."""
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        if match := FILE.match(line.strip()):
            content = "\n".join(text for _, text in body_of(lines, number - 1)).strip("\n") + "\n"
            new = match[2] == "a new file"
            found.append(Insert(f"{page}:{number + 1}", match[1], content, match[3], new))
    return found


def inline_in(text: str) -> list[str]:
    """The commands in a page's sentences that can be typed as they stand there."""
    found = [" ".join(match[2].split()) for match in INLINE.finditer(text)]
    gap = re.compile(r"[…\[<:]| \.\.\.")
    return [each for each in found if not (gap.search(each) or ONLY_NAMED.fullmatch(each))]


def text_of(path: Path) -> str:
    """A page's text; of a notebook, its text cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def body_of(lines: list[str], opening: int) -> list[tuple[int, str]]:
    """The lines of a block with their numbers, without its indentation and its options."""
    first = lines[opening]
    if first.lstrip().startswith("```"):
        end = next(n for n in range(opening + 1, len(lines)) if lines[n].strip() == "```")
        return [(number + 1, lines[number]) for number in range(opening + 1, end)]
    depth = len(first) - len(first.lstrip())
    begin = next(n for n in range(opening, len(lines)) if not lines[n].strip())  # below the options
    body = []
    for number in range(begin, len(lines)):
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            break
        body.append((number + 1, line))
    inner = min((len(t) - len(t.lstrip()) for _, t in body if t.strip()), default=0)
    return [(number, line[inner:]) for number, line in body]


def _closes(lines: list[str], number: int) -> bool:
    """Whether this fence ends a block and begins none."""
    fences = [line for line in lines[:number] if line.lstrip().startswith("```")]
    return lines[number].strip() == "```" and len(fences) % 2 == 1


def _commands(body: list[tuple[int, str]], page: str) -> Iterator[Command]:
    prompted = any(line.startswith(PROMPT) for _, line in body)
    current: Command | None = None
    for number, line in body:
        goes_on = not prompted and (line.startswith(" ") or line.strip() in ENDS)
        if current is not None and (current.text.endswith("\\") or goes_on):
            current = replace(current, text=f"{current.text}\n{line}")
        elif line.startswith(PROMPT) or (not prompted and line.strip()):
            if current is not None:
                yield current
            current = Command(f"{page}:{number}", line.removeprefix(PROMPT))
        elif current is not None and line.strip():
            current = replace(current, prints=(*current.prints, line.strip()))
    if current is not None:
        yield current


def _marked(commands: list[Command], marks: list[str], page: str) -> list[Command]:
    """The commands with what the remarks above their block say of them."""
    for mark in marks:
        match = MARK.match(mark)
        assert match is not None
        kind, start = match[1], match[2] or ""
        code = int(kind.removeprefix("exits ")) if kind.startswith("exits ") else None
        if code is None and kind not in KINDS:
            raise Unfit(f"{page}: {mark}: there are {', '.join(KINDS)} and exits N")
        meant = [each for each in commands if each.text.startswith(start)]
        if not meant:
            raise Unfit(f"{page}: {mark}: no command of the block begins so")
        for each in meant:
            better = replace(each, kind=kind) if code is None else replace(each, code=code)
            commands[commands.index(each)] = better
    return commands
