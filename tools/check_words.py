"""Find words that read badly in the texts that people read, and name better ones.

    python tools/check_words.py                    everything
    python tools/check_words.py docs/lessons       these folders and files

Prints ``file:line: words found -> better words`` and exits with 1 if it finds any. The words are in
``tools/words.toml``; American spelling and common typing errors come from codespell's lists.

Only prose is read. Code cells and the comments in them are left out, because what they print is
recorded (``docs/records``) and a changed cell has to be recorded again.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "words.toml"
READ = (".rst", ".inc", ".md", ".ipynb", ".py")
FOLDERS = ("docs", "notebooks", "exercises", "solutions", "src", "tests/exercises")
PAGES = ("README.md", "CONTRIBUTING.md")
# Made by a build or recorded; docs/scripts are read by recorded cells. Only authors read docs/_ext.
SKIPPED = (
    "docs/_build",
    "docs/_notebooks",
    "docs/records",
    "docs/_ext",
    "docs/scripts",
    "notebooks/lessons",
)

# Blocks of a page whose indented lines are not prose, or are recorded.
CODE = re.compile(r"(run|code|parsed-literal|math|raw|literalinclude|toctree|commands)\b")
INLINE = re.compile(
    r"``.+?``"  # code
    r"|`[^`\n]+`__?"  # a link; its text is the title of another page
    r"|<[^<>\s]+>"  # where a link leads
    r"|:[a-z:+-]+:(?=`)"  # a role
    r"|https?://\S+"
    r"|^\s*:[\w-]+:(?= |$)"  # an option of a directive
    r"|^\s*\.\. _.*$",  # a label
    re.MULTILINE,
)
MARKDOWN = re.compile(
    r"^```.*?^```|`[^`\n]+`|<!--.*?-->|\]\([^)]*\)|https?://\S+|<[^<>]+>", re.MULTILINE | re.DOTALL
)

STRINGS = re.compile(
    r"``.+?``|`[^`\n]+`"  # code
    r"|^\s*#:?"  # the begin of a comment
    r"|\b[rbf]{1,2}(?=[\"'])|\"|(?<!\w)'|'(?!\w)"  # quotes and what is before them
    r"|\\n",
    re.MULTILINE | re.IGNORECASE,
)


class Word(NamedTuple):
    """A pattern to look for and what to write instead."""

    pattern: re.Pattern[str]
    better: str


class Found(NamedTuple):
    """Words that were found in a text."""

    line: int
    words: str
    better: str


def main() -> int:
    """Check the files that were named, or all."""
    table = tomllib.loads(LIST.read_text())
    words = [
        Word(
            re.compile(entry["pattern"], re.IGNORECASE),
            entry["better"] + (f" ({entry['why']})" if "why" in entry else ""),
        )
        for entry in table["word"]
    ]
    misspelled = spellings()
    allowed = re.compile("|".join(map(re.escape, table["allow"])) or r"(?!)")
    count = 0
    for path in chosen(sys.argv[1:]):
        source = allowed.sub(lambda match: blank(match[0]), prose(path))
        for found in sorted(look(source, words, misspelled)):
            print(f"{path.relative_to(ROOT)}:{found.line}: {found.words!r} -> {found.better}")
            count += 1
    if count:
        print(f"{count} to reword. The list is tools/words.toml.")
    return int(count > 0)


def chosen(named: list[str]) -> Iterator[Path]:
    """The files to read: those that Git tracks, so that nothing made is among them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"]
        + (named or [*FOLDERS, *PAGES]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in sorted(set(listed.stdout.splitlines())):
        skipped = name.startswith(SKIPPED) or not name.endswith(READ) or not (ROOT / name).is_file()
        if not skipped:
            yield ROOT / name


def spellings() -> dict[str, str]:
    """Misspelled words and their corrections, from codespell."""
    table = {}
    for name in ("dictionary.txt", "dictionary_en-GB_to_en-US.txt"):
        for line in (files("codespell_lib") / "data" / name).read_text("utf-8").splitlines():
            wrong, _, right = line.partition("->")
            table[wrong.strip().lower()] = right.strip(" ,")
    return table


def look(source: str, words: list[Word], misspelled: dict[str, str]) -> Iterator[Found]:
    """What is wrong in a text of prose."""
    text, lines = flattened(source)
    for word in words:
        for match in word.pattern.finditer(text):
            yield Found(lines[match.start()], match[0].strip(" ¶"), word.better)
    for match in re.finditer(r"(?<![\w.])[A-Za-z][a-z]+(?![\w('’])", text):
        if better := misspelled.get(match[0].lower()):
            yield Found(lines[match.start()], match[0], better)


def flattened(source: str) -> tuple[str, list[int]]:
    """The text with one space for each run of white space, and the line of each character."""
    text, lines = ["¶ "], [1, 1]
    line = 1
    for piece in re.findall(r"\s+|\S+", source):
        kept = piece
        if piece.isspace():
            kept = " ¶ " if piece.count("\n") > 1 else " "
        text.append(kept)
        lines += [line] * len(kept)
        line += piece.count("\n")
    text.append(" ¶")
    lines += [line, line]
    return "".join(text), lines


def prose(path: Path) -> str:
    """A file's text, with spaces in place of everything that is not prose."""
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        return prose_of_python(source)
    if path.suffix == ".ipynb":
        return prose_of_notebook(source)
    if path.suffix == ".md":
        return MARKDOWN.sub(lambda match: blank(match[0]), source)
    return prose_of_page(source)


def blank(text: str) -> str:
    """As many spaces; line breaks stay, so that line numbers do."""
    return re.sub(r"[^\n]", " ", text)


def prose_of_page(source: str) -> str:
    """The prose of a reStructuredText page."""
    kept = []
    inside: int | None = None  # the indentation of the block that is left out
    for line in source.splitlines():
        indent = len(line) - len(line.lstrip())
        if inside is not None and line.strip() and indent <= inside:
            inside = None
        if inside is not None or not line.strip():
            kept.append("" if not line.strip() else blank(line))
            continue
        directive = re.match(r"\s*\.\. (\w[\w:-]*)::", line)
        comment = re.match(r"\s*\.\. (?![_|\[])", line) and not directive
        if comment or (directive and CODE.match(directive[1])) or line.rstrip().endswith("::"):
            inside = indent
            kept.append(blank(line))
        else:
            kept.append(line)
    return INLINE.sub(lambda match: blank(match[0]), "\n".join(kept))


def prose_of_notebook(source: str) -> str:
    """The prose of a notebook's Markdown cells, on the lines that it has in the file."""
    markdown = {
        line.strip()
        for cell in json.loads(source)["cells"]
        if cell["cell_type"] == "markdown"
        for line in (json.dumps(each, ensure_ascii=False) for each in cell["source"])
    }
    lines = [
        json.loads(line.strip().rstrip(",")).rstrip("\n")
        if line.strip().rstrip(",") in markdown
        else ""
        for line in source.splitlines()
    ]
    return MARKDOWN.sub(lambda match: blank(match[0]), "\n".join(lines))


def prose_of_python(source: str) -> str:
    """The strings and comments of a module, without the names in them that are marked as code."""
    rows = [[" "] * len(line) for line in source.splitlines()]
    text = source.splitlines()

    def keep(start: tuple[int, int], end: tuple[int, int]) -> None:
        for row in range(start[0] - 1, end[0]):
            first = start[1] if row == start[0] - 1 else 0
            last = end[1] if row == end[0] - 1 else len(text[row])
            rows[row][first:last] = text[row][first:last]

    wanted = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in wanted and not is_a_name(token):
            keep(token.start, token.end)
    joined = "\n".join("".join(row) for row in rows)
    # The quotes and # go, so that a sentence in several strings or lines of comments is one.
    return STRINGS.sub(lambda match: blank(match[0]), joined)


def is_a_name(token: tokenize.TokenInfo) -> bool:
    """Whether a string is one word, such as a key or an option."""
    if token.type != tokenize.STRING or token.string[0] not in "'\"":
        return False
    return " " not in str(ast.literal_eval(token.string))


if __name__ == "__main__":
    sys.exit(main())
