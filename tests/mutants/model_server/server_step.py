"""Answers to ``server_step``: how learners get it wrong, and ways to get it right.

Where nothing else is said they talk to the solution's ``worker_step``.
"""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import beside, right, wrong


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


@wrong("server_step.earlier_model")
def keeps_the_parameters_of_its_first_model(model, optimizer, kept=[]):
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


@wrong("mismatch")
def keeps_the_buffers_of_its_first_model(model, optimizer, buffers={}):
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


@wrong("server_step.optimizer_not_used")
def forgets_the_step(model, optimizer):
    if not workers():
        return
    mean(model)
    send_weights(model)


@wrong("server_step.optimizer_not_used")
def clears_and_does_not_step(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.zero_grad()
    send_weights(model)


@wrong("server_step.no_gradients")
def puts_the_mean_nowhere(model, optimizer):
    if not workers():
        return
    arrived = received(model)
    for i, p in enumerate(trained(model)):
        gradient = p.grad
        gradient = sum(arrived[worker][i] for worker in workers()) / len(workers())
    optimizer.step()
    send_weights(model)


@wrong("server_step.optimizer_not_used")
def makes_its_own_optimizer(model, optimizer):
    if not workers():
        return
    mean(model)
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    send_weights(model)


@wrong("wrong_values")
def mixes_up_the_biases(model, optimizer):
    if not workers():
        return
    mean(model)
    biases = [p for p in trained(model) if p.ndim == 1]
    biases[0].grad, biases[-1].grad = biases[-1].grad, biases[0].grad
    optimizer.step()
    send_weights(model)


@wrong("server_step.moves_when_alone")
def divides_by_no_workers(model, optimizer):
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in trained(model):
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            p.grad += arrived
    for p in trained(model):
        p.grad /= torch.tensor(len(workers()), dtype=p.dtype)
    optimizer.step()
    send_weights(model)


def worker_with_a_barrier(model, loss):
    dist.barrier()
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    for p in trained(model):
        dist.recv(p.data, 0)


@wrong("server_step.talks_when_alone")
@beside(worker_step=worker_with_a_barrier)
def meets_its_workers_at_a_barrier(model, optimizer):
    dist.barrier()
    if not workers():
        return
    mean(model)
    optimizer.step()
    send_weights(model)


@wrong("server_step.not_waited")
def throws_its_handles_away(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for worker in workers():
        for p in trained(model):
            dist.isend(p.data, worker)


@wrong("server_step.not_waited")
def reads_before_it_has_come(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in trained(model):
            arrived = torch.zeros_like(p)
            dist.irecv(arrived, worker)
            p.grad += arrived / len(workers())
    optimizer.step()
    send_weights(model)


@wrong("server_step.changed_while_sending")
def steps_while_it_is_sending(model, optimizer):
    if not workers():
        return
    mean(model)
    handles = [dist.isend(p.data, worker) for worker in workers() for p in trained(model)]
    optimizer.step()
    for handle in handles:
        handle.wait()


def worker_that_sends_what_is_there(model, loss):
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


@wrong("server_step.missing_left_out")
@beside(worker_step=worker_that_sends_what_is_there)
def mean_of_those_that_came(model, optimizer):
    if not workers():
        return
    for i, gradients in received_by_number(model).items():
        trained(model)[i].grad = sum(gradients) / len(gradients) if gradients else None
    optimizer.step()
    send_weights(model)


@wrong("server_step.old_where_missing")
@beside(worker_step=worker_that_sends_what_is_there)
def keeps_what_came_last(model, optimizer):
    if not workers():
        return
    kept = server_step.__dict__.setdefault("kept", {})
    for worker in workers():
        count, number = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        dist.recv(count, worker)
        for _ in range(int(count)):
            dist.recv(number, worker)
            gradient = torch.empty_like(trained(model)[int(number)])
            dist.recv(gradient, worker)
            kept[worker, int(number)] = gradient
    for i, p in enumerate(trained(model)):
        own = [kept[w, i] for w in workers() if (w, i) in kept]
        p.grad = sum(own, torch.zeros_like(p)) / len(workers())
    optimizer.step()
    send_weights(model)


def worker_that_never_listens(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)


@wrong("server_step.weights_not_sent")
@beside(worker_step=worker_that_never_listens)
def nobody_gets_the_weights(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()


def worker_with_a_state(model, loss):
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


@wrong("server_step.buffers_travel")
@beside(worker_step=worker_with_a_state)
def sends_the_state_dict(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for worker in workers():
        for value in model.state_dict().values():
            dist.send(value, worker)


def worker_in_doubles(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.double(), 0)
    for p in trained(model):
        arrived = torch.empty_like(p, dtype=torch.float64)
        dist.recv(arrived, 0)
        p.data.copy_(arrived)


@wrong("server_step.travels_twice")
@beside(worker_step=worker_in_doubles)
def sends_and_receives_doubles(model, optimizer):
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


def worker_that_gets_every_name(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    for _, p in model.named_parameters(remove_duplicate=False):
        dist.recv(p.data, 0)


@wrong("server_step.tied_twice")
@beside(worker_step=worker_that_gets_every_name)
def sends_every_name(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for worker in workers():
        for _, p in model.named_parameters(remove_duplicate=False):
            dist.send(p.data, worker)


def worker_that_gets_all_copies(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(torch.zeros_like(p) if p.grad is None else p.grad, 0)
    for _ in workers():
        for p in trained(model):
            dist.broadcast(p.data, 0)


@wrong("server_step.travels_twice")
@beside(worker_step=worker_that_gets_all_copies)
def broadcasts_once_per_worker(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for _ in workers():
        for p in trained(model):
            dist.broadcast(p.data, 0)


def worker_in_half(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.half(), 0)
    for p in trained(model):
        dist.recv(p.data, 0)


@wrong("rounded")
@beside(worker_step=worker_in_half)
def gets_half_the_digits(model, optimizer):
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


@wrong("server_step.buffers_changed")
def counts_its_steps_in_a_buffer(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for buffer in model.buffers():
        buffer.add_(1)
    send_weights(model)


@right
def a_thread_per_worker(model, optimizer):
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


@right
@beside(worker_step=worker_that_sends_what_is_there)
def only_what_is_there_travels(model, optimizer):
    if not workers():
        return
    for i, gradients in received_by_number(model).items():
        p = trained(model)[i]
        p.grad = sum(gradients, torch.zeros_like(p)) / len(workers())
    optimizer.step()
    send_weights(model)


def worker_that_gathers(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.gather(torch.zeros_like(p) if p.grad is None else p.grad, None, dst=0)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.scatter(arrived, None, src=0)
        p.data = arrived


@right
@beside(worker_step=worker_that_gathers)
def with_gather_and_scatter(model, optimizer):
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


@wrong("wrong_values")
def goes_by_the_order_of_the_optimizer(model, optimizer):
    if not workers():
        return
    held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    arrived = received(model)
    for i, p in enumerate(held):
        gradients = [arrived[worker][i] for worker in workers()]
        p.grad = (sum(gradients) / len(gradients)).reshape(-1)[: p.numel()].expand(
            p.numel()
        ).view_as(p) + 0
    optimizer.step()
    send_weights(model)


@right
def a_share_in_float32(model, optimizer):
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


@wrong("rounded")
def adds_up_in_float32(model, optimizer):
    if not workers():
        return
    arrived = received(model)
    for i, p in enumerate(trained(model)):
        total = sum(arrived[worker][i].float() for worker in workers())
        p.grad = total.to(p.dtype) / len(workers())
    optimizer.step()
    send_weights(model)


@wrong("wrong_values")
def keeps_frozen_ones_as_float32(model, optimizer):
    if not workers():
        return
    mean(model)
    optimizer.step()
    for p in model.parameters():
        if not p.requires_grad:
            p.data.copy_(p.data.float())
    send_weights(model)
