# mistake: calls should_stop a second time in a step (one that counts its calls is misled)
import torch
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        stop = torch.tensor(int(should_stop(loss.item())))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop or should_stop(loss.item()):
            return step
    return len(batches)
