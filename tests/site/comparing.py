"""What differs between a record and a fresh run, times aside.

Text is compared word by word. Addresses, temporary folders and the name of the processor may
differ, and decimals in their last digits: another processor rounds differently. A cell tagged
``varies`` shows times, or something else of this machine or run: its words have to come again,
whatever the numbers are. So do those of a ``:run:`` value that uses, through any number of cells,
what such a cell assigns. Such a value may also name another of the things that the tagged cells
show: which of them was slowest.
"""

import ast
import json
import re
from html import unescape
from itertools import groupby

import nbformat

from multigpu.scaling.comparison import Machine

NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?")
CHANGES = re.compile(
    r"(?P<time>(?<=passed)\s+\d+\.\d s)"
    r"|(?P<address>0x[0-9a-f]{6,}|(?<=steps-)[0-9a-f]{8})"
    r"|(?P<folder>(?:/|(?:\.\./)+)(?:tmp|var/folders)[\w./-]+)"
    r"|(?P<process>(?<=process )\d+|(?<=pid )\d+)"
    # Several ranks run out of memory at the same place; on a busy machine one does so first.
    r"|(?P<ranks>ranks? \d+(?:(?:, | and )\d+)*(?=: OutOfMemoryError))"
)
TIME = re.compile(r"(?<![\w.])[\d,.]+\s?(?:ns|µs|us|ms|s|seconds?|min|minutes|h|rows/s)(?![\w/])")
TAG = re.compile(r"<[^>]*>")
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
RANK, NO_RANK = re.compile(r"rank (\d+) \| "), -1
WORD = re.compile(r"[^\W\d_]{3,}")
LAYER = re.compile(r"[^\W\d]\w*(?:\.\w+)*\.\d+(?:\.\w+)*")  # layers.2.norm: where a cut fell
VARIES, VALUE = "varies", "value"
NOISE = 1e-6  # a number this small is what rounding left of zero


def differences(record, fresh):
    """Sentences on each cell that gave something else; both have the same cells."""
    processors = {record.metadata.get("course", {}).get("processor"), Machine.here().processor}
    record, fresh = (without(processors - {None}, notebook) for notebook in (record, fresh))
    cells = zip(record.cells, fresh.cells, varying(record.cells), strict=True)
    shown_then, shown_now = shown_by_tagged(record.cells), shown_by_tagged(fresh.cells)
    for number, (old, new, varies) in enumerate(cells, start=1):
        if varies:
            was, now = words_alone(old), words_alone(new)
            same = set(was) <= set(now)  # a figure made on a busy machine says so, too
            if VARIES not in tags_of(old) and len(was) == len(now):
                other = set(was) ^ set(now)
                same = same or other <= shown_then & shown_now
        else:
            was, now = words_of(old), words_of(new)
            same = len(was) == len(now) and all(map(alike, was, now))
        if not same:
            first_line = old.source.strip().partition("\n")[0]
            yield f"cell {number} ({first_line!r}):\n{first_difference(was, now)}"


def without(processors, notebook):
    """The notebook with one word in place of each of these names."""
    text = json.dumps(notebook)
    for name in processors:
        text = text.replace(json.dumps(name)[1:-1], "processor")
    return nbformat.from_dict(json.loads(text))


def varying(cells):
    """Whether the numbers of each cell may differ: by its tag, or as a value of what varies."""
    names = set()
    for cell in cells:
        nodes = list(ast.walk(ast.parse(cell.source)))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        assigned = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        tags = tags_of(cell)
        uses = bool((used - assigned) & names)
        if VARIES in tags or uses:
            names |= assigned | (defined if uses else set())
        else:
            names -= assigned | defined
        yield VARIES in tags or (VALUE in tags and uses)


def shown_by_tagged(cells):
    """All words of the cells that are tagged ``varies``."""
    return {word for cell in cells if VARIES in tags_of(cell) for word in words_alone(cell)}


def tags_of(cell):
    return cell.metadata.get("tags", [])


def texts_of(cell):
    """What a cell gave, each output in its richest form that is text."""
    for output in cell.outputs:
        data = output.get("data", {})
        forms = (
            *(output.get("text"), data.get("text/html"), data.get("image/svg+xml")),
            *(data.get("text/plain"), output.get("ename", "") + output.get("evalue", "")),
        )
        yield next(filter(None, forms), "")


def words_of(cell):
    """The words of a cell's outputs, with a mask over all that changes from run to run."""
    return CHANGES.sub(mask, by_rank("\n".join(texts_of(cell)))).split()


def by_rank(text):
    """Lines of several ranks in a row ("rank 1 | ..."), ordered by rank: any may print first."""
    lines = filter(None, text.splitlines())
    runs = groupby(lines, key=lambda line: rank_of(line) == NO_RANK)
    return "\n".join(line for _, run in runs for line in sorted(run, key=rank_of))


def rank_of(line):
    """The rank that printed a line."""
    found = RANK.match(line)
    return int(found[1]) if found else NO_RANK


def words_alone(cell):
    """The words of three letters or more, each once: no numbers, no units, no layer of a model."""
    text = TAG.sub(" ", STYLE.sub(" ", "\n".join(texts_of(cell))))
    text = LAYER.sub(" ", TIME.sub(" ", CHANGES.sub(mask, unescape(text))))
    return sorted(set(WORD.findall(text)))


def mask(match):
    return f"<{match.lastgroup}>"


def alike(old, new):
    """Whether two words are the same up to the rounding of their numbers."""
    if old == new:
        return True
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return False
    return all(map(close, NUMBER.findall(old), NUMBER.findall(new)))


def close(old, new):
    """Decimals apart by one of the last digit or a ten thousandth, or both next to nothing."""
    if old == new:
        return True
    if any(not re.search(r"[.e]", number) for number in (old, new)):
        return False  # a whole number is exact
    a, b = float(old.replace(",", "")), float(new.replace(",", ""))
    mantissa, _, exponent = old.partition("e")
    digits = len(mantissa.partition(".")[2])
    last = 10.0 ** (int(exponent or 0) - digits)
    return abs(a - b) <= max(1.001 * last, 1e-4 * abs(a)) or max(abs(a), abs(b)) < NOISE


def first_difference(was, now):
    """The place where two lists of words part."""
    apart = (i for i, pair in enumerate(zip(was, now, strict=False)) if not alike(*pair))
    place = next(apart, min(len(was), len(now)))
    around = slice(max(0, place - 3), place + 6)
    return f"  recorded: {' '.join(was[around])}\n  now:      {' '.join(now[around])}"
