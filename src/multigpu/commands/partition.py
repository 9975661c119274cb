"""``multigpu partition``: rewrite a Parquet file with as many row groups as the ranks need."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from multigpu.ranks.errors import counted
from multigpu.ranks.process_tree import leaving_no_process

OURS = "flights.parquet"  # made from the course's own data where there is no such file


def partition_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu partition``."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a Parquet file")
    number = parser.add_mutually_exclusive_group(required=True)
    number.add_argument(
        "--partitions",
        type=int,
        metavar="N",
        help="write N row groups of nearly equal size; a multiple of the number of ranks is best",
    )
    number.add_argument(
        "--row-group-size",
        type=int,
        metavar="ROWS",
        help="write row groups of this many rows, with the rest in the last one, as pandas does",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write (default: replace the input file)",
    )


def run_partition(options: argparse.Namespace) -> int:
    """Rewrite the file and print the arithmetic.  Returns the exit code."""
    try:
        with leaving_no_process():  # asked to end, it removes what is half written, too
            for line in rewritten(options):
                print(line, flush=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def rewritten(options: argparse.Namespace) -> Iterator[str]:
    """Rewrite the file; yields the lines to print."""
    from multigpu.data import write_flights
    from multigpu.data.parquet import group_sizes, opened, rewrite
    from multigpu.data.replacing import replacing
    from multigpu.data.row_groups import fixed_number, fixed_size, served_evenly

    source, output = options.file, options.output or options.file
    if not source.exists() and source.name == OURS:
        yield f"{source} does not exist yet: writing the course's flights."
        with replacing(source) as partial:
            write_flights(partial)
    with opened(source) as file:
        before = group_sizes(file.metadata)
    rows = sum(before)
    if not rows:
        raise ValueError(f"{source} has no rows")
    yield f"{source}: {rows:,} rows in {described(before)}"
    if options.partitions is None:
        size = options.row_group_size
        sizes = fixed_size(rows, size)
        yield f"ceil({rows:,} rows / {size:,} rows per row group) = {len(sizes):,} row groups"
    else:
        partitions = options.partitions
        sizes = fixed_number(rows, partitions)
        size = ceil(rows / partitions)
        back = ceil(rows / size)
        yield f"ceil({rows:,} rows / {partitions:,} partitions) = {size:,} rows per row group"
        if back == partitions:
            pandas = f"to_parquet(row_group_size={size})"
            yield f"ceil({rows:,} / {size:,}) = {back:,} (pandas: {pandas})"
        else:
            yield (
                f"but ceil({rows:,} / {size:,}) = {back:,}: no size gives "
                f"{partitions:,} equal row groups, so sizes differ by one row"
            )
    rewrite(source, output, sizes)
    yield f"{output}: written with {described(sizes)}"
    evenly = [f"{ranks:,}" for ranks in served_evenly(sizes)]
    if len(evenly) > 12:
        evenly = [*evenly[:10], "...", evenly[-1]]
    listed = " or ".join(filter(None, [", ".join(evenly[:-1]), evenly[-1]]))
    yield f"serves {listed} rank{'s'[: evenly != ['1']]} evenly"


def described(sizes: Sequence[int]) -> str:
    """``8 row groups: 1 of 41,066 rows, 7 of 41,065``; many different sizes as from ... to ..."""
    count = counted(len(sizes), "row group")
    kinds = Counter(sizes)
    if len(kinds) == 1:
        return f"{count} of {sizes[0]:,} rows"
    if len(kinds) > 3:
        return f"{count} of {min(sizes):,} to {max(sizes):,} rows"
    return f"{count}: " + ", ".join(f"{many:,} of {size:,} rows" for size, many in kinds.items())
