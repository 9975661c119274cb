"""``multigpu doctor``: can the course be worked through on this machine, and if not, what to do."""

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from multigpu.commands.health import Finding, examine

COLOUR = {"ok": "green", "note": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``multigpu doctor``."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--port", type=int, default=8888, help="the port to look at (default 8888)")


def run(args: argparse.Namespace) -> int:
    """Print every finding. Returns 0 when the course can be worked through, else 1."""
    findings = []
    console = Console(highlight=False, soft_wrap=True, emoji=False, quiet=args.json)
    for finding in examine(args.port):
        findings.append(finding)
        for line in lines(finding):
            console.print(line)
    problems = sum(finding.status == "problem" for finding in findings)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    console.print(Text(f"\n{conclusion(problems)}"))
    return 1 if problems else 0


def lines(finding: Finding) -> list[Text]:
    """A finding as it is shown: the line, and below it what to do."""
    status = Text(f"{finding.status:<8} ", COLOUR[finding.status])
    shown = [status + Text(f"{finding.subject:<11}{finding.says}")]
    if finding.advice:
        shown.append(Text(f"{'':20}-> {finding.advice}"))
    return shown


def conclusion(problems: int) -> str:
    """The last line."""
    if not problems:
        return "You can work through the course on this machine."
    return f"{problems} problem{'s'[: problems > 1]} to solve first, see above."
