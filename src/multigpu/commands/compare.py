"""``multigpu compare``: whether the same training is faster on more GPUs, with DP and with DDP."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from multigpu.commands.showing import as_options, console

if TYPE_CHECKING:
    from multigpu.scaling.comparison import Comparison


def words(text: str) -> list[str]:
    """`single,dp` as a list; blanks do not matter."""
    return [word.strip().lower() for word in text.split(",") if word.strip()]


def counts(text: str) -> list[int]:
    """`1,2,4` as a list of whole numbers."""
    return [int(word) for word in words(text)]


def compare_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu compare``."""
    parser.add_argument("--data", default="flights", metavar="TASK", help="what to train")
    parser.add_argument(
        "--modes",
        type=words,
        default=["single", "dp", "ddp"],
        metavar="LIST",
        help="any of single, dp, ddp, zero2, zero3 and pipeline; default: single,dp,ddp",
    )
    parser.add_argument("--gpus", type=counts, default=[1, 2], metavar="LIST", help="default: 1,2")
    parser.add_argument(
        "--steps", type=int, default=20, help="measured steps per round (default 20)"
    )
    parser.add_argument(
        "--warmup", type=int, default=5, help="unmeasured steps before them (default 5)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds (default 5)")
    parser.add_argument("--batch-size", type=int, help="rows per step on all GPUs together")
    parser.add_argument("--threads", type=int, help="CPU threads of each rank or virtual GPU")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="save the comparison there, as CSV and SVG"
    )
    parser.add_argument("--published", action="store_true", help="also show published times")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON only")


def run_compare(options: argparse.Namespace) -> int:
    """Measure, show and save.  Returns 0, 1 where training failed, or 2 for wrong usage."""
    from multigpu.ranks import RankError
    from multigpu.scaling import compare, workload_of

    if "TORCHELASTIC_RUN_ID" in os.environ:
        print("compare starts its own ranks: run it without torchrun", file=sys.stderr)
        return 2
    try:
        if options.output:  # before minutes are spent
            options.output.mkdir(parents=True, exist_ok=True)
        with Console(stderr=True).status("starting") as status:  # moves in a terminal only
            compared = compare(
                workload_of(options.data, batch_size=options.batch_size),
                modes=options.modes,
                gpus=options.gpus,
                steps=options.steps,
                warmup=options.warmup,
                repeats=options.repeats,
                threads=options.threads,
                tell=status.update,
            )
    except (ValueError, OSError) as error:
        print(as_options(str(error), vars(options)), file=sys.stderr)
        return 2
    except RankError as error:
        print(f"training failed, so there is nothing to compare:\n{error}", file=sys.stderr)
        return 1
    kept = keep(compared, options.output) if options.output else []
    if options.json:  # one object per row, with the names of the CSV's columns
        print(compared.json())
    else:
        show(compared, kept, published=options.published)
    return 0


def keep(compared: Comparison, folder: Path) -> list[Path]:
    """Write the CSV and the figure; their names contain the task and the date."""
    from multigpu.scaling import write_csv

    stem = f"compare-{compared.settings.work}-{compared.settings.date}"
    csv, svg = folder / f"{stem}.csv", folder / f"{stem}.svg"
    write_csv(compared, csv)
    svg.write_text(compared.picture().svg(), encoding="utf-8")
    return [csv, svg]


def show(compared: Comparison, kept: list[Path], *, published: bool) -> None:
    """Print the table, whether all rows trained alike, what was left out, and the text picture."""
    out = console()
    out.print(f"{compared.table().text()}\n")
    out.print(f"{compared.machine}; {compared.conditions}.", style="dim")
    if compared.busy:
        out.print("The machine was busy: trust the speed-ups more than the times.", style="yellow")
    out.print(compared.agreement)
    for candidate, reason in compared.left_out.items():
        out.print(f"Left out: {candidate}: {reason}.")
    out.print(f"\n{compared.picture(published=published).text()}")
    if not published:
        out.print("--published also shows published times of other GPUs.", style="dim")
    if kept:
        out.print(f"saved: {', '.join(map(str, kept))}")
    else:
        out.print("--output DIR saves this as CSV and SVG.", style="dim")
