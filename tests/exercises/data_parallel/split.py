"""``data_parallel.split``: which rows of a batch go to which GPU."""

import itertools
import math

import torch

from multigpu.checking.declaration import case, exercise, on
from multigpu.ranks.errors import counted, listed

split = exercise(
    "data_parallel.split",
    expects="the chunks that torch.chunk makes, chunk i on devices[i]",
    parts="chunk",
    keeps=["batch"],
)


def rows_of(rows, *shape, dtype=torch.float32):
    """A batch in which every number occurs once, so that a row can be recognized."""
    numbers = rows * torch.Size(shape).numel()
    return torch.arange(numbers).reshape(rows, *shape).to(dtype)


@split.cases
def cases():
    for n in (2, 3, 4):
        for rows in dict.fromkeys((5 * n, n, 7, 10, n + 1, 3 * n - 1, 5, n - 1, 1)):
            yield a_case(n, rows_of(rows, 2))
    thirds = torch.arange(1, 11, dtype=torch.float64).reshape(5, 2) / 3
    batches = [
        rows_of(5, dtype=torch.int64),  # labels
        rows_of(5, 1, 4, 4),  # images
        rows_of(2, 2, dtype=torch.int32),
        thirds,
        thirds.bfloat16(),
        2**53 + rows_of(5, 2, dtype=torch.int64),  # float64 would round them
        rows_of(5, 3) % 2 == 0,
        rows_of(3, 5).T,  # rows that are not next to each other in memory
        rows_of(2, 7, 3).transpose(0, 1),
    ]
    for batch in batches:
        yield a_case(3, batch)
    for source in (0, 1):
        yield a_case(3, rows_of(5, 2), source=source)
    for order in ([1, 0], [2, 0, 1], (3, 1, 2, 0), (3, 2), [1], [0]):
        yield a_case(4, rows_of(7, 2), order=order)


def a_case(n, batch, order=None, source=None):
    """A batch that is split over the GPUs in ``order``, of n; on GPU ``source`` or on the CPU."""
    order = [*range(n)] if order is None else order
    gpus = listed(f"cuda:{i}" for i in order)
    title = f"{counted(len(batch), 'row')} of {str(batch.dtype)[6:]} on {gpus}"
    example = len(batch) == 7 and n == 3
    return case(title, gpus=n, batch=batch, order=order, source=source, example=example)


@split.arguments
def arguments(case, devices):
    batch = case.batch if case.source is None else case.batch.to(devices[case.source])
    return batch, type(case.order)(devices[i] for i in case.order)


@split.expected
def expected(case):
    chunks = case.batch.split(size(case))
    return [on(f"cuda:{i}", chunk) for i, chunk in zip(case.order, chunks, strict=False)]


def size(case):
    return math.ceil(len(case.batch) / len(case.order))


@split.words
def words(case):
    n = len(case.order)
    return {"rows": len(case.batch), "n": n, "size": size(case), "there": case.gpus}


@split.right
def with_chunk(batch, devices):
    return tuple(chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices))


@split.mistake(
    "remainder_dropped",
    "{rows} // {n} rounds down, and the rows that are left over at the end go nowhere.",
    fix="Round up.",
)
def floor_division(batch, devices):
    rows = max(1, len(batch) // len(devices))
    chunks = [batch[i * rows : (i + 1) * rows] for i in range(len(devices))]
    return [chunk.to(device) for chunk, device in zip(chunks, devices) if len(chunk)]


@split.mistake(
    "remainder_in_last",
    "{rows} // {n} rounds down, and the last chunk takes all that is left over.",
    fix="Round up, so that the last chunk is the shortest.",
)
def last_takes_the_rest(batch, devices):
    n = len(devices)
    rows = max(1, len(batch) // n)
    chunks = [batch[i * rows : (i + 1) * rows] for i in range(n - 1)] + [batch[(n - 1) * rows :]]
    return [chunk.to(device) for chunk, device in zip(chunks, devices) if len(chunk)]


@split.mistake(
    "left_on_cpu",
    "the chunks are cut but never moved.",
    fix="chunk.to(device) returns a new tensor: keep what it returns.",
)
def forgets_to_move(batch, devices):
    return list(batch.chunk(len(devices)))


@split.mistake(
    "evened_out",
    "these are the sizes of numpy.array_split and torch.tensor_split.",
    fix="torch.chunk fills every chunk but the last: ceil({rows} / {n}) = {size} rows each.",
)
def like_array_split(batch, devices):
    chunks = torch.tensor_split(batch, len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices) if len(chunk)]


@split.mistake(
    "empty_chunks",
    "there is a chunk for every GPU even when the rows are used up.",
    fix="Leave the empty ones out: there may be fewer chunks than GPUs.",
)
def always_one_chunk_per_gpu(batch, devices):
    rows = math.ceil(len(batch) / len(devices))
    return [batch[i * rows : (i + 1) * rows].to(device) for i, device in enumerate(devices)]


@split.mistake(
    "strided_rows",
    "the rows were dealt out like cards, batch[i::{n}].",
    fix="A chunk is one block of rows.",
)
def deals_rows_like_cards(batch, devices):
    n = len(devices)
    return [batch[i::n].to(device) for i, device in enumerate(devices) if i < len(batch)]


@split.mistake(
    "all_on_one_gpu",
    "all chunks went to the same GPU.",
    fix="Chunk i goes to devices[i]: zip(chunks, devices) gives both.",
)
def moves_everything_to_the_first(batch, devices):
    return [chunk.to(devices[0]) for chunk in batch.chunk(len(devices))]


@split.mistake(
    "counts_gpus_itself",
    "chunk i went to GPU number i, whatever `devices` holds.",
    fix="Use devices[i]: the list may be in any order, and shorter than the {there} GPUs here.",
)
def ignores_the_order_of_devices(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.to(f"cuda:{i}") for i, chunk in enumerate(chunks)]


@split.mistake(
    "counts_gpus_itself",
    "this machine has {there} GPUs, but `devices` holds only {n} of them.",
    fix="Use len(devices).",
)
def asks_torch_how_many_gpus_there_are(batch, devices):
    n = torch.cuda.device_count()
    return [chunk.to(f"cuda:{i}") for i, chunk in enumerate(batch.chunk(n))]


@split.mistake(
    "whole_batch_everywhere",
    "the batch was moved to every GPU but never cut.",
    fix="Cut it into chunks first.",
)
def forgets_to_cut(batch, devices):
    return [batch.to(device) for device in devices]


@split.mistake(
    "size_is_number_of_gpus",
    "{n} is the number of chunks, not of rows.",
    fix="Tensor.split(k) makes chunks of k rows, Tensor.chunk(k) makes k chunks.",
)
def split_by_the_number_of_gpus(batch, devices):
    chunks = batch.split(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, itertools.cycle(devices))]


@split.mistake(
    "dtype_changed",
    "the chunks were converted to float32, or put into a new tensor of that type.",
    fix="Labels are integers and stay integers: only cut and move.",
)
def fills_new_tensors(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.float().to(device) for chunk, device in zip(chunks, devices)]


@split.mistake(
    "indexes_missing_chunks",
    "torch.chunk makes fewer chunks than GPUs when there are few rows.",
    fix="Stop when the chunks are used up: zip(chunks, devices) does.",
    status="crash",
)
def one_chunk_for_every_gpu(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunks[i].to(devices[i]) for i in range(len(devices))]
