"""Answers to ``run`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import queue
import threading
import torch
import torch.distributed as dist
from exercises.pipeline.run import pipeline, receive_activation, send_activation


# %% objects: pass
def run(stage, schedule, microbatches, loss_fn):
    """Pickled tensors know their shape.  A thread sends, in the order in which it is asked."""
    rank, world = dist.get_rank(), dist.get_world_size()
    up, down = queue.Queue(), queue.Queue()

    def courier(box, dst):
        while (tensor := box.get()) is not None:
            dist.send_object_list([tensor], dst)

    threads = []
    if rank < world - 1:
        threads.append(threading.Thread(target=courier, args=(up, rank + 1)))
    if rank > 0:
        threads.append(threading.Thread(target=courier, args=(down, rank - 1)))
    for thread in threads:
        thread.start()

    def receive(src):
        box = [None]
        dist.recv_object_list(box, src)
        return box[0]

    total, loss_sum, held = sum(len(x) for x, _ in microbatches), 0.0, {}
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive(rank - 1).requires_grad_()
            out = stage(inp)
            if rank < world - 1:
                up.put(out.detach())
            else:
                out = loss_fn(out, y) * len(x) / total
                loss_sum += out.item()
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            out.backward(None if rank == world - 1 else receive(rank + 1))
            if rank > 0:
                down.put(inp.grad)
    up.put(None)
    down.put(None)
    for thread in threads:
        thread.join()
    return loss_sum if rank == world - 1 else None


# %% gradients_by_hand: pass
def run(stage, schedule, microbatches, loss_fn):
    """autograd.grad instead of backward, and .grad is set once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = list(stage.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    total = sum(len(x) for x, _ in microbatches)
    held, sending, loss_sum = {}, [], 0.0
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive_activation(rank - 1)
            out = stage(inp)
            if rank < world - 1:
                sending += send_activation(out, rank + 1)
            else:
                out = loss_fn(out, y)
                loss_sum += out.item() * len(x)
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            gradient = torch.empty_like(out) if rank < world - 1 else torch.tensor(len(x) / total)
            if rank < world - 1:
                dist.irecv(gradient, rank + 1).wait()
            wanted = parameters if rank == 0 else [inp, *parameters]
            found = list(torch.autograd.grad(out, wanted, gradient))
            if rank > 0:
                sending.append(dist.isend(found.pop(0), rank - 1))
            for own, new in zip(sums, found):
                own += new
    for handle in sending:
        handle.wait()
    for p, own in zip(parameters, sums):
        p.grad = own if p.grad is None else p.grad + own
    return loss_sum / total if rank == world - 1 else None


# %% blocking_gradients: pass
def run(stage, schedule, microbatches, loss_fn):
    """Activations by isend, gradients by send, which waits."""

    def send(gradient, dst):
        dist.send(gradient.contiguous(), dst)
        return []

    return pipeline(stage, schedule, microbatches, loss_fn, send=send)


# %% no_loss: wrong returned_nothing
def run(stage, schedule, microbatches, loss_fn):
    pipeline(stage, schedule, microbatches, loss_fn)


# %% pytorchs_own: wrong refused_name
def run(stage, schedule, microbatches, loss_fn):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    own = PipelineStage(stage, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(own, len(microbatches), loss_fn=loss_fn)
    x = torch.cat([x for x, _ in microbatches])
    y = torch.cat([y for _, y in microbatches])
    losses = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
    return sum(l.item() for l in losses) / len(losses) if rank == world - 1 else None
