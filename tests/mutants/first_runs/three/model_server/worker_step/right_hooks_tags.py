# unusual: each gradient leaves while backward still runs (post-accumulate-grad hooks), told apart by tags
import torch
import torch.distributed as dist
from torch import Tensor, nn


def worker_step(model: nn.Module, loss: Tensor) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    outbox: dict[int, Tensor] = {}
    handles = []

    def send(index: int, gradient: Tensor) -> None:
        outbox[index] = gradient.detach().clone(memory_format=torch.contiguous_format)
        handles.append(dist.isend(outbox[index], dst=0, tag=index))

    hooks = []
    for index, p in enumerate(parameters):
        p.grad = None
        hooks.append(p.register_post_accumulate_grad_hook(lambda p, i=index: send(i, p.grad)))
    try:
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    for index, p in enumerate(parameters):
        if index not in outbox:
            send(index, torch.zeros_like(p))
    for handle in handles:
        handle.wait()

    inbox = [torch.empty(p.shape, dtype=p.dtype) for p in parameters]
    for handle in [dist.irecv(box, src=0, tag=index) for index, box in enumerate(inbox)]:
        handle.wait()
    with torch.no_grad():
        for p, box in zip(parameters, inbox, strict=True):
            p.copy_(box)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    n = dist.get_world_size() - 1
    if n < 1:
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    inbox = {
        (w, i): torch.empty(p.shape, dtype=p.dtype)
        for w in range(1, n + 1)
        for i, p in enumerate(parameters)
    }
    for handle in [dist.irecv(box, src=w, tag=i) for (w, i), box in inbox.items()]:
        handle.wait()
    optimizer.zero_grad(set_to_none=True)
    for i, p in enumerate(parameters):
        p.grad = sum(inbox[w, i] for w in range(1, n + 1)) / n
    optimizer.step()
    outbox = [p.detach().clone(memory_format=torch.contiguous_format) for p in parameters]
    handles = [
        dist.isend(weights, dst=w, tag=i)
        for w in range(1, n + 1)
        for i, weights in enumerate(outbox)
    ]
    for handle in handles:
        handle.wait()
