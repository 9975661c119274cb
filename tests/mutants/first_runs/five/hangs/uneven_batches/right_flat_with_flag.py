# style: gradients and a flag in one message; the step in which nobody had a batch is thrown away
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    params = list(model.parameters())
    sizes = [p.numel() for p in params]
    step = 0
    while True:
        flat = params[0].new_zeros(sum(sizes) + 1, requires_grad=False)
        if step < len(batches):
            inputs, targets = batches[step]
            loss = nn.functional.mse_loss(model(inputs), targets)
            grads = torch.autograd.grad(loss, params)
            flat[:-1] = torch.cat([g.reshape(-1) for g in grads])
            flat[-1] = 1
        dist.all_reduce(flat)
        if flat[-1] == 0:
            break
        flat /= flat[-1].clone()
        for p, part in zip(params, flat[:-1].split(sizes)):
            p.grad = part.view_as(p).clone()
        optimizer.step()
        step += 1
