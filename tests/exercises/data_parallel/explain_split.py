"""What is wrong with an answer to ``data_parallel.split``, in the learner's numbers."""

from multigpu.checking import Returned, Wrong, describe
from multigpu.checking.verdicts import count, listed, numbered

from .explain_split_rows import examine_rows


def examine(batch, chunks, gpus, visible, where):
    """Raise Wrong unless ``chunks`` are the rows of ``batch``, split over ``gpus``."""
    sizes = chunk_sizes(len(batch), len(gpus))
    task = f"{count(len(batch), 'row')} on {count(len(gpus), 'GPU')}"
    expected = f"{task}: {chunks_of(sizes)} on {listed(gpus[: len(sizes)])}"

    def wrong(mistake, came, usually):
        return Wrong(f"split.{mistake}", expected=expected, came=came, usually=usually, where=where)

    examine_form(chunks, wrong)
    examine_shapes(batch, chunks, wrong)
    examine_rows(batch, chunks, gpus, wrong)
    examine_sizes(len(batch), [len(chunk.value) for chunk in chunks], gpus, visible, wrong)
    examine_places([chunk.device for chunk in chunks], gpus, wrong)


def examine_batch(changed, where):
    """The caller's batch is as it was."""
    if changed:
        raise Wrong(
            "split.batch_changed",
            expected="the batch itself stays as it is",
            came="the chunks are right, but the caller's batch is another one after the call",
            usually="something wrote into it in place. A method with _ at its end does that.",
            where=where,
        )


def chunks_of(sizes):
    """For example "3 chunks of 4, 4 and 2 rows"."""
    unit = "row" if sizes == [1] else "rows"
    return f"{count(len(sizes), 'chunk')} of {listed(sizes)} {unit}" if sizes else "no chunk at all"


def examine_form(chunks, wrong):
    if chunks is None:
        raise wrong("returned_nothing", "None", "the function ends without `return`.")
    if isinstance(chunks, Returned):
        raise wrong(
            "not_a_list",
            describe(chunks),
            "a `return` inside the loop ends the function after the first chunk.",
        )
    if not isinstance(chunks, list | tuple):
        raise wrong("not_a_list", describe(chunks), "return the chunks in a list.")
    for i, chunk in enumerate(chunks):
        if not isinstance(chunk, Returned):
            raise wrong(
                "not_tensors",
                f"chunk {i} is {describe(chunk)}",
                "the list holds the chunks themselves and nothing else.",
            )


def examine_shapes(batch, chunks, wrong):
    for i, chunk in enumerate(chunks):
        shape = tuple(chunk.shape)
        has_columns = batch.ndim > 1 and chunk.value.ndim > 1
        if has_columns and shape[0] == len(batch) and 0 < shape[1] < batch.shape[1]:
            raise wrong(
                "cut_columns",
                f"chunk {i} has all {count(len(batch), 'row')} but only {shape[1]} of"
                f" {batch.shape[1]} columns",
                "the batch was cut along dimension 1. Rows are dimension 0.",
            )
        if shape[1:] != batch.shape[1:] or chunk.value.ndim != batch.ndim:
            raise wrong(
                "shape_changed",
                f"chunk {i} has shape {shape}, the batch {tuple(batch.shape)}",
                "only the number of rows may change: no flatten, unsqueeze or squeeze.",
            )
        if chunk.dtype != batch.dtype:
            raise wrong(
                "dtype_changed",
                f"chunk {i} is {chunk.dtype}, the batch {batch.dtype}",
                "the chunks were converted, or put into a new tensor of another type.",
            )


def examine_sizes(rows, sizes, gpus, visible, wrong):
    """All rows are there, in order.  Are the chunks cut where torch.chunk cuts?"""
    n = len(gpus)
    right = chunk_sizes(rows, n)
    if sizes == right:
        return
    came = chunks_of(sizes)
    if 0 in sizes:
        empty = [i for i, size in enumerate(sizes) if not size]
        raise wrong(
            "empty_chunks",
            f"{came}: {numbered('chunk', empty)} {'has' if len(empty) == 1 else 'have'} no row",
            "there is a chunk for every GPU even when the rows are used up. Leave empty ones out.",
        )
    low, rest = divmod(rows, n)
    known = {
        "remainder_in_last": (
            [low] * (n - 1) + [low + rest],
            f"{rows} // {n} rounds down, and the last chunk takes all that is left over. Round up.",
        ),
        "evened_out": (
            [low + 1] * rest + [low] * (n - rest),
            "these are the sizes of numpy.array_split. torch.chunk fills every chunk but the last.",
        ),
        "counts_gpus_itself": (
            chunk_sizes(rows, visible),
            f"this machine has {count(visible, 'GPU')}, but `devices` holds only {n} of them."
            " Use len(devices).",
        ),
        "size_is_number_of_gpus": (
            pieces(rows, n),
            f"{n} is the number of chunks, not of rows: Tensor.split(k) makes chunks of k rows,"
            " Tensor.chunk(k) makes k chunks.",
        ),
    }
    for mistake, (known_sizes, usually) in known.items():
        if sizes == [size for size in known_sizes if size]:
            raise wrong(mistake, came, usually)
    if len(sizes) > n:
        raise wrong("too_many_chunks", came, f"there are only {count(n, 'GPU')} to put them on.")
    raise wrong(
        "sizes", came, f"every chunk but the last holds ceil({rows} / {n}) = {right[0]} rows."
    )


def chunk_sizes(rows, n):
    return pieces(rows, -(-rows // n))


def pieces(rows, size):
    return [min(size, rows - start) for start in range(0, rows, size)]


def examine_places(came, gpus, wrong):
    """Chunk i is on gpus[i]."""
    right = gpus[: len(came)]
    if came == right:
        return
    i = [a == b for a, b in zip(came, right, strict=True)].index(False)
    found = f"chunk {i} is on {came[i]} (all chunks: {listed(came)})"
    if came[i] == "cpu":
        raise wrong(
            "left_on_cpu",
            found,
            "nothing moved it. `chunk.to(device)` returns a new tensor: keep what it returns.",
        )
    if len(came) > 1 and len(set(came)) == 1:
        raise wrong(
            "all_on_one_gpu", found, "all chunks went to the same GPU. Chunk i goes to devices[i]."
        )
    if came == [f"cuda:{i}" for i in range(len(came))]:
        raise wrong(
            "counts_gpus_itself",
            found,
            f"chunk {i} went to GPU number {i}. devices[{i}] is {right[i]}: use the list.",
        )
    raise wrong("wrong_gpu", found, f"chunk {i} goes to devices[{i}], which is {right[i]}.")
