"""Every collective once, and what it leaves on each rank.

torchrun --nproc_per_node 4 collectives.py
"""

import os

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group(backend="nccl")
rank, size = dist.get_rank(), dist.get_world_size()
ranks = range(size)

# Reductions
x = torch.full((2,), rank + 1.0).cuda()
dist.all_reduce(x, op=ReduceOp.SUM)
assert x.tolist() == [sum(r + 1.0 for r in ranks)] * 2
for op, expected in (
    (ReduceOp.AVG, sum(ranks) / size),
    (ReduceOp.MAX, size - 1),
    (ReduceOp.MIN, 0),
    (ReduceOp.PRODUCT, 0),
):
    x = torch.tensor([float(rank)], device="cuda")
    dist.all_reduce(x, op=op)
    assert x.item() == expected, (op, x)
x = torch.ones(1, device="cuda", dtype=torch.bfloat16)
work = dist.all_reduce(x, async_op=True)
work.wait()
assert x.item() == size
x = torch.tensor([rank], device="cuda")
dist.reduce(x, dst=0, op=ReduceOp.MAX)
if rank == 0:
    assert x.item() == size - 1

# From one to all, and back
x = torch.arange(3).cuda() if rank == 0 else torch.zeros(3, dtype=torch.long).cuda()
dist.broadcast(x, src=0)
assert x.tolist() == [0, 1, 2]
part = torch.empty(2).cuda()
parts = [torch.full((2,), float(r)).cuda() for r in ranks] if rank == 0 else None
dist.scatter(part, parts, src=0)
assert part.tolist() == [rank, rank]
gathered = [torch.empty(2).cuda() for _ in ranks] if rank == 0 else None
dist.gather(part, gathered, dst=0)
if rank == 0:
    assert [g[0].item() for g in gathered] == list(ranks)

# All to all
several = [torch.empty(2).cuda() for _ in ranks]
dist.all_gather(several, part)
whole = torch.empty(2 * size).cuda()
dist.all_gather_into_tensor(whole, part)
assert torch.equal(torch.cat(several), whole)
mine = torch.empty(2).cuda()
dist.reduce_scatter(mine, [s.clone() for s in several], op=ReduceOp.SUM)
assert mine.tolist() == [rank * size] * 2
dist.reduce_scatter_tensor(mine, whole, op=ReduceOp.AVG)
assert mine.tolist() == [rank, rank]
swapped = torch.empty(size).cuda()
dist.all_to_all_single(swapped, torch.arange(size).float().cuda() + 10 * rank)
assert swapped.tolist() == [10 * r + rank for r in ranks]
received = [torch.empty(1).cuda() for _ in ranks]
dist.all_to_all(received, list(swapped.split(1)))
assert torch.cat(received).tolist() == [10 * rank + r for r in ranks]
ragged = torch.empty(size * (rank + 1)).cuda()
counts = [r + 1 for r in ranks]
dist.all_to_all_single(ragged, torch.ones(sum(counts)).cuda(), [rank + 1] * size, counts)
assert ragged.sum().item() == size * (rank + 1)

# Objects, and groups
names = [None] * size
dist.all_gather_object(names, f"rank {rank}")
assert names == [f"rank {r}" for r in ranks]
shared = [{"lr": 0.1}, "adam"] if rank == 0 else [None, None]
dist.broadcast_object_list(shared, src=0, device=torch.device("cuda", local_rank))
assert shared == [{"lr": 0.1}, "adam"]
given = [None]
dist.scatter_object_list(given, [{"part": r} for r in ranks] if rank == 0 else None, src=0)
assert given == [{"part": rank}]
evens = dist.new_group([r for r in ranks if r % 2 == 0])
if rank % 2 == 0:
    x = torch.ones(1).cuda()
    dist.all_reduce(x, group=evens)
    assert x.item() == (size + 1) // 2
dist.barrier(device_ids=[local_rank])
if rank == 0:
    print(f"all collectives agree on {size} ranks")
dist.destroy_process_group()
