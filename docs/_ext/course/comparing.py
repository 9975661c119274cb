"""What differs between a record and a fresh run, times aside.

Text is compared word by word. Times (``3.2 ms``), addresses and temporary folders may differ, and
decimals in their last digit: another processor rounds differently. Of a cell tagged ``varies`` only
the words count that are no numbers: it shows times, or something else of this machine or run.
"""

import re
from html import unescape

NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?")
CHANGES = re.compile(
    r"(?P<time>(?<![\w.])[\d,.]+(?=\s?(?:ns|µs|us|ms|s|seconds?|min|minutes|h|rows/s)(?![\w/])))"
    r"|(?P<address>0x[0-9a-f]{6,})"
    r"|(?P<folder>/(?:tmp|var/folders)/[\w./-]+)"
    r"|(?P<process>(?<=process )\d+|(?<=pid )\d+)"
)
TAG = re.compile(r"<[^>]*>")
NOISE = 1e-6  # a number this small is what rounding left of zero


def differences(record, fresh):
    """Sentences on each cell that gave something else; both have the same cells."""
    for number, (old, new) in enumerate(zip(record.cells, fresh.cells, strict=True), start=1):
        varies = "varies" in old.metadata.get("tags", [])
        was, now = shown(old, varies), shown(new, varies)
        if was != now and not (not varies and alike(was, now)):
            first_line = old.source.strip().partition("\n")[0]
            yield f"cell {number} ({first_line!r}):\n{first_difference(was, now)}"


def shown(cell, varies):
    """The words of a cell's outputs, in which everything that may change is masked."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        text = output.get("text") or data.get("text/html") or data.get("image/svg+xml")
        text = text or data.get("text/plain") or output.get("ename", "") + output.get("evalue", "")
        parts.append(unescape(TAG.sub(" ", text)) if varies else text)
    words = CHANGES.sub(lambda match: f"<{match.lastgroup}>", "\n".join(parts)).split()
    return sorted({w for w in words if not re.search(r"\d|[#=─█▏▎▍▌▋▊▉·.|-]{2,}", w)}) if varies else words


def alike(was, now):
    """Whether words differ in rounding only."""
    return len(was) == len(now) and all(map(rounded_alike, was, now))


def rounded_alike(old, new):
    if old == new:
        return True
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return False
    return all(map(close, NUMBER.findall(old), NUMBER.findall(new)))


def close(old, new):
    """Equal, apart by two of the last digit (of decimals), or both next to nothing."""
    if old == new:
        return True
    if not re.search(r"[.e]", old + new):
        return False
    a, b = float(old.replace(",", "")), float(new.replace(",", ""))
    decimals = min(len(each.partition("e")[0].partition(".")[2]) for each in (old, new))
    digit = 10.0 ** -decimals if "e" not in old else abs(a)
    return abs(a - b) <= 2 * digit or max(abs(a), abs(b)) < NOISE


def first_difference(was, now):
    """The place where two lists of words part."""
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if not rounded_alike(a, b)),
              min(len(was), len(now)))  # fmt: skip
    return f"  recorded: {' '.join(was[max(0, at - 3) : at + 6])}\n  now:      {' '.join(now[max(0, at - 3) : at + 6])}"
