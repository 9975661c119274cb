"""Answers to ``worker_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor
from torch import nn


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradient(p):
    return torch.zeros_like(p) if p.grad is None else p.grad


def receive_weights(model):
    for p in trained(model):
        dist.recv(p.data, src=0)


# %% with_autograd_grad: pass


def worker_step(model, loss):
    found = torch.autograd.grad(loss, trained(model), allow_unused=True)
    for p, g in zip(trained(model), found):
        dist.send(torch.zeros_like(p) if g is None else g.contiguous(), 0)
    with torch.no_grad():
        for p in trained(model):
            arrived = torch.zeros(p.shape, dtype=p.dtype)
            dist.recv(arrived, 0)
            p.copy_(arrived)


# %% in_one_message: pass


def server_step(model, optimizer):
    """One message per worker, all parameters in a row."""
    workers = dist.get_world_size() - 1
    if workers == 0:
        return
    parameters = list(model.parameters())
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, dtype=parameters[0].dtype)
    arrived = torch.empty_like(total)
    for _ in range(workers):
        dist.recv(arrived)
        total += arrived
    total /= workers
    for p, g in zip(parameters, total.split([p.numel() for p in parameters])):
        p.grad = g.view_as(p) if p.requires_grad else None
    optimizer.step()
    weights = nn.utils.parameters_to_vector(parameters).detach()
    for worker in range(1, workers + 1):
        dist.send(weights, worker)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    parameters = list(model.parameters())
    flat = torch.cat([gradient(p).reshape(-1) for p in parameters])
    dist.send(flat, 0)
    dist.recv(flat, 0)
    nn.utils.vector_to_parameters(flat, parameters)


# %% with_reduce_and_broadcast: pass


def server_step(model, optimizer):
    if dist.get_world_size() == 1:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.reduce(p.grad, dst=0)
        p.grad.div_(dist.get_world_size() - 1)
    optimizer.step()
    for p in trained(model):
        dist.broadcast(p.data, src=0)


def worker_step(model, loss):
    model.zero_grad(set_to_none=False)
    loss.backward()
    for p in trained(model):
        dist.reduce(gradient(p).clone(), dst=0)
    for p in trained(model):
        dist.broadcast(p.data, src=0)


# %% with_objects: pass


def server_step(model, optimizer):
    size = dist.get_world_size()
    if size == 1:
        return
    everyone = [None] * size
    dist.gather_object(None, everyone, dst=0)
    for name, p in model.named_parameters():
        if p.requires_grad:
            sent = [grads[name] for grads in everyone[1:] if name in grads]
            p.grad = sum(sent, torch.zeros_like(p)) / (size - 1)
    optimizer.step()
    dist.broadcast_object_list([{n: p.detach() for n, p in model.named_parameters()}], src=0)


def worker_step(model, loss):
    """Only the gradients that are there, in a dict."""
    model.zero_grad()
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    dist.gather_object(grads, dst=0)
    weights = [None]
    dist.broadcast_object_list(weights, src=0)
    model.load_state_dict(weights[0], strict=False)


# %% with_flags: pass


def server_step(model, optimizer):
    """First a flag for each parameter, then only the gradients that are there."""
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad(set_to_none=True)
    for worker in workers:
        flags = torch.zeros(len(trained(model)), dtype=torch.bool)
        dist.recv(flags, worker)
        for p, flag in zip(trained(model), flags):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if flag:
                arrived = torch.empty_like(p)
                dist.recv(arrived, worker)
                p.grad.add_(arrived, alpha=1 / len(workers))
    optimizer.step()
    for p in trained(model):
        handles = [dist.isend(p.data, worker) for worker in workers]
        for handle in handles:
            handle.wait()


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    flags = torch.tensor([p.grad is not None for p in trained(model)])
    dist.send(flags, 0)
    for p in trained(model):
        if p.grad is not None:
            dist.send(p.grad, 0)
    receive_weights(model)


# %% with_lists_of_objects: pass


def server_step(model, optimizer):
    """Objects from each worker, and objects to all of them."""
    size = dist.get_world_size()
    if size == 1:
        return
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for worker in range(1, size):
        arrived = [None]
        dist.recv_object_list(arrived, src=worker)
        for total, gradient in zip(sums, arrived[0]):
            if gradient is not None:
                total += gradient
    for p, total in zip(model.parameters(), sums):
        p.grad = total / (size - 1) if p.requires_grad else None
    optimizer.step()
    weights = [p.detach() for p in model.parameters()]
    dist.scatter_object_list([None], [weights] * size, src=0)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    dist.send_object_list([[p.grad for p in model.parameters()]], dst=0)
    weights = [None]
    dist.scatter_object_list(weights, None, src=0)
    for p, w in zip(model.parameters(), weights[0]):
        p.data[...] = w


# %% in_a_group_of_two: pass


def server_step(model, optimizer):
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    groups = [dist.new_group([0, worker]) for worker in workers]
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        for worker, group in zip(workers, groups):
            arrived = torch.empty_like(p)
            dist.broadcast(arrived, src=worker, group=group)
            p.grad += arrived / len(workers)
    optimizer.step()
    for p in trained(model):
        for group in groups:
            dist.broadcast(p.data, src=0, group=group)


def worker_step(model, loss):
    workers = range(1, dist.get_world_size())
    group = [dist.new_group([0, worker]) for worker in workers][dist.get_rank() - 1]
    loss.backward()
    for p in trained(model):
        dist.broadcast(gradient(p), src=dist.get_rank(), group=group)
        p.grad = None
    for p in trained(model):
        dist.broadcast(p.data, src=0, group=group)


# %% three_autograd_flat: pass

# torch.autograd.grad in place of backward (never touches .grad), one flat message per dtype


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


# %% three_hooks_tags: pass

# unusual: each gradient leaves while backward still runs (post-accumulate-grad hooks), told apart by tags


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


# %% three_per_parameter: pass

# plain: blocking send and recv, one message per parameter, frozen ones stay at home


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.detach().contiguous(), 0)
    for p in parameters:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.recv(weights, 0)
        with torch.no_grad():
            p.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in parameters:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient, worker)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% three_vector_utils: pass

# one flat vector with parameters_to_vector, the same buffer goes up and down (DOUBT: several dtypes in one model would be widened)


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad(set_to_none=False)  # there may be Nones, they are handled below
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    gradients = [g.contiguous() for g in gradients]
    vector = nn.utils.parameters_to_vector(gradients)
    dist.send(vector.detach(), 0)
    dist.recv(vector, 0)
    start = 0
    with torch.no_grad():
        for p in parameters:
            p.copy_(vector[start : start + p.numel()].view_as(p))
            start += p.numel()


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    world = dist.get_world_size()
    if world == 1:
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros_like(
        nn.utils.parameters_to_vector([p.contiguous() for p in parameters])
    ).detach()
    message = torch.empty_like(total)
    for worker in range(1, world):
        dist.recv(message, worker)
        total += message
    total /= world - 1
    model.zero_grad()
    start = 0
    for p in parameters:
        p.grad = total[start : start + p.numel()].view_as(p).to(p.dtype)
        start += p.numel()
    optimizer.step()
    vector = nn.utils.parameters_to_vector([p.contiguous() for p in parameters]).detach()
    for worker in range(1, world):
        dist.send(vector, worker)


# %% three_clears_after: pass

# clears .grad after the step only: what was there before the first step counts


def worker_step(model: nn.Module, loss: Tensor) -> None:
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.detach().contiguous(), 0)
    for p in parameters:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.recv(weights, 0)
        with torch.no_grad():
            p.copy_(weights)
    model.zero_grad()


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in parameters:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient, worker)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% three_not_contiguous: pass

# sends p.grad and receives into p.data as they are: fails for weights that are not contiguous (transposed, channels_last)


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    for p in parameters:
        dist.recv(p.data, 0)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in parameters:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient, worker)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% three_vector_view: pass

# parameters_to_vector on the gradients as they are: its view(-1) fails for weights that are not contiguous (in both functions; DOUBT: the docstring does not say that there may be such weights)


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad(set_to_none=False)  # there may be Nones, they are handled below
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    vector = nn.utils.parameters_to_vector(gradients)
    dist.send(vector.detach(), 0)
    dist.recv(vector, 0)
    start = 0
    with torch.no_grad():
        for p in parameters:
            p.copy_(vector[start : start + p.numel()].view_as(p))
            start += p.numel()


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    world = dist.get_world_size()
    if world == 1:
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros_like(nn.utils.parameters_to_vector(parameters)).detach()
    message = torch.empty_like(total)
    for worker in range(1, world):
        dist.recv(message, worker)
        total += message
    total /= world - 1
    model.zero_grad()
    start = 0
    for p in parameters:
        p.grad = total[start : start + p.numel()].view_as(p).to(p.dtype)
        start += p.numel()
    optimizer.step()
    vector = nn.utils.parameters_to_vector(parameters).detach()
    for worker in range(1, world):
        dist.send(vector, worker)


# %% keeps_the_parameters_of_its_first_model: wrong worker_step.earlier_model


def worker_step(model, loss, kept=[]):
    if not kept:
        kept += trained(model)
    model.zero_grad()
    loss.backward()
    for p in kept:
        dist.send(gradient(p), 0)
    for p in kept:
        dist.recv(p.data, src=0)


# %% puts_plain_tensors_in_their_place: hang deadlock


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    names = {id(p): name for name, p in model.named_parameters()}
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        module, _, name = names[id(p)].rpartition(".")
        delattr(model.get_submodule(module), name)
        setattr(model.get_submodule(module), name, arrived)


# %% throws_its_handles_away: wrong worker_step.not_waited


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.isend(gradient(p), 0)
    receive_weights(model)


# %% clears_while_it_is_sending: wrong worker_step.changed_while_sending


def worker_step(model, loss):
    loss.backward()
    grads = [gradient(p) for p in trained(model)]
    handles = [dist.isend(g, 0) for g in grads]
    for g in grads:
        g.zero_()
    for handle in handles:
        handle.wait()
    receive_weights(model)


# %% loads_the_whole_state: wrong worker_step.buffers_changed


def server_step(model, optimizer):
    """Receives the gradients and sends the whole state."""
    workers = range(1, dist.get_world_size())
    optimizer.zero_grad()
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in trained(model):
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers)
    if workers:
        optimizer.step()
        dist.broadcast_object_list([model.state_dict()], 0)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    state = [None]
    dist.broadcast_object_list(state, 0)
    model.load_state_dict(state[0])


# %% gets_the_whole_state_and_keeps_the_parameters: wrong server_step.buffers_travel


def server_step(model, optimizer):
    """Receives the gradients and sends the whole state."""
    workers = range(1, dist.get_world_size())
    optimizer.zero_grad()
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in trained(model):
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers)
    if workers:
        optimizer.step()
        dist.broadcast_object_list([model.state_dict()], 0)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    state = [None]
    dist.broadcast_object_list(state, 0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(state[0][name])


# %% sends_every_name: wrong worker_step.tied_twice


def server_step(model, optimizer):
    """Every parameter under each of its names."""
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers:
        seen = set()
        for _, p in model.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                arrived = torch.empty_like(p)
                dist.recv(arrived, worker)
                if id(p) not in seen:
                    p.grad += arrived / len(workers)
                seen.add(id(p))
    optimizer.step()
    for worker in workers:
        for p in trained(model):
            dist.send(p.data, worker)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            dist.send(gradient(p), 0)
    receive_weights(model)


# %% sends_gradients_and_weights: wrong worker_step.travels_twice


def server_step(model, optimizer):
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        for worker in workers:
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            dist.recv(torch.empty_like(p), worker)
            p.grad += arrived / len(workers)
    optimizer.step()
    for p in trained(model):
        for worker in workers:
            dist.send(p.data, worker)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
        dist.send(p.data, 0)
    receive_weights(model)


# %% adds_up_along_the_workers: wrong worker_step.between_workers


def server_step(model, optimizer):
    workers = dist.get_world_size() - 1
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.recv(p.grad, 1)
        p.grad /= workers
    optimizer.step()
    for p in trained(model):
        for worker in range(1, workers + 1):
            dist.send(p.data, worker)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    rank = dist.get_rank()
    for p in trained(model):
        total = gradient(p).clone()
        if rank < dist.get_world_size() - 1:
            arrived = torch.empty_like(p)
            dist.recv(arrived, rank + 1)
            total += arrived
        dist.send(total, rank - 1)
    receive_weights(model)


# %% all_reduces: wrong server_step.gradients_sent_down


def server_step(model, optimizer):
    workers = dist.get_world_size() - 1
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= workers
    optimizer.step()
    for p in trained(model):
        dist.broadcast(p.data, 0)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        g = gradient(p)
        dist.all_reduce(g)
    for p in trained(model):
        dist.broadcast(p.data, 0)


# %% goes_through_files: wrong worker_step.no_message


def server_step(model, optimizer):
    import os
    import time

    workers = range(1, dist.get_world_size())
    if not workers:
        return
    server_step.steps = getattr(server_step, "steps", 0) + 1
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    folder = os.environ.get("TMPDIR", "/tmp")
    run = os.getppid()
    for worker in workers:
        path = f"{folder}/grads {run} {worker} {server_step.steps}"
        while not os.path.exists(path):
            time.sleep(0.001)
        for p, g in zip(trained(model), torch.load(path)):
            p.grad += g / len(workers)
        os.remove(path)
    optimizer.step()
    for worker in workers:
        torch.save([p.data for p in trained(model)], f"{folder}/w {run} {worker}.part")
        os.rename(f"{folder}/w {run} {worker}.part", f"{folder}/w {run} {worker}")


def worker_step(model, loss):
    import os
    import time

    model.zero_grad()
    loss.backward()
    worker_step.steps = getattr(worker_step, "steps", 0) + 1
    folder = os.environ.get("TMPDIR", "/tmp")
    run, rank = os.getppid(), dist.get_rank()
    path = f"{folder}/grads {run} {rank} {worker_step.steps}"
    torch.save([gradient(p) for p in trained(model)], path + ".part")
    os.rename(path + ".part", path)
    while not os.path.exists(f"{folder}/w {run} {rank}"):
        time.sleep(0.001)
    for p, w in zip(trained(model), torch.load(f"{folder}/w {run} {rank}")):
        p.data.copy_(w)
    os.remove(f"{folder}/w {run} {rank}")


# %% sends_gradients_as_float32: wrong rounded


def server_step(model, optimizer):
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    for worker in workers:
        for p in trained(model):
            arrived = torch.empty_like(p, dtype=torch.float32)
            dist.recv(arrived, worker)
            p.grad = gradient(p) + arrived / len(workers)
    optimizer.step()
    for worker in workers:
        for p in trained(model):
            dist.send(p.data, worker)


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p).float(), 0)
    receive_weights(model)


# %% three_none_crashes: crash exception

# takes it for granted that every parameter has a gradient


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        dist.send(p.grad.contiguous(), 0)
    for p in parameters:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.recv(weights, 0)
        with torch.no_grad():
            p.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in parameters:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient, worker)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% three_none_sends_weights: wrong wrong_values

# for a parameter without gradient sends the parameter itself


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        gradient = p if p.grad is None else p.grad
        dist.send(gradient.detach().contiguous(), 0)
    for p in parameters:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.recv(weights, 0)
        with torch.no_grad():
            p.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in parameters:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient, worker)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)
