# mistake: the flag goes to one neighbour only: right on 2 ranks, hangs or disagrees on 3
import torch
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    rank, world = dist.get_rank(), dist.get_world_size()
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        mine = torch.tensor([int(should_stop(loss.item()))])
        other = torch.zeros_like(mine)
        if world > 1:
            work = dist.isend(mine, (rank + 1) % world)
            dist.recv(other, (rank - 1) % world)
            work.wait()
        if mine.item() or other.item():
            return step
    return len(batches)
