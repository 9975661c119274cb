"""``multigpu partition``: rewrite a Parquet file with as many row groups as the ranks need."""

import argparse
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from multigpu.commands.site import leaving_no_process

OURS = "flights.parquet"  # made from the course's own data where there is no such file


def partition_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu partition``."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a Parquet file")
    number = parser.add_mutually_exclusive_group(required=True)
    number.add_argument(
        "--partitions",
        type=int,
        metavar="N",
        help="write N row groups, as even as possible; best a multiple of the number of ranks",
    )
    number.add_argument(
        "--row-group-size",
        type=int,
        metavar="ROWS",
        help="write row groups of so many rows, and the rest in the last, as pandas does",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where to (default: in the file's place)"
    )


def run_partition(options: argparse.Namespace) -> int:
    """Rewrite the file and print the arithmetic.  Returns the exit code."""
    output = options.output or options.file
    try:
        with leaving_no_process():  # asked to end, it removes what is half written, too
            if not options.file.exists() and options.file.name == OURS:
                make_flights(options.file)
            for line in partitioned(options.file, output, options):
                print(line)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make_flights(path: Path) -> None:
    """Write the course's flights; the file is there when it is complete."""
    from multigpu.data import write_flights

    print(f"There is no {path} yet: writing the flights of the course.", flush=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write_flights(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def partitioned(source: Path, output: Path, options: argparse.Namespace) -> Iterator[str]:
    """Rewrite ``source``; yields what is to be printed, line by line."""
    from multigpu.data.parquet import rewrite, row_groups_of
    from multigpu.data.row_groups import fixed_number, fixed_size

    before = row_groups_of(source)
    rows = sum(before)
    if not rows:
        raise ValueError(f"{source} has no rows")
    yield f"{source}: {rows:,} rows in {groups_of(before)}"
    if options.partitions is None:
        size = options.row_group_size
        sizes = fixed_size(rows, size)
        yield f"ceil({rows:,} rows / {size:,} rows per row group) = {len(sizes):,} row groups"
    else:
        sizes = fixed_number(rows, options.partitions)
        yield from arithmetic(rows, options.partitions)
    rewrite(source, output, sizes)
    yield f"{output}: written with {groups_of(sizes)}"
    yield from serves(sizes)


def arithmetic(rows: int, partitions: int) -> Iterator[str]:
    """From the number of row groups to their size, and back."""
    size = ceil(rows / partitions)
    back = ceil(rows / size)
    yield f"ceil({rows:,} rows / {partitions:,} partitions) = {size:,} rows per row group"
    if back == partitions:
        yield f"ceil({rows:,} / {size:,}) = {back:,} (pandas: to_parquet(row_group_size={size}))"
    else:
        yield (
            f"but ceil({rows:,} / {size:,}) = {back:,}: row groups of one size cannot be "
            f"{partitions:,}, so sizes differ by one row"
        )


def groups_of(sizes: Sequence[int]) -> str:
    """``8 row groups: 1 of 41,066 rows, 7 of 41,065``; many different sizes as from ... to ..."""
    from multigpu.data.row_groups import named

    count = named(len(sizes))
    kinds = Counter(sizes)
    if len(kinds) == 1:
        return f"{count} of {sizes[0]:,} rows"
    if len(kinds) > 3:
        return f"{count} of {min(sizes):,} to {max(sizes):,} rows"
    return f"{count}: " + ", ".join(f"{many:,} of {size:,} rows" for size, many in kinds.items())


def serves(sizes: Sequence[int]) -> Iterator[str]:
    """Which numbers of ranks these row groups serve well."""
    from multigpu.data.row_groups import served_evenly

    evenly = [f"{ranks:,}" for ranks in served_evenly(sizes)]
    if len(evenly) > 12:
        evenly = [*evenly[:10], "...", evenly[-1]]
    listed = " or ".join(filter(None, [", ".join(evenly[:-1]), evenly[-1]]))
    yield f"serves {listed} rank{'s'[: evenly != ['1']]} evenly"
