"""Answers to ``split`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import math
import torch
from collections.abc import Sequence
from math import ceil
from torch import Tensor

# %% torch_chunk: pass


def split(batch, devices):
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


# %% torch_split_with_a_loop: pass


def split(batch, devices):
    result = []
    size = (batch.shape[0] + len(devices) - 1) // len(devices)
    for i, piece in enumerate(torch.split(batch, size)):
        result.append(piece.cuda(devices[i]))
    return result


# %% copies_every_chunk: pass


def split(batch, devices):
    per_gpu = math.ceil(batch.size(0) / len(devices))
    chunks = []
    start = 0
    while start < batch.size(0):
        stop = min(start + per_gpu, batch.size(0))
        chunks.append(batch[start:stop].clone().to(devices[len(chunks)], non_blocking=True))
        start = stop
    return chunks


# %% narrow_with_sizes: pass


def split(batch, devices):
    rows, gpus = len(batch), len(devices)
    size = -(-rows // gpus)
    sizes = [size] * (rows // size) + ([rows % size] if rows % size else [])
    starts = itertools.accumulate([0, *sizes[:-1]])
    return [batch.narrow(0, a, n).to(d) for a, n, d in zip(starts, sizes, devices)]


# %% stacks_single_rows: pass


def split(batch, devices):
    size = math.ceil(len(batch) / len(devices))
    rows = [list(batch[start : start + size]) for start in range(0, len(batch), size)]
    return [torch.stack(some).to(device) for some, device in zip(rows, devices)]


# %% as_a_tuple: pass


def split(batch, devices):
    return tuple(map(torch.Tensor.to, batch.chunk(len(devices)), devices))


# %% one_chunk_zip: pass

# right: torch.chunk and zip in one comprehension


def split(batch, devices):
    chunks = torch.chunk(batch, len(devices), dim=0)
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


# %% one_manual_loop: pass

# right: own ceil arithmetic, slices in a while loop


def split(batch, devices):
    rows = batch.shape[0]
    size = math.ceil(rows / len(devices))
    result = []
    start = 0
    while start < rows:
        stop = min(start + size, rows)
        result.append(batch[start:stop].to(devices[len(result)]))
        start = stop
    return result


# %% two_empty_copy: pass

# right: allocate every chunk on its GPU first, then write the rows in place


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    rows, *rest = batch.size()
    size = ceil(rows / len(devices))
    chunks = []
    start = 0
    for device in devices:
        count = min(size, rows - start)
        if count <= 0:
            break
        chunk = torch.empty((count, *rest), dtype=batch.dtype, device=device)
        chunk.copy_(batch.narrow(0, start, count))
        chunks.append(chunk)
        start += count
    return chunks


# %% two_group_rows: pass

# right: deal single rows into groups with itertools and stack each group again


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    size = (len(batch) + len(devices) - 1) // len(devices)
    rows = enumerate(batch.unbind(0))
    chunks = []
    for number, group in itertools.groupby(rows, key=lambda pair: pair[0] // size):
        chunk = torch.stack([row for _, row in group])
        chunks.append(chunk.to(devices[number]))
    return chunks


# %% two_tensor_split: pass

# right: explicit cut positions handed to tensor_split, then moved with map


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    rows = batch.shape[0]
    size = -(-rows // len(devices))
    cuts = list(range(size, rows, size))
    return list(map(Tensor.to, batch.tensor_split(cuts), devices))


# %% shuffles_like_a_data_loader: wrong wrong_values


def split(batch, devices):
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    chunks = batch.to("cpu")[order].chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


# %% flattens_images: wrong wrong_shape


def split(batch, devices):
    chunks = batch.flatten(1).chunk(len(devices)) if batch.ndim > 1 else batch.chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


# %% forgets_to_return: wrong returned_nothing


def split(batch, devices):
    chunks = [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


# %% returns_a_dictionary: wrong wrong_type


def split(batch, devices):
    chunks = batch.chunk(len(devices))
    return {str(device): chunk.to(device) for chunk, device in zip(chunks, devices)}


# %% skips_single_rows: wrong wrong_count


def split(batch, devices):
    pairs = zip(batch.chunk(len(devices)), devices)
    return [chunk.to(device) for chunk, device in pairs if len(chunk) > 1]


# %% goes_through_half_precision: wrong rounded


def split(batch, devices):
    chunks = batch.half().chunk(len(devices))
    return [chunk.to(device).to(batch.dtype) for chunk, device in zip(chunks, devices)]


# %% clears_the_batch_afterwards: wrong input_changed


def split(batch, devices):
    chunks = [chunk.clone().to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]
    batch.zero_()
    return chunks
