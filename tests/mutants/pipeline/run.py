"""Answers to ``run``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import queue
import threading

import torch
import torch.distributed as dist
from harness import right, wrong


def send_activation(tensor, dst):
    header = torch.tensor([tensor.dim(), *tensor.shape, *[0] * (7 - tensor.dim())])
    tensor = tensor.detach().contiguous()
    return [dist.isend(header, dst), dist.isend(tensor, dst)]


def receive_activation(src):
    header = torch.empty(8, dtype=torch.int64)
    dist.recv(header, src)
    shape = header[1 : 1 + int(header[0])].tolist()
    tensor = torch.empty(shape)
    dist.recv(tensor, src)
    return tensor.requires_grad_()


def pipeline(stage, row, microbatches, loss_fn, *, back=lambda gradient, m: gradient):
    """The right answer, unless ``back`` changes a gradient that arrives."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = [len(x) for x, _ in microbatches]
    held, sending, losses = {}, [], {}
    for action, m in row:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive_activation(rank - 1)
            out = stage(inp)
            if rank < world - 1:
                sending += send_activation(out, rank + 1)
            else:
                losses[m] = loss_fn(out, y)
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            if rank == world - 1:
                (losses[m] * len(x) / sum(rows)).backward()
                losses[m] = losses[m].item()
            else:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)
                out.backward(back(gradient, m))
            if rank > 0:
                sending.append(dist.isend(inp.grad, rank - 1))
    for handle in sending:
        handle.wait()
    if rank == world - 1:
        return sum(losses[m] * rows[m] for m in range(len(rows))) / sum(rows)


@wrong("returned_nothing")
def no_loss(stage, schedule, microbatches, loss_fn):
    pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn)


@wrong("returned_nothing")
def loss_to_rank_zero(stage, schedule, microbatches, loss_fn):
    loss = torch.tensor(pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn) or 0.0)
    dist.reduce(loss, dst=0)
    return loss.item() if dist.get_rank() == 0 and dist.get_world_size() < 1 else None


@wrong("run.schedule_ignored")
def always_from_the_first_to_the_last(stage, schedule, microbatches, loss_fn):
    counts, row = {"forward": 0, "backward": 0}, []
    for action, _ in schedule[dist.get_rank()]:
        row.append((action, counts[action]))
        counts[action] += 1
    return pipeline(stage, row, microbatches, loss_fn)


@wrong("run.wrong_microbatch_paired")
def gradient_of_the_oldest(stage, schedule, microbatches, loss_fn):
    """Takes the gradients as if the first micro-batch were always the next one back."""
    rank = dist.get_rank()
    waiting = []

    def back(gradient, m):
        waiting.append((m, gradient.clone()))
        return known[m] if m in known else gradient

    known = {}
    if rank < dist.get_world_size() - 1:
        backs = [m for action, m in schedule[rank] if action == "backward"]
        arrived = []

        def back(gradient, m):
            arrived.append(gradient.clone())
            return arrived[-2] if len(arrived) > 1 else gradient

    return pipeline(stage, schedule[rank], microbatches, loss_fn, back=back)


@wrong("refused_name")
def pytorchs_own(stage, schedule, microbatches, loss_fn):
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


@right
def objects(stage, schedule, microbatches, loss_fn):
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


@right
def shapes_first_gradients_by_hand(stage, schedule, microbatches, loss_fn):
    """All shapes travel once before the first action; autograd.grad instead of backward."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = list(stage.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    total = sum(len(x) for x, _ in microbatches)
    held, sending, loss_sum, shapes = {}, [], 0.0, {}
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            if rank == 0:
                inp = x
            else:
                if m not in shapes:
                    box = [None]
                    dist.recv_object_list(box, rank - 1)
                    shapes[m] = box[0]
                inp = torch.empty(shapes[m])
                dist.irecv(inp, rank - 1).wait()
                inp.requires_grad_()
            out = stage(inp)
            if rank < world - 1:
                dist.send_object_list([tuple(out.shape)], rank + 1) if False else None
                thread = threading.Thread(
                    target=lambda o=out.detach(): (
                        dist.send_object_list([tuple(o.shape)], rank + 1),
                        dist.send(o, rank + 1),
                    )
                )
                if sending:
                    sending[-1].join()
                thread.start()
                sending.append(thread)
            else:
                out = loss_fn(out, y)
                loss_sum += out.item() * len(x)
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            if rank < world - 1:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)
            else:
                gradient = torch.tensor(len(x) / total)
            wanted = parameters if rank == 0 else [inp, *parameters]
            found = list(torch.autograd.grad(out, wanted, gradient))
            if rank > 0:
                back = found.pop(0)
                handle = dist.isend(back, rank - 1)
                held["sent", m] = back, handle
            for own, new in zip(sums, found):
                own += new
    for thread in sending:
        thread.join()
    for key in [key for key in held if key[0] == "sent"]:
        held[key][1].wait()
    for p, own in zip(parameters, sums):
        p.grad = own if p.grad is None else p.grad + own
    return loss_sum / total if rank == world - 1 else None


@right
def receives_ahead(stage, schedule, microbatches, loss_fn):
    """Gradients are received in the background; the loss is a sum over rows, divided at the end."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total = sum(len(x) for x, _ in microbatches)
    order = iter([m for action, m in schedule[rank] if action == "backward"])
    held, sending, gradients, losses = {}, [], {}, []
    waiting = []
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive_activation(rank - 1)
            out = stage(inp)
            held[m] = inp, out
            if rank < world - 1:
                sending += send_activation(out, rank + 1)
        else:
            inp, out = held.pop(m)
            if rank == world - 1:
                loss = loss_fn(out, y) * len(x)
                losses.append(loss.item())
                torch.autograd.backward(loss / total)
            else:
                gradient = torch.empty_like(out)
                handle = dist.irecv(gradient, rank + 1)
                handle.wait()
                torch.autograd.backward([out], [gradient])
            if rank > 0:
                sending.append(dist.isend(inp.grad.clone(), rank - 1))
    [handle.wait() for handle in sending]
    return sum(losses) / total if rank == world - 1 else None
