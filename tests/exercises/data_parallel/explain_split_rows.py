"""Which rows of the batch the chunks of ``data_parallel.split`` hold, and how that goes wrong.

``wrong`` makes the verdict.
"""

from multigpu.checking.verdicts import count, numbered


def examine_rows(batch, chunks, gpus, wrong):
    """The right rows in the right order, whatever the sizes of the chunks."""
    number = {tuple(row.flatten().tolist()): i for i, row in enumerate(batch)}
    # A row that is not in the batch has the number -1.
    held = [[number.get(tuple(row.flatten().tolist()), -1) for row in c.value] for c in chunks]
    rows = [row for chunk in held for row in chunk]
    total = len(batch)
    if rows == list(range(total)):
        return
    if -1 in rows:
        strange = [-1 in chunk for chunk in held].index(True)
        raise wrong(
            "values_changed",
            f"chunk {strange} holds a row that is not in the batch",
            "the chunks are new tensors that were not filled with the rows of the batch, or the"
            " rows were rounded in another type on their way.",
        )
    missing = [row for row in range(total) if row not in rows]
    twice = sorted({row for row in rows if rows.count(row) > 1})
    if len(chunks) > 1 and all(chunk == list(range(total)) for chunk in held):
        raise wrong(
            "whole_batch_everywhere",
            f"each of {count(len(chunks), 'chunk')} holds all {count(total, 'row')}",
            "the batch was moved to every GPU but never cut.",
        )
    if missing:
        raise rows_missing(total, held, missing, gpus, wrong)
    if twice:
        raise wrong(
            "rows_repeated",
            f"{numbered('row', twice)} came more than once: chunk 0 holds"
            f" {numbered('row', held[0])}",
            "a chunk ends after the next one has begun: look at where it starts and stops.",
        )
    raise rows_in_other_order(held, rows, len(gpus), wrong)


def rows_missing(total, held, missing, gpus, wrong):
    kept = total - len(missing)
    came = (
        f"{count(len(held), 'chunk')} hold{'s' if len(held) == 1 else ''} {kept} of"
        f" {count(total, 'row')}: {numbered('row', missing)} {'is' if len(missing) == 1 else 'are'}"
        " missing"
    )
    if not held:
        return wrong(
            "no_chunks",
            "an empty list",
            "the loop never ran, or a condition left every chunk out.",
        )
    sizes = [len(chunk) for chunk in held]
    if all(chunk in right_chunks(total, len(gpus)) for chunk in held):
        return wrong(
            "chunk_missing",
            came,
            "a whole chunk was left out: a loop ends too early, or a condition skips it.",
        )
    if len(held) == len(gpus) < total and set(sizes) == {1}:
        return wrong(
            "one_row_per_chunk", came, "every GPU got one row. It gets ceil(rows / GPUs) of them."
        )
    if missing == list(range(total // len(gpus) * len(gpus), total)):
        return wrong(
            "remainder_dropped",
            came,
            f"{total} // {len(gpus)} rounds down, and the rows that are left over at the end go"
            " nowhere. Round up.",
        )
    return wrong(
        "rows_missing",
        came,
        "a chunk stops before the next one starts. A slice [a:b] leaves b out.",
    )


def rows_in_other_order(held, rows, n, wrong):
    came = f"chunk 0 holds {numbered('row', held[0])}" if held[0] else "chunk 0 is empty"
    if n > 1 and all(chunk == list(range(i, len(rows), n)) for i, chunk in enumerate(held)):
        return wrong(
            "strided_rows",
            came,
            f"rows were dealt out like cards, batch[i::{n}]. A chunk is one block of rows.",
        )
    blocks = [row for chunk in reversed(held) for row in chunk]
    if blocks == sorted(rows) or rows == sorted(rows, reverse=True):
        return wrong("rows_reversed", came, "the chunks were made from the end of the batch.")
    return wrong("shuffled", came, "the rows were shuffled or sorted. They keep their order.")


def right_chunks(rows, n):
    """The numbers of the rows in each chunk."""
    size = -(-rows // n)
    return [[*range(start, min(start + size, rows))] for start in range(0, rows, size)]
