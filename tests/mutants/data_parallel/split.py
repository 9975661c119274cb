"""Answers to ``split``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import itertools
import math

import torch
from harness import right, wrong


@wrong("split.left_on_cpu")
def throws_the_moved_chunk_away(batch, devices):
    chunks = list(batch.chunk(len(devices)))
    for chunk, device in zip(chunks, devices):
        chunk.to(device)
    return chunks


@wrong("split.rows_missing")
def off_by_one_at_the_end(batch, devices):
    rows = math.ceil(len(batch) / len(devices))
    starts = range(0, len(batch), rows)
    return [batch[s : max(s + 1, s + rows - 1)].to(d) for s, d in zip(starts, devices)]


@wrong("wrong_values")
def shuffles_like_a_data_loader(batch, devices):
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    chunks = batch.to("cpu")[order].chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("split.dtype_changed")
def makes_floats_of_labels(batch, devices):
    return [chunk.float().to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@wrong("wrong_shape")
def flattens_images(batch, devices):
    chunks = batch.flatten(1).chunk(len(devices)) if batch.ndim > 1 else batch.chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("wrong_shape")
def stacks_the_chunks_with_a_dimension_more(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.unsqueeze(0).to(device) for chunk, device in zip(chunks, devices)]


@wrong("returned_nothing")
def forgets_to_return(batch, devices):
    chunks = [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@wrong("split.first_chunk_only")
def returns_the_first_chunk_only(batch, devices):
    for chunk, device in zip(batch.chunk(len(devices)), devices):
        return chunk.to(device)


@wrong("wrong_type")
def returns_a_dictionary(batch, devices):
    chunks = batch.chunk(len(devices))
    return {str(device): chunk.to(device) for chunk, device in zip(chunks, devices)}


@wrong("split.chunks_with_devices")
def pairs_each_chunk_with_its_device(batch, devices):
    chunks = batch.chunk(len(devices))
    return [(chunk.to(device), device) for chunk, device in zip(chunks, devices)]


@wrong("wrong_values")
def new_tensors_that_stay_empty(batch, devices):
    sizes = [len(chunk) for chunk in batch.chunk(len(devices))]
    return [
        torch.full((size, *batch.shape[1:]), -1, dtype=batch.dtype, device=device)
        for size, device in zip(sizes, devices)
    ]


@wrong("wrong_type")
def returns_a_generator(batch, devices):
    return (chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices))


@wrong("split.remainder_dropped")
def takes_the_first_full_chunks(batch, devices):
    chunks = batch.split(len(batch) // len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("wrong_count")
def skips_single_rows(batch, devices):
    pairs = zip(batch.chunk(len(devices)), devices)
    return [chunk.to(device) for chunk, device in pairs if len(chunk) > 1]


@wrong("split.chunk_missing")
def forgets_what_is_left_after_the_loop(batch, devices):
    size = math.ceil(len(batch) / len(devices))
    chunks = []
    while len(batch) >= size:
        chunks.append(batch[:size].to(devices[len(chunks)]))
        batch = batch[size:]
    return chunks


@wrong("wrong_count")
def makes_a_column_of_labels(batch, devices):
    if batch.ndim == 1:
        return [batch.unsqueeze(1).to(devices[0])]
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@wrong("wrong_values")
def goes_through_half_precision(batch, devices):
    chunks = batch.half().chunk(len(devices))
    return [chunk.to(device).to(batch.dtype) for chunk, device in zip(chunks, devices)]


@wrong("wrong_values")
def goes_through_double_precision(batch, devices):
    chunks = batch.double().chunk(len(devices))
    return [chunk.to(device).to(batch.dtype) for chunk, device in zip(chunks, devices)]


@wrong("input_changed")
def clears_the_batch_afterwards(batch, devices):
    chunks = [chunk.clone().to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]
    batch.zero_()
    return chunks


@right
def torch_chunk(batch, devices):
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@right
def torch_split_with_a_loop(batch, devices):
    result = []
    size = (batch.shape[0] + len(devices) - 1) // len(devices)
    for i, piece in enumerate(torch.split(batch, size)):
        result.append(piece.cuda(devices[i]))
    return result


@right
def copies_every_chunk(batch, devices):
    per_gpu = math.ceil(batch.size(0) / len(devices))
    chunks = []
    start = 0
    while start < batch.size(0):
        stop = min(start + per_gpu, batch.size(0))
        chunks.append(batch[start:stop].clone().to(devices[len(chunks)], non_blocking=True))
        start = stop
    return chunks


@right
def narrow_with_sizes(batch, devices):
    rows, gpus = len(batch), len(devices)
    size = -(-rows // gpus)
    sizes = [size] * (rows // size) + ([rows % size] if rows % size else [])
    starts = itertools.accumulate([0, *sizes[:-1]])
    return [batch.narrow(0, a, n).to(d) for a, n, d in zip(starts, sizes, devices)]


@right
def stacks_single_rows(batch, devices):
    size = math.ceil(len(batch) / len(devices))
    rows = [list(batch[start : start + size]) for start in range(0, len(batch), size)]
    return [torch.stack(some).to(device) for some, device in zip(rows, devices)]


@right
def as_a_tuple(batch, devices):
    return tuple(map(torch.Tensor.to, batch.chunk(len(devices)), devices))
