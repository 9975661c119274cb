# torch.autograd.grad in place of backward (never touches .grad), one flat message per dtype
import torch
import torch.distributed as dist
from torch import Tensor, nn


def _trainable_by_dtype(model: nn.Module) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


@torch.no_grad()
def _unflat(flat: Tensor, targets: list[Tensor]) -> None:
    for target, piece in zip(targets, flat.split([t.numel() for t in targets]), strict=True):
        target.copy_(piece.view(target.shape))


def worker_step(model: nn.Module, loss: Tensor) -> None:
    groups = _trainable_by_dtype(model)
    flat_parameters = [p for group in groups for p in group]
    gradients = torch.autograd.grad(loss, flat_parameters, allow_unused=True)
    found = iter(gradients)
    for group in groups:
        mine = [torch.zeros_like(p) if g is None else g for p, g in zip(group, found)]
        dist.send(_flat(mine), dst=0)
    for group in groups:
        message = torch.empty(sum(p.numel() for p in group), dtype=group[0].dtype)
        dist.recv(message, src=0)
        _unflat(message, group)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    n_workers = dist.get_world_size() - 1
    if n_workers == 0:
        return
    model.zero_grad(set_to_none=True)
    groups = _trainable_by_dtype(model)
    for group in groups:
        template = _flat(group)
        inbox = [torch.empty_like(template) for _ in range(n_workers)]
        handles = [dist.irecv(box, src=w) for w, box in enumerate(inbox, start=1)]
        for handle in handles:
            handle.wait()
        gradients = [torch.empty_like(p) for p in group]
        _unflat(torch.stack(inbox).mean(0), gradients)
        for p, gradient in zip(group, gradients, strict=True):
            p.grad = gradient
    optimizer.step()
    outbox = [_flat(group) for group in groups]
    handles = [dist.isend(m, dst=w) for m in outbox for w in range(1, n_workers + 1)]
    for handle in handles:
        handle.wait()
