# style: asks before the step; the flag travels in one vector with the gradients
import torch
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    params = list(model.parameters())
    done = 0
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        grads = torch.autograd.grad(loss, params)
        vote = grads[0].new_tensor([1.0 if should_stop(float(loss)) else 0.0])
        flat = torch.cat([*(g.reshape(-1) for g in grads), vote])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for p in params:
            p.grad = flat[start : start + p.numel()].view_as(p)
            start += p.numel()
        optimizer.step()
        done += 1
        if flat[-1] > 0:
            break
    return done
