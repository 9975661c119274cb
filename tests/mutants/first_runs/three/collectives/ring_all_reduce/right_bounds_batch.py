# chunk bounds by hand, batch_isend_irecv, empty messages left out
import torch
import torch.distributed as dist
from torch import Tensor


def _pass_on(out: Tensor, into: Tensor, right: int, left: int) -> None:
    ops = []
    if out.numel():
        ops.append(dist.P2POp(dist.isend, out, right))
    if into.numel():
        ops.append(dist.P2POp(dist.irecv, into, left))
    if ops:
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def ring_all_reduce(tensor: Tensor) -> None:
    n, me = dist.get_world_size(), dist.get_rank()
    flat = tensor.detach().view(-1)
    size = flat.numel()
    step_size = -(-size // n)
    parts = [flat[min(i * step_size, size) : min((i + 1) * step_size, size)] for i in range(n)]
    left, right = (me - 1) % n, (me + 1) % n

    for s in range(n - 1):
        here = parts[(me - s - 1) % n]
        arrived = torch.zeros_like(here)
        _pass_on(parts[(me - s) % n], arrived, right, left)
        here.add_(arrived)
    for s in range(n - 1):
        _pass_on(parts[(me + 1 - s) % n], parts[(me - s) % n], right, left)
