# mistake: "mine or all_reduce": a rank that wants to stop skips the call, the others wait
import torch
import torch.distributed as dist
from torch import nn


def _anyone():
    flag = torch.zeros(1)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return flag.item() > 0


def early_stop(model, batches, optimizer, should_stop) -> int:
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        if should_stop(loss.item()) or _anyone():
            return step
    return len(batches)
