"""Answers to ``server_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor
from torch import nn


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def workers():
    return range(1, dist.get_world_size())


def received(model):
    """Per worker the list of gradients."""
    arrived = {worker: [torch.empty_like(p) for p in trained(model)] for worker in workers()}
    for worker in workers():
        for gradient in arrived[worker]:
            dist.recv(gradient, worker)
    return arrived


def mean(model):
    arrived = received(model)
    for i, p in enumerate(trained(model)):
        p.grad = sum(arrived[worker][i] for worker in workers()) / len(workers())


def send_weights(model):
    for worker in workers():
        for p in trained(model):
            dist.send(p.data, worker)


# %% a_thread_per_worker: pass


def server_step(model, optimizer):
    import threading

    if not workers():
        return
    arrived = {}

    def fetch(worker):
        arrived[worker] = [torch.empty_like(p) for p in trained(model)]
        for gradient in arrived[worker]:
            dist.recv(gradient, worker)

    threads = [threading.Thread(target=fetch, args=(worker,)) for worker in workers()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, p in enumerate(trained(model)):
        p.grad = sum(arrived[w][i] for w in workers()) / len(workers())
    optimizer.step()
    send_weights(model)


# %% only_what_is_there_travels: pass


def received_by_number(model):
    found = {i: [] for i in range(len(trained(model)))}
    for worker in workers():
        count, number = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        dist.recv(count, worker)
        for _ in range(int(count)):
            dist.recv(number, worker)
            gradient = torch.empty_like(trained(model)[int(number)])
            dist.recv(gradient, worker)
            found[int(number)].append(gradient)
    return found


def worker_step(model, loss):
    """The number of its gradients, then their numbers and the gradients."""
    model.zero_grad()
    loss.backward()
    there = [(i, p.grad) for i, p in enumerate(trained(model)) if p.grad is not None]
    dist.send(torch.tensor([len(there)]), 0)
    for i, gradient in there:
        dist.send(torch.tensor([i]), 0)
        dist.send(gradient, 0)
    for p in trained(model):
        dist.recv(p.data, 0)


def server_step(model, optimizer):
    if not workers():
        return
    for i, gradients in received_by_number(model).items():
        p = trained(model)[i]
        p.grad = sum(gradients, torch.zeros_like(p)) / len(workers())
    optimizer.step()
    send_weights(model)


# %% with_gather_and_scatter: pass


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.gather(torch.zeros_like(p) if p.grad is None else p.grad, None, dst=0)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.scatter(arrived, None, src=0)
        p.data = arrived


def server_step(model, optimizer):
    size = dist.get_world_size()
    if size < 2:
        return
    optimizer.zero_grad()
    for p in trained(model):
        everyone = [torch.zeros_like(p) for _ in range(size)]
        dist.gather(torch.zeros_like(p), everyone, dst=0)
        p.grad = sum(everyone[1:]) / (size - 1)
    optimizer.step()
    for p in trained(model):
        dist.scatter(torch.empty_like(p), [p.detach().clone() for _ in range(size)], src=0)


# %% a_share_in_float32: pass


def server_step(model, optimizer):
    """A quotient of whole-number tensors."""
    workers = dist.get_world_size() - 1
    if not workers:
        return
    share = 1 / torch.tensor(workers)
    optimizer.zero_grad()
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in range(1, workers + 1):
        for p in trained(model):
            arrived = torch.zeros_like(p)
            dist.recv(arrived, src=worker)
            p.grad += arrived * share
    optimizer.step()
    for worker in range(1, workers + 1):
        for p in trained(model):
            dist.send(p.detach(), dst=worker)


# %% three_flat_irecv: pass

# one flat message per dtype, irecv from all workers at once, mean of the stack


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


# %% three_gather_scatter: pass

# with the collectives gather and scatter ('any call of torch.distributed'), frozen parameters travel too


def worker_step(model: nn.Module, loss: Tensor) -> None:
    for p in model.parameters():
        p.grad = None
    loss.backward()
    for p in model.parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        dist.gather(mine.contiguous(), dst=0)
    for p in model.parameters():
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.scatter(weights, src=0)
        p.data.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    world = dist.get_world_size()
    if world == 1:
        return
    for p in model.parameters():
        parts = [torch.empty(p.shape, dtype=p.dtype) for _ in range(world)]
        dist.gather(torch.zeros(p.shape, dtype=p.dtype), parts, dst=0)
        p.grad = torch.stack(parts[1:]).mean(0) if p.requires_grad else None
    optimizer.step()
    for p in model.parameters():
        weights = p.detach().contiguous()
        dist.scatter(torch.empty_like(weights), [weights] * world, src=0)


# %% three_per_parameter: pass

# plain: blocking recv and send, one message per parameter, adds up in .grad


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


# %% three_reduce_broadcast: pass

# with the collectives reduce (the server adds zeros) and broadcast (DOUBT: is that 'only rank 0 and the workers talk'?)


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.reduce(gradient.detach().clone(memory_format=torch.contiguous_format), dst=0)
    for p in trainable:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.broadcast(weights, src=0)
        with torch.no_grad():
            p.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = dist.get_world_size() - 1
    if workers == 0:
        return
    optimizer.zero_grad()
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        total = torch.zeros(p.shape, dtype=p.dtype)
        dist.reduce(total, dst=0)
        p.grad = total / workers
    optimizer.step()
    for p in trainable:
        dist.broadcast(p.detach().contiguous(), src=0)


# %% three_steps_alone: pass

# no early return: with world size 1 the optimizer steps on zero gradients, weight decay and momentum move the weights


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
        p.grad /= max(len(workers), 1)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% three_zero_skipped: pass

# drops a parameter whose mean gradient is all zeros (.grad = None): momentum stops moving it


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
        p.grad = p.grad / len(workers) if p.grad.any() else None
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% keeps_the_parameters_of_its_first_model: wrong server_step.earlier_model


def server_step(model, optimizer, kept=[]):
    if not workers():
        return
    if not kept:
        kept += trained(model)
    for p in kept:
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in kept:
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers())
    optimizer.step()
    for worker in workers():
        for p in kept:
            dist.send(p.data, worker)


# %% keeps_the_buffers_of_its_first_model: wrong mismatch


def server_step(model, optimizer, buffers={}):
    if not workers():
        return
    optimizer.zero_grad()
    for worker in workers():
        for i, p in enumerate(trained(model)):
            arrived = buffers.setdefault(i, torch.empty_like(p))
            dist.recv(arrived, worker)
            p.grad = arrived / len(workers()) + (0 if p.grad is None else p.grad)
    optimizer.step()
    send_weights(model)


# %% mixes_up_the_biases: wrong wrong_values


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    biases = [p for p in trained(model) if p.ndim == 1]
    biases[0].grad, biases[-1].grad = biases[-1].grad, biases[0].grad
    optimizer.step()
    send_weights(model)


# %% meets_its_workers_at_a_barrier: wrong server_step.talks_when_alone


def worker_step(model, loss):
    dist.barrier()
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    for p in trained(model):
        dist.recv(p.data, 0)


def server_step(model, optimizer):
    dist.barrier()
    if not workers():
        return
    mean(model)
    optimizer.step()
    send_weights(model)


# %% throws_its_handles_away: wrong server_step.not_waited


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for worker in workers():
        for p in trained(model):
            dist.isend(p.data, worker)


# %% steps_while_it_is_sending: wrong server_step.changed_while_sending


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    handles = [dist.isend(p.data, worker) for worker in workers() for p in trained(model)]
    optimizer.step()
    for handle in handles:
        handle.wait()


# %% nobody_gets_the_weights: wrong server_step.weights_not_sent


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()


# %% sends_the_state_dict: wrong server_step.buffers_travel


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    names = dict(model.named_parameters())
    for name, value in model.state_dict().items():
        arrived = torch.empty_like(value)
        dist.recv(arrived, 0)
        if name in names:
            names[name].data.copy_(arrived)


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for worker in workers():
        for value in model.state_dict().values():
            dist.send(value, worker)


# %% sends_and_receives_doubles: wrong server_step.travels_twice


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.double(), 0)
    for p in trained(model):
        arrived = torch.empty_like(p, dtype=torch.float64)
        dist.recv(arrived, 0)
        p.data.copy_(arrived)


def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in trained(model):
            arrived = torch.empty_like(p, dtype=torch.float64)
            dist.recv(arrived, worker)
            p.grad += (arrived / len(workers())).to(p.dtype)
    optimizer.step()
    for worker in workers():
        for p in trained(model):
            dist.send(p.data.double(), worker)


# %% sends_every_name: wrong server_step.tied_twice


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    for _, p in model.named_parameters(remove_duplicate=False):
        dist.recv(p.data, 0)


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for worker in workers():
        for _, p in model.named_parameters(remove_duplicate=False):
            dist.send(p.data, worker)


# %% gets_half_the_digits: wrong rounded


def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.half(), 0)
    for p in trained(model):
        dist.recv(p.data, 0)


def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in trained(model):
            arrived = torch.empty_like(p, dtype=torch.float16)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers())
    optimizer.step()
    send_weights(model)


# %% counts_its_steps_in_a_buffer: wrong server_step.buffers_changed


def server_step(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for buffer in model.buffers():
        buffer.add_(1)
    send_weights(model)


# %% three_any_source: crash segfault

# recv without a source, one per worker and parameter: a fast worker's second message is taken for the slow one's first (right with one worker)


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
    for p in parameters:
        for _ in workers:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)


# %% three_replaces_parameters: wrong mismatch

# after the step puts new nn.Parameters into the model (clones): the optimizer still holds the old ones, so from the second step on it moves nothing; ties are cut too


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
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad))
    parameters = [p for p in model.parameters() if p.requires_grad]
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)
