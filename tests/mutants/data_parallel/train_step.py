"""Answers to ``train_step``: how learners get it wrong, and ways to get it right.

They may call the other functions of the module, which are those of the solution.
"""
# ruff: noqa (learners write like this)

import copy

import torch
from data_parallel import broadcast, gather, parallel_apply, split, sum_gradients
from harness import right, wrong


def homes(replicas):
    return [next(replica.parameters()).device for replica in replicas]


def clear(replicas):
    for replica in replicas:
        replica.zero_grad()


def whole_loss(replicas, inputs, targets, loss_fn):
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    return loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))


@wrong("train_step.gradients_never_cleared")
def no_zero_grad(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    for replica in replicas[1:]:
        replica.zero_grad()
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.gradients_never_cleared")
def no_zero_grad_anywhere(replicas, inputs, targets, loss_fn, optimizer):
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.old_gradients_in_replicas")
def clears_the_first_replica_only(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    optimizer.zero_grad()
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.old_gradients_in_replicas")
def clears_busy_replicas_only(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    chunks = split(inputs, devices)
    for replica, _ in zip(replicas, chunks):
        replica.zero_grad()
    outputs = parallel_apply(replicas, chunks)
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.mean_of_chunk_means")
def one_loss_per_chunk(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    losses = [loss_fn(*pair).to(devices[0]) for pair in zip(outputs, split(targets, devices))]
    loss = sum(losses) / len(losses)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.losses_added")
def adds_the_losses_of_the_chunks(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    losses = [loss_fn(*pair) for pair in zip(outputs, split(targets, devices))]
    for loss in losses:
        loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return sum(loss.item() for loss in losses)


@wrong("train_step.losses_added")
def adds_gradients_but_returns_the_right_loss(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    for output, target in zip(outputs, split(targets, devices)):
        loss_fn(output, target).backward(retain_graph=True)
    loss = loss_fn(gather(outputs, devices[0]).detach(), targets.to(devices[0]))
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.gradients_divided")
def divides_the_sum_again(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    for parameter in replicas[0].parameters():
        if parameter.grad is not None:
            parameter.grad /= len(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.gradients_not_summed")
def forgets_sum_gradients(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.gradients_not_summed")
def sums_after_the_step(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    optimizer.step()
    sum_gradients(replicas)
    broadcast(replicas)
    return loss.item()


@wrong("train_step.replicas_stale")
def forgets_broadcast(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    return loss.item()


@wrong("train_step.replicas_stale")
def broadcasts_before_the_step(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    broadcast(replicas)
    optimizer.step()
    return loss.item()


@wrong("train_step.replicas_stale")
def replicates_again_at_the_beginning(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    new = [replicas[0]] + [copy.deepcopy(replicas[0]).to(device) for device in devices[1:]]
    for replica in new:
        replica.zero_grad()
    outputs = parallel_apply(new, split(inputs, devices))
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(new)
    optimizer.step()
    return loss.item()


@wrong("train_step.buffers_stale")
def broadcasts_parameters_only(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    with torch.no_grad():
        for first, *others in zip(*(replica.parameters() for replica in replicas)):
            for other in others:
                other.copy_(first)
    return loss.item()


@wrong("train_step.no_step")
def forgets_the_optimizer(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    broadcast(replicas)
    return loss.item()


@wrong("train_step.no_step")
def clears_right_after_backward(replicas, inputs, targets, loss_fn, optimizer):
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for replica in replicas:
        replica.zero_grad()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.two_steps")
def steps_twice(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.momentum_lost")
def own_gradient_descent(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    with torch.no_grad():
        for parameter in replicas[0].parameters():
            if parameter.grad is not None:
                parameter -= optimizer.param_groups[0]["lr"] * parameter.grad
    broadcast(replicas)
    return loss.item()


@wrong("train_step.momentum_lost")
def new_optimizer_at_every_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    optimizer = type(optimizer)(optimizer.param_groups[0]["params"], **optimizer.defaults)
    for replica in replicas:
        replica.zero_grad()
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.rows_dropped")
def drops_rows_that_do_not_divide(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    rows = len(inputs) // len(devices) * len(devices) or len(inputs)
    outputs = parallel_apply(replicas, split(inputs[:rows], devices))
    loss = loss_fn(gather(outputs, devices[0]), targets[:rows].to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.first_chunk_only")
def trains_on_the_first_chunk(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    chunks, wanted = split(inputs, devices), split(targets, devices)
    loss = loss_fn(replicas[0](chunks[0]), wanted[0])
    loss.backward()
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.loss_after_the_step")
def measures_after_the_step(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    wanted = targets.to(devices[0])
    outputs = parallel_apply(replicas, split(inputs, devices))
    loss_fn(gather(outputs, devices[0]), wanted).backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    with torch.no_grad():
        outputs = parallel_apply(replicas, split(inputs, devices))
        return loss_fn(gather(outputs, devices[0]), wanted).item()


@wrong("train_step.loss_of_last_chunk")
def returns_the_loop_variable(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    for output, target in zip(outputs, split(targets, devices)):
        loss = loss_fn(output, target)
        (loss * len(target) / len(targets)).backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.not_a_float")
def returns_a_tensor(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss


@wrong("train_step.returned_nothing")
def forgets_to_return(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)


@wrong("exception", status="crash")
def needs_as_many_rows_as_gpus(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    chunks, wanted = split(inputs, devices), split(targets, devices)
    outputs = [replicas[i](chunks[i]) for i in range(len(replicas))]
    loss = loss_fn(gather(outputs, devices[0]), gather(wanted, devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("exception", status="crash")
def forgets_to_move_the_targets(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    loss = loss_fn(gather(outputs, devices[0]), targets)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.loss_of_chunks")
def returns_the_mean_of_the_chunks_losses(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    losses = []
    for output, target in zip(outputs, split(targets, devices)):
        losses.append(loss_fn(output, target))
        (losses[-1] * len(target) / len(targets)).backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return sum(loss.item() for loss in losses) / len(losses)


@wrong("train_step.other_weights")
def clips_the_gradients_of_each_replica(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for replica in replicas:
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 0.1)
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("exception", status="crash")
def everything_under_no_grad(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    with torch.no_grad():
        outputs = parallel_apply(replicas, split(inputs, devices))
        loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.one_gpu_only")
def trains_the_first_replica_on_the_whole_batch(replicas, inputs, targets, loss_fn, optimizer):
    home = homes(replicas)[0]
    optimizer.zero_grad()
    loss = loss_fn(replicas[0](inputs.to(home)), targets.to(home))
    loss.backward()
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.idle_gpus")
def leaves_the_last_replica_without_rows(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    busy = replicas[:-1] if len(replicas) > 2 else replicas
    loss = whole_loss(busy, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.rows_changed")
def clears_the_rows_afterwards(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    inputs.zero_()
    return loss.item()


@right
def weighs_the_losses_of_the_chunks(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    clear(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    total = 0.0
    for output, target in zip(outputs, split(targets, devices)):
        loss = loss_fn(output, target) * (len(target) / len(targets))
        loss.backward()
        total += loss.item()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return total


@right
def without_the_other_functions(replicas, inputs, targets, loss_fn, optimizer):
    main = replicas[0]
    devices = homes(replicas)
    for replica in replicas[1:]:
        with torch.no_grad():
            for mine, theirs in zip(replica.parameters(), main.parameters()):
                mine.grad = None
                mine.copy_(theirs)
    optimizer.zero_grad()
    outputs = [
        replica(chunk.to(device)).to(devices[0])
        for replica, chunk, device in zip(replicas, inputs.chunk(len(replicas)), devices)
    ]
    loss = loss_fn(torch.cat(outputs), targets.to(devices[0]))
    loss.backward()
    for mine, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                mine.grad += other.grad.to(devices[0])
    optimizer.step()
    with torch.no_grad():
        for replica in replicas[1:]:
            for mine, theirs in zip(replica.parameters(), main.parameters()):
                mine.copy_(theirs)
            for mine, theirs in zip(replica.buffers(), main.buffers()):
                mine.copy_(theirs)
    return float(loss)


@right
def clears_at_the_end(replicas, inputs, targets, loss_fn, optimizer):
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    optimizer.zero_grad()
    for replica in replicas:
        for parameter in replica.parameters():
            parameter.grad = None
    broadcast(replicas)
    return loss.detach().cpu().item()


@right
def gradients_asked_for_by_name(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    chunks = split(inputs, devices)
    busy = list(replicas)[: len(chunks)]
    loss = loss_fn(gather(parallel_apply(busy, chunks), devices[0]), targets.to(devices[0]))
    trained = [[p for p in replica.parameters() if p.requires_grad] for replica in busy]
    found = torch.autograd.grad(loss, [p for some in trained for p in some], allow_unused=True)
    for i, parameter in enumerate(trained[0]):
        parts = [part.to(devices[0]) for part in found[i :: len(trained[0])] if part is not None]
        parameter.grad = sum(parts) if parts else None
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@right
def as_one_closure(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)

    def closure():
        for replica in replicas:
            replica.zero_grad()
        outputs = parallel_apply(replicas, split(inputs, devices))
        loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
        loss.backward()
        sum_gradients(replicas)
        return loss

    with torch.enable_grad():
        loss = optimizer.step(closure)
    broadcast(replicas)
    return loss.item()


@right
def loss_on_the_cpu(replicas, inputs, targets, loss_fn, optimizer):
    for replica in replicas:
        replica.train().zero_grad()
    chunks = split(inputs, [next(replica.parameters()).device for replica in replicas])
    outputs = [output.cpu() for output in parallel_apply(replicas, chunks)]
    loss = loss_fn(torch.cat(outputs), targets.cpu())
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return float(loss)


@right
def calls_forward_of_new_copies(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    optimizer.zero_grad()
    copies = [copy.deepcopy(replicas[0]).to(device) for device in devices[1:]]
    busy = [replicas[0], *copies]
    for replica in busy:
        replica.zero_grad()
    outputs = [replica.forward(chunk) for replica, chunk in zip(busy, split(inputs, devices))]
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(busy)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.rounded")
def sums_in_float32(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for own in zip(*(replica.parameters() for replica in replicas)):
        there = [p.grad.float().to(devices[0]) for p in own if p.grad is not None]
        if there:
            own[0].grad = sum(there).to(own[0].dtype)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.rounded")
def returns_the_loss_as_float32(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.float().item()


@right
def a_share_in_float32(replicas, inputs, targets, loss_fn, optimizer):
    """A quotient of whole-number tensors."""
    devices = homes(replicas)
    clear(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    total = 0.0
    for output, target in zip(outputs, split(targets, devices)):
        loss = loss_fn(output, target) * (torch.tensor(len(target)) / torch.tensor(len(targets)))
        loss.backward()
        total += loss.item()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return total
