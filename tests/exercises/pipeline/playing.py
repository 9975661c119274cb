"""Follows a schedule on real ranks: the checker's own player, for tables that a learner made.

Every stage is one layer, and all activations have one shape.  Messages between two ranks carry no
number: they pair up in the order in which the two rows name them.
"""

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.comparing import seeded
from multigpu.ranks import rank_device

WIDTH, ROWS = 3, 2


def layer_of(stage):
    return seeded(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double(), stage)


def rows_of(num_microbatches):
    """Inputs of all micro-batches: (micro-batches, ROWS, WIDTH)."""
    generator = torch.Generator().manual_seed(num_microbatches)
    shape = (num_microbatches, ROWS, WIDTH)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def loss_of(outputs):
    return outputs.square().sum()


def drive(submission, function, sizes):
    """Ask for each schedule and play it; the gradients of this rank's layer, per schedule."""
    results = []
    for num_microbatches in sizes:
        table = getattr(submission, function)(dist.get_world_size(), num_microbatches)
        results.append(play(table[dist.get_rank()], num_microbatches))
    return results


def play(row, num_microbatches):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    inputs, layer = rows_of(num_microbatches).to(place), layer_of(rank).to(place)
    held, sent = {}, []
    for kind, m in row:
        if kind == "forward":
            given = inputs[m].clone() if rank == 0 else arriving(inputs[m], rank - 1)
            made = layer(given.requires_grad_())
            held[m] = given, made
            if rank < last:
                sent.append(dist.isend(made.detach(), rank + 1))
        else:
            given, made = held.pop(m)
            if rank < last:
                made.backward(arriving(made, rank + 1))
            else:
                loss_of(made).backward()
            if rank > 0:
                sent.append(dist.isend(given.grad, rank - 1))
    for message in sent:
        assert message is not None  # it would be None on a rank outside of the group
        message.wait()
    return [parameter.grad for parameter in layer.parameters()]


def arriving(like, source):
    tensor = torch.empty_like(like)
    dist.recv(tensor, source)
    return tensor.detach()


def right_gradients(num_stages, num_microbatches):
    """Per stage, from the whole batch in one process."""
    layers = [layer_of(stage) for stage in range(num_stages)]
    loss_of(nn.Sequential(*layers)(rows_of(num_microbatches).flatten(0, 1))).backward()
    return [[parameter.grad for parameter in layer.parameters()] for layer in layers]
