"""Answers to ``run`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import queue
import threading
import torch
import torch.distributed as dist


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


# %% shapes_first_gradients_by_hand: pass


def run(stage, schedule, microbatches, loss_fn):
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


# %% receives_ahead: pass


def run(stage, schedule, microbatches, loss_fn):
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


# %% six_blocking_grad_only: pass

# style: activations by isend, gradients by send, which waits


def _send(tensor, to):
    shape = torch.tensor([tensor.dim(), *tensor.shape], dtype=torch.int64, device=tensor.device)
    return [
        (dist.isend(each, to), each)
        for each in (shape[:1].clone(), shape[1:].clone(), tensor.contiguous())
    ]


def _receive(source, device):
    dims = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(dims, source)
    shape = torch.empty(int(dims), dtype=torch.int64, device=device)
    dist.recv(shape, source)
    made = torch.empty(shape.tolist(), device=device)
    dist.recv(made, source)
    return made


def run(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    rows = sum(len(inputs) for inputs, _ in microbatches)
    device = microbatches[0][0].device
    held, pending, total = {}, [], 0.0
    for kind, m in schedule[rank]:
        if kind == "forward":
            if first:
                taken = microbatches[m][0]
            else:
                taken = _receive(rank - 1, device).requires_grad_()
            made = stage(taken)
            if last:
                made = loss_fn(made, microbatches[m][1]) * (len(microbatches[m][0]) / rows)
                total += made.item()
            else:
                pending += _send(made.detach(), rank + 1)
            held[m] = taken, made
        else:
            taken, made = held.pop(m)
            if last:
                made.backward()
            else:
                gradient = torch.empty_like(made)
                dist.recv(gradient, rank + 1)
                made.backward(gradient)
            if not first:
                grad = taken.grad.contiguous()
                dist.send(grad, rank - 1)
            del taken, made
    for handle, _ in pending:
        handle.wait()
    return total if last else None


# %% six_objects_and_clones: pass

# style: finds the shapes before, by a forward of one row


def run(stage, schedule, microbatches, loss_fn):
    """Shapes are found before, by a forward without gradients of one row; then no shape is sent."""
    rank, world = dist.get_rank(), dist.get_world_size()
    counts = [len(inputs) for inputs, _ in microbatches]
    weights = [count / sum(counts) for count in counts]
    # what comes in: told by the stage before, once for all micro-batches, in a list of shapes
    orders = [m for kind, m in schedule[rank] if kind == "forward"]
    shapes_in = {}
    held, losses, sending = {}, [], []

    def forward(m):
        if rank == 0:
            given = microbatches[m][0]
        else:
            header = torch.zeros(9, dtype=torch.int64)
            dist.recv(header, rank - 1, tag=0)
            shape = header[1 : 1 + int(header[0])].tolist()
            given = torch.empty(shape)
            dist.recv(given, rank - 1)
            given = given.to(microbatches[m][0].device).requires_grad_(True)
        out = stage(given)
        if rank < world - 1:
            header = torch.zeros(9, dtype=torch.int64)
            header[0] = out.dim()
            header[1 : 1 + out.dim()] = torch.tensor(out.shape)
            data = out.detach().cpu().contiguous()
            sending.append((dist.isend(header, rank + 1, tag=0), header))
            sending.append((dist.isend(data, rank + 1), data))
            held[m] = given, out
        else:
            loss = loss_fn(out, microbatches[m][1])
            losses.append(loss.detach() * weights[m])
            held[m] = given, loss

    def backward(m):
        given, out = held.pop(m)
        if rank == world - 1:
            torch.autograd.backward(out, torch.tensor(weights[m], device=out.device))
        else:
            gradient = torch.empty(out.shape)
            dist.recv(gradient, rank + 1)
            torch.autograd.backward(out, gradient.to(out.device))
        if rank > 0:
            data = given.grad.cpu().contiguous()
            sending.append((dist.isend(data, rank - 1), data))

    doing = {"forward": forward, "backward": backward}
    for kind, m in schedule[rank]:
        doing[kind](m)
    for work, _ in sending:
        work.wait()
    return float(sum(losses)) if rank == world - 1 else None


# %% six_keeps_loss_graph: pass

# mistake: adds up losses with their graphs


def _send(tensor, to):
    shape = torch.tensor([tensor.dim(), *tensor.shape], dtype=torch.int64, device=tensor.device)
    return [
        (dist.isend(each, to), each)
        for each in (shape[:1].clone(), shape[1:].clone(), tensor.contiguous())
    ]


def _receive(source, device):
    dims = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(dims, source)
    shape = torch.empty(int(dims), dtype=torch.int64, device=device)
    dist.recv(shape, source)
    made = torch.empty(shape.tolist(), device=device)
    dist.recv(made, source)
    return made


def run(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    rows = sum(len(inputs) for inputs, _ in microbatches)
    device = microbatches[0][0].device
    held, pending, total = {}, [], 0.0
    for kind, m in schedule[rank]:
        if kind == "forward":
            if first:
                taken = microbatches[m][0]
            else:
                taken = _receive(rank - 1, device).requires_grad_()
            made = stage(taken)
            if last:
                made = loss_fn(made, microbatches[m][1]) * (len(microbatches[m][0]) / rows)
                total = total + made
            else:
                pending += _send(made.detach(), rank + 1)
            held[m] = taken, made
        else:
            taken, made = held.pop(m)
            if last:
                made.backward()
            else:
                gradient = torch.empty_like(made)
                dist.recv(gradient, rank + 1)
                made.backward(gradient)
            if not first:
                grad = taken.grad.contiguous()
                pending.append((dist.isend(grad, rank - 1), grad))
            del taken, made
    for handle, _ in pending:
        handle.wait()
    return float(total) if last else None


# %% no_loss: wrong returned_nothing


def run(stage, schedule, microbatches, loss_fn):
    pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn)


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
