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


def pipeline(
    stage,
    row,
    microbatches,
    loss_fn,
    *,
    weight=None,
    given=lambda tensor: tensor,
    back=lambda gradient, m: gradient,
    keep=False,
    held=None,
    loss_of=lambda losses, rows: sum(l * n for l, n in zip(losses, rows)) / sum(rows),
):
    """The right answer, unless an option says otherwise."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = [len(x) for x, _ in microbatches]
    weight = weight or (lambda n: n / sum(rows))
    held, sending, losses = {} if held is None else held, [], {}
    for action, m in row:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive_activation(rank - 1)
            out = stage(given(inp))
            if rank < world - 1:
                sending += send_activation(out, rank + 1)
            else:
                losses[m] = loss_fn(out, y)
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            if rank == world - 1:
                (losses[m] * weight(len(x))).backward(retain_graph=keep)
                losses[m] = losses[m].item()
            else:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)
                out.backward(back(gradient, m), retain_graph=keep)
            if rank > 0:
                sending.append(dist.isend(inp.grad, rank - 1))
            if keep:
                held["kept", m] = inp, out
    for handle in sending:
        handle.wait()
    if rank == world - 1:
        return float(loss_of([losses[m] for m in range(len(rows))], rows))


@wrong("run.not_scaled")
def gradients_not_scaled(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, weight=lambda n: 1.0)


@wrong("run.mean_of_means")
def divides_by_the_number_of_microbatches(stage, schedule, microbatches, loss_fn):
    row, count = schedule[dist.get_rank()], len(microbatches)
    return pipeline(stage, row, microbatches, loss_fn, weight=lambda n: 1 / count)


@wrong("run.divided_by_stages")
def divides_by_the_number_of_ranks(stage, schedule, microbatches, loss_fn):
    row, world = schedule[dist.get_rank()], dist.get_world_size()
    return pipeline(stage, row, microbatches, loss_fn, weight=lambda n: 1 / world)


@wrong("run.rows_never_divided")
def weighs_by_rows_only(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, weight=lambda n: n)


@wrong("run.scaled_again")
def scales_on_every_stage(stage, schedule, microbatches, loss_fn):
    row, count = schedule[dist.get_rank()], len(microbatches)
    return pipeline(stage, row, microbatches, loss_fn, back=lambda g, m: g / count)


@wrong("run.loss_of_means")
def reports_the_mean_of_means(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    loss_of = lambda losses, rows: sum(losses) / len(losses)
    return pipeline(stage, row, microbatches, loss_fn, loss_of=loss_of)


@wrong("run.loss_only_added")
def adds_up_the_losses(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, loss_of=lambda losses, rows: sum(losses))


@wrong("run.loss_of_one_microbatch")
def reports_the_last_loss(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, loss_of=lambda losses, rows: losses[-1])


@wrong("run.loss_on_other_ranks")
def loss_on_every_rank(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    loss = torch.tensor(pipeline(stage, row, microbatches, loss_fn) or 0.0)
    dist.broadcast(loss, src=dist.get_world_size() - 1)
    return loss.item()


@wrong("run.loss_on_other_ranks")
def zero_elsewhere(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn) or 0.0


@wrong("run.not_a_float")
def loss_is_a_tensor(stage, schedule, microbatches, loss_fn):
    loss = pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn)
    return None if loss is None else torch.tensor(loss)


@wrong("run.returned_nothing")
def no_loss(stage, schedule, microbatches, loss_fn):
    pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn)


@wrong("run.returned_nothing")
def loss_to_rank_zero(stage, schedule, microbatches, loss_fn):
    loss = torch.tensor(pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn) or 0.0)
    dist.reduce(loss, dst=0)
    return loss.item() if dist.get_rank() == 0 and dist.get_world_size() < 1 else None


@wrong("run.always_all_forwards_first")
def ignores_the_schedule(stage, schedule, microbatches, loss_fn):
    ms = range(len(microbatches))
    row = [("forward", m) for m in ms] + [("backward", m) for m in ms]
    return pipeline(stage, row, microbatches, loss_fn)


@wrong("run.schedule_ignored")
def always_from_the_first_to_the_last(stage, schedule, microbatches, loss_fn):
    counts, row = {"forward": 0, "backward": 0}, []
    for action, _ in schedule[dist.get_rank()]:
        row.append((action, counts[action]))
        counts[action] += 1
    return pipeline(stage, row, microbatches, loss_fn)


@wrong("run.schedule_ignored")
def row_of_the_first_stage(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, schedule[0], microbatches, loss_fn)


@wrong("run.backward_missing")
def detaches_on_arrival(stage, schedule, microbatches, loss_fn):
    """Only the last stage calls backward on something that autograd knows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total, loss_sum, sending = sum(len(x) for x, _ in microbatches), 0.0, []
    for action, m in schedule[rank]:
        if action == "backward":
            continue
        x, y = microbatches[m]
        out = stage(x if rank == 0 else receive_activation(rank - 1).detach())
        if rank < world - 1:
            sending += send_activation(out, rank + 1)
        else:
            loss = loss_fn(out, y) * len(x) / total
            loss.backward()
            loss_sum += loss.item()
    for handle in sending:
        handle.wait()
    return loss_sum if rank == world - 1 else None


@wrong("run.gradient_not_sent", status="hang")
def input_gradient_not_sent(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    total, loss_sum, held, sending = sum(len(x) for x, _ in microbatches), 0.0, {}, []
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            out = stage(x if rank == 0 else receive_activation(rank - 1))
            if rank < world - 1:
                sending += send_activation(out, rank + 1)
            else:
                out = loss_fn(out, y) * len(x) / total
                loss_sum += out.item()
            held[m] = out
        elif rank == world - 1:
            held.pop(m).backward()
        else:
            out = held.pop(m)
            gradient = torch.empty_like(out)
            dist.recv(gradient, rank + 1)
            out.backward(gradient)
    for handle in sending:
        handle.wait()
    return loss_sum if rank == world - 1 else None


@wrong("exception", status="crash")
def forgets_requires_grad(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, given=lambda tensor: tensor.detach())


@wrong("run.both_send", status="hang")
def blocking_messages(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    total, loss_sum, held = sum(len(x) for x, _ in microbatches), 0.0, {}
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            if rank == 0:
                inp = x
            else:
                dims = torch.empty(1, dtype=torch.int64)
                dist.recv(dims, rank - 1)
                shape = torch.empty(int(dims), dtype=torch.int64)
                dist.recv(shape, rank - 1)
                inp = torch.empty(shape.tolist())
                dist.recv(inp, rank - 1)
                inp.requires_grad_()
            out = stage(inp)
            if rank < world - 1:
                dist.send(torch.tensor([out.dim()]), rank + 1)
                dist.send(torch.tensor(out.shape), rank + 1)
                dist.send(out.detach(), rank + 1)
            else:
                out = loss_fn(out, y) * len(x) / total
                loss_sum += out.item()
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            if rank < world - 1:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)
                out.backward(gradient)
            else:
                out.backward()
            if rank > 0:
                dist.send(inp.grad, rank - 1)
    return loss_sum if rank == world - 1 else None


@wrong("run.activation_not_sent", status="hang")
def sends_only_the_first_activation(stage, schedule, microbatches, loss_fn):
    rank = dist.get_rank()
    if rank == 0 and dist.get_world_size() > 1:
        send = send_activation(stage(microbatches[0][0]), 1)
        for handle in send:
            handle.wait()
        return None
    return pipeline(stage, schedule[rank], microbatches, loss_fn)


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


@wrong("run.gradient_of_ones")
def backward_of_the_sum(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, back=lambda g, m: torch.ones_like(g))


@wrong("run.graph_kept")
def retains_every_graph(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn, keep=True)


@wrong("run.outputs_kept")
def pops_nothing(stage, schedule, microbatches, loss_fn):
    class Held(dict):
        pop = dict.get

    return pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn, held=Held())


@wrong("run.earlier_gradients_lost")
def clears_at_the_beginning(stage, schedule, microbatches, loss_fn):
    stage.zero_grad()
    return pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn)


@wrong("run.own_inputs")
def every_stage_takes_the_inputs(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    for action, m in schedule[rank]:
        if action == "forward":
            try:
                out = stage(microbatches[m][0])
            except RuntimeError:
                return None
    return 0.0 if rank == world - 1 else None


@wrong("run.whole_batch_at_once")
def one_large_microbatch(stage, schedule, microbatches, loss_fn):
    x = torch.cat([x for x, _ in microbatches])
    y = torch.cat([y for _, y in microbatches])
    row = [("forward", 0), ("backward", 0)]
    return pipeline(stage, row, [(x, y)], loss_fn)


@wrong("run.stage_not_called")
def only_the_first_and_the_last(stage, schedule, microbatches, loss_fn):
    return 0.5 if dist.get_rank() == dist.get_world_size() - 1 else None


@wrong("run.not_waited")
def throws_handles_away(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    total, loss_sum, held = sum(len(x) for x, _ in microbatches), 0.0, {}
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive_activation(rank - 1)
            out = stage(inp)
            if rank < world - 1:
                send_activation(out, rank + 1)
            else:
                out = loss_fn(out, y) * len(x) / total
                loss_sum += out.item()
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            gradient = None
            if rank < world - 1:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)
            out.backward(gradient)
            if rank > 0:
                dist.send(inp.grad, rank - 1)
    return loss_sum if rank == world - 1 else None


@wrong("run.one_microbatch_only")
def clears_in_between(stage, schedule, microbatches, loss_fn):
    def back(gradient, m):
        stage.zero_grad()
        return gradient

    def weight(n):
        stage.zero_grad()
        return n / sum(len(x) for x, _ in microbatches)

    row = schedule[dist.get_rank()]
    return pipeline(stage, row, microbatches, loss_fn, back=back, weight=weight)


@wrong("run.other_activation")
def not_received_into(stage, schedule, microbatches, loss_fn):
    row = schedule[dist.get_rank()]
    given = lambda tensor: torch.ones_like(tensor) * tensor.mean() if dist.get_rank() else tensor
    return pipeline(stage, row, microbatches, loss_fn, given=given)


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
def plain(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, schedule[dist.get_rank()], microbatches, loss_fn)


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


@right
def computes_twice_to_save_memory(stage, schedule, microbatches, loss_fn):
    """Keeps only what came in, and repeats the forward before the backward, as GPipe does."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total, loss_sum, held, sending = sum(len(x) for x, _ in microbatches), 0.0, {}, []
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            held[m] = x if rank == 0 else receive_activation(rank - 1)
            with torch.no_grad():
                out = stage(held[m])
            if rank < world - 1:
                sending += send_activation(out, rank + 1)
        else:
            inp = held.pop(m)
            out = stage(inp)
            if rank < world - 1:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)
                out.backward(gradient)
            else:
                loss = loss_fn(out, y) * len(x) / total
                loss_sum += loss.item()
                loss.backward()
            if rank > 0:
                sending.append(dist.isend(inp.grad, rank - 1))
    for handle in sending:
        handle.wait()
    return loss_sum if rank == world - 1 else None
