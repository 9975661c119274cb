"""Answers to ``split``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import itertools
import math

import torch
from harness import right, wrong


@wrong("split.remainder_dropped")
def floor_division(batch, devices):
    rows = max(1, len(batch) // len(devices))
    return [
        batch[i * rows : (i + 1) * rows].to(device)
        for i, device in enumerate(devices)
        if i * rows < len(batch)
    ]


@wrong("split.remainder_in_last")
def last_takes_the_rest(batch, devices):
    n = len(devices)
    rows = max(1, len(batch) // n)
    chunks = [batch[i * rows : (i + 1) * rows] for i in range(n - 1)] + [batch[(n - 1) * rows :]]
    return [chunk.to(device) for chunk, device in zip(chunks, devices) if len(chunk)]


@wrong("split.evened_out")
def like_array_split(batch, devices):
    chunks = torch.tensor_split(batch, len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices) if len(chunk)]


@wrong("split.strided_rows")
def deals_rows_like_cards(batch, devices):
    n = len(devices)
    return [batch[i::n].to(device) for i, device in enumerate(devices) if i < len(batch)]


@wrong("split.cut_columns")
def along_dimension_one(batch, devices):
    chunks = batch.chunk(len(devices), dim=1)
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("split.empty_chunks")
def always_one_chunk_per_gpu(batch, devices):
    rows = math.ceil(len(batch) / len(devices))
    return [batch[i * rows : (i + 1) * rows].to(device) for i, device in enumerate(devices)]


@wrong("split.left_on_cpu")
def forgets_to_move(batch, devices):
    return list(batch.chunk(len(devices)))


@wrong("split.left_on_cpu")
def throws_the_moved_chunk_away(batch, devices):
    chunks = list(batch.chunk(len(devices)))
    for chunk, device in zip(chunks, devices):
        chunk.to(device)
    return chunks


@wrong("split.all_on_one_gpu")
def moves_everything_to_the_first(batch, devices):
    return [chunk.to(devices[0]) for chunk in batch.chunk(len(devices))]


@wrong("split.counts_gpus_itself")
def ignores_the_order_of_devices(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.to(f"cuda:{i}") for i, chunk in enumerate(chunks)]


@wrong("split.wrong_gpu")
def fills_the_devices_from_behind(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, reversed(devices))]


@wrong("split.whole_batch_everywhere")
def forgets_to_cut(batch, devices):
    return [batch.to(device) for device in devices]


@wrong("split.one_row_per_chunk")
def takes_the_number_of_gpus_for_the_size(batch, devices):
    return [row.unsqueeze(0).to(device) for row, device in zip(batch, devices)]


@wrong("split.size_is_number_of_gpus")
def split_by_the_number_of_gpus(batch, devices):
    chunks = batch.split(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, itertools.cycle(devices))]


@wrong("split.too_many_chunks")
def rounds_down_and_adds_a_chunk(batch, devices):
    chunks = batch.split(max(1, len(batch) // len(devices)))
    return [chunk.to(device) for chunk, device in zip(chunks, itertools.cycle(devices))]


@wrong("split.counts_gpus_itself")
def asks_torch_how_many_gpus_there_are(batch, devices):
    n = torch.cuda.device_count()
    return [chunk.to(f"cuda:{i}") for i, chunk in enumerate(batch.chunk(n))]


@wrong("split.rows_reversed")
def last_rows_first(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(reversed(chunks), devices)]


@wrong("split.rows_repeated")
def chunks_overlap_by_one(batch, devices):
    rows = math.ceil(len(batch) / len(devices))
    starts = range(0, len(batch), rows)
    return [batch[s : s + rows + 1].to(device) for s, device in zip(starts, devices)]


@wrong("split.rows_missing")
def off_by_one_at_the_end(batch, devices):
    rows = math.ceil(len(batch) / len(devices))
    starts = range(0, len(batch), rows)
    return [batch[s : max(s + 1, s + rows - 1)].to(d) for s, d in zip(starts, devices)]


@wrong("split.shuffled")
def shuffles_like_a_data_loader(batch, devices):
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    chunks = batch.to("cpu")[order].chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("split.dtype_changed")
def makes_floats_of_labels(batch, devices):
    return [chunk.float().to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@wrong("split.shape_changed")
def flattens_images(batch, devices):
    chunks = batch.flatten(1).chunk(len(devices)) if batch.ndim > 1 else batch.chunk(len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("split.shape_changed")
def stacks_the_chunks_with_a_dimension_more(batch, devices):
    chunks = batch.chunk(len(devices))
    return [chunk.unsqueeze(0).to(device) for chunk, device in zip(chunks, devices)]


@wrong("split.returned_nothing")
def forgets_to_return(batch, devices):
    chunks = [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@wrong("split.not_a_list")
def returns_the_first_chunk_only(batch, devices):
    for chunk, device in zip(batch.chunk(len(devices)), devices):
        return chunk.to(device)


@wrong("split.not_a_list")
def returns_a_dictionary(batch, devices):
    chunks = batch.chunk(len(devices))
    return {str(device): chunk.to(device) for chunk, device in zip(chunks, devices)}


@wrong("split.not_tensors")
def pairs_each_chunk_with_its_device(batch, devices):
    chunks = batch.chunk(len(devices))
    return [(chunk.to(device), device) for chunk, device in zip(chunks, devices)]


@wrong("split.values_changed")
def new_tensors_that_stay_empty(batch, devices):
    sizes = [len(chunk) for chunk in batch.chunk(len(devices))]
    return [
        torch.full((size, *batch.shape[1:]), -1, dtype=batch.dtype, device=device)
        for size, device in zip(sizes, devices)
    ]


@wrong("split.not_a_list")
def returns_a_generator(batch, devices):
    return (chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices))


@wrong("split.remainder_dropped")
def takes_the_first_full_chunks(batch, devices):
    chunks = batch.split(len(batch) // len(devices))
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]


@wrong("split.no_chunks")
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


@wrong("split.shape_changed")
def makes_a_column_of_labels(batch, devices):
    if batch.ndim == 1:
        return [batch.unsqueeze(1).to(devices[0])]
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


@wrong("split.values_changed")
def goes_through_half_precision(batch, devices):
    chunks = batch.half().chunk(len(devices))
    return [chunk.to(device).to(batch.dtype) for chunk, device in zip(chunks, devices)]


@wrong("split.values_changed")
def goes_through_double_precision(batch, devices):
    chunks = batch.double().chunk(len(devices))
    return [chunk.to(device).to(batch.dtype) for chunk, device in zip(chunks, devices)]


@wrong("split.batch_changed")
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
