"""Answers to ``split`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
from math import ceil
from torch import Tensor


# %% torch_split_with_a_loop: pass
def split(batch, devices):
    result = []
    size = (batch.shape[0] + len(devices) - 1) // len(devices)
    for i, piece in enumerate(torch.split(batch, size)):
        result.append(piece.cuda(devices[i]))
    return result


# %% empty_chunks_that_are_filled: pass
def split(batch, devices):
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


# %% tensor_split_at_places: pass
def split(batch, devices):
    rows = batch.shape[0]
    size = -(-rows // len(devices))
    cuts = list(range(size, rows, size))
    return list(map(Tensor.to, batch.tensor_split(cuts), devices))


# %% flattens_images: wrong wrong_shape
def split(batch, devices):
    chunks = batch.flatten(1).chunk(len(devices)) if batch.ndim > 1 else batch.chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


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
