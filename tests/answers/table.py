"""The table at the end of a run of tests/answers: which answers were refused, which passed.

One line per exercise; with ``-v`` one line per answer, with the message id it got.
"""

from collections import defaultdict
from collections.abc import Iterable

import pytest

PROPERTY = "verdict"


def verdicts_in(reports: Iterable[pytest.TestReport]) -> dict[str, list[dict[str, str]]]:
    """What the tests recorded, by exercise."""
    table = defaultdict(list)
    for report in reports:
        for name, record in getattr(report, "user_properties", []):
            if name == PROPERTY and report.when == "call":
                table[record["exercise"]].append(record | {"ok": report.passed})
    return table


def show(reporter: pytest.TerminalReporter, *, every_answer: bool) -> None:
    """Write the table."""
    reports = [r for outcome in ("passed", "failed") for r in reporter.stats.get(outcome, [])]
    table = verdicts_in(reports)
    if not table:
        return
    reporter.section("answers that learners could write")
    reporter.line(f"{'exercise':<34}{'wrong, refused by name':>24}{'right, passed':>16}")
    for exercise, records in sorted(table.items()):
        cells = [share(records, kind) for kind in ("wrong", "right")]
        reporter.line(f"{exercise:<34}{cells[0]:>24}{cells[1]:>16}")
        for record in records if every_answer else []:
            mark = " " if record["ok"] else "!"
            reporter.line(f" {mark} {record['kind']:<6} {record['answer']:<48} {record['verdict']}")


def share(records: list[dict[str, str]], kind: str) -> str:
    """How many answers of one kind got the verdict they must get: "28 of 28"."""
    own = [record for record in records if record["kind"] == kind]
    return f"{sum(bool(record['ok']) for record in own)} of {len(own)}"
