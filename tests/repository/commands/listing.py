"""The list at the end of a run of these tests: which commands were not run, and why."""

from collections import Counter

import pytest

from .blocks import KINDS, Command

PROPERTY = "command of a page"


def record(command: Command, *, was_read: bool) -> dict[str, str]:
    """One line of the list, which a test process can hand to the one that prints it."""
    how = "run" if command.kind is None else f"{'read' if was_read else 'left'}: {command.kind}"
    first = command.text.replace("\\\n", " ")
    return {"place": command.place, "command": " ".join(first.split()), "how": how}


def show(reporter: pytest.TerminalReporter) -> None:
    """Write the list."""
    reports = [r for outcome in ("passed", "failed") for r in reporter.stats.get(outcome, [])]
    records = [
        value
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if not records:
        return
    counts = Counter(each["how"].partition(":")[0] for each in records)
    reporter.section("commands of the pages")
    reporter.line(
        f"{counts['run']} were run in a fresh clone. Not run: {counts['read']}, of which only the "
        f"options were read, and {counts['left']}, whose programs are not ours."
    )
    for kind, why in KINDS.items():
        own = [each for each in records if each["how"].endswith(f": {kind}")]
        if own:
            reporter.line(f"  {kind}: {why}")
        for each in sorted(own, key=lambda each: (each["how"], each["place"])):
            reporter.line(f"    {each['how'][:4]}  {each['place']}  {each['command']}")
