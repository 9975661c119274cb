"""``hangs.uneven_batches``: every batch counts, though ranks have different numbers of them."""

import math

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.comparing import Either
from multigpu.checking.declaration import case, exercise
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

from .training import batches_of, model, sgd, trained, weights_of

uneven_batches = exercise(
    "hangs.uneven_batches",
    expects="every batch counts: {steps} steps, and the same weights on all ranks",
    share_of=lambda case: case.divisor,
)
COUNTS = [[2, 3, 1], [2, 2, 2], [0, 2, 4], [1, 0, 0], [1, 6, 3]]
COUNTS += [[1, 3], [2, 0], [2, 2], [2, 3, 0, 1], [0, 0, 2, 0], [3]]


@uneven_batches.cases
def cases():
    yield a_case([3, 1, 2], alone=True)
    for counts in COUNTS:
        yield a_case(counts)


def a_case(counts, alone=False):
    world, steps = len(counts), max(counts)
    title = f"ranks with {listed(counts)} batches" if world > 1 else "one rank with 3 batches"
    present = [sum(step < own for own in counts) for step in range(steps)]
    return case(
        title,
        world=world,
        alone=alone,
        of=batches_of(counts),
        divisor=world * math.prod(present),
        steps=steps,
        fewest=counted(min(counts), "step"),
    )


@uneven_batches.drive
def drive(submission, case, rank):
    """This rank's weights at the end, and how often its optimizer stepped."""
    own = [(x.to(rank_device()), y.to(rank_device())) for x, y in case.of[rank]]
    net = model().to(rank_device())
    optimizer, steps = sgd(net), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    submission.uneven_batches(net, own, optimizer)
    return {"the vector of all weights": weights_of(net), "steps": len(steps)}


@uneven_batches.expected
def expected(case):
    """A rank without a batch may count as zero in the mean, or not at all."""
    weights = [trained(case.of, only_present=mean)[0][-1] for mean in (False, True)]
    return Either(*([{"the vector of all weights": each}] * case.world for each in weights))


@uneven_batches.holds(
    "not_every_rank_steps",
    expects="every rank calls optimizer.step() once in each of {steps} steps",
    usually="the weights are right, but they were sent from rank to rank.",
    fix="With the mean gradient in .grad each rank makes the same step by itself.",
)
def every_rank_steps(run, case):
    for rank, came in enumerate(run.came(case)):
        if came["steps"] != case.steps:
            times = counted(came["steps"], "time")
            return f"rank {rank} called optimizer.step() {times}"
    return None


# --- what answers are made of --------------------------------------------------------------------


def most_batches(batches, op=dist.ReduceOp.MAX):
    count = torch.tensor(len(batches))
    dist.all_reduce(count, op=op)
    return int(count)


def backward(model, batch):
    inputs, targets = batch
    nn.functional.mse_loss(model(inputs), targets).backward()


def average(model, divisor=None):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= divisor or dist.get_world_size()


def in_steps(model, batches, optimizer, steps=None, *, divisor=None, idle=("clears", "steps")):
    """By default as many steps as there are batches; ``idle``: what a rank does without one."""
    for step in range(most_batches(batches) if steps is None else steps):
        busy = step < len(batches)
        if busy or "clears" in idle:
            optimizer.zero_grad()
        if busy:
            backward(model, batches[step])
        average(model, divisor)
        if busy or "steps" in idle:
            optimizer.step()


@uneven_batches.right
def asks_in_every_step_who_has_a_batch(model, batches, optimizer):
    step = 0
    while True:
        busy = torch.tensor(float(step < len(batches)))
        dist.all_reduce(busy)
        if busy == 0:
            break
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        average(model, divisor=busy.item())
        optimizer.step()
        step += 1


@uneven_batches.mistake(
    "out_of_batches",
    "a rank without a batch has left the loop or skips None, and the others wait for its part.",
    fix="Do as many steps as the longest list has batches, {steps}: without a batch, reduce zeros.",
    status="hang",
    roughly=True,
)
def as_it_was_handed_out(model, batches, optimizer):
    in_steps(model, batches, optimizer, steps=len(batches))


@uneven_batches.mistake(
    "batches_left_out",
    "training ends when the first rank has no batch left, after {fewest}.",
    fix="Go on to the end of the longest list, {steps} steps.",
)
def up_to_the_shortest_list(model, batches, optimizer):
    in_steps(model, batches, optimizer, steps=most_batches(batches, dist.ReduceOp.MIN))


@uneven_batches.mistake(
    "trained_alone",
    "gradients were averaged only while all ranks had batches, and then each rank stepped alone.",
    fix="Average in every step.",
)
def averages_up_to_the_shortest_list(model, batches, optimizer):
    train_alone(model, batches, optimizer, most_batches(batches, dist.ReduceOp.MIN))


@uneven_batches.mistake(
    "never_averaged",
    "each rank was trained on its own batches only: no average went into .grad.",
    fix="Average in every step: without a collective nothing hangs, but nothing is shared.",
)
def takes_the_collective_away(model, batches, optimizer):
    train_alone(model, batches, optimizer, 0)


def train_alone(model, batches, optimizer, common):
    """On all own batches, with an average in the ``common`` first steps."""
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        backward(model, batch)
        if step < common:
            average(model)
        optimizer.step()


@uneven_batches.mistake(
    "only_added",
    "the gradients were added up over the ranks and never divided.",
    fix="Divide by {n}, the number of ranks, or by the number of those that had a batch.",
)
def never_divides(model, batches, optimizer):
    in_steps(model, batches, optimizer, divisor=1)


@uneven_batches.mistake(
    "idle_ranks_stale",
    "a rank without a batch took part in the average, but left optimizer.step() out.",
    fix="Call it on every rank in every step.",
)
def steps_only_with_a_batch(model, batches, optimizer):
    in_steps(model, batches, optimizer, idle=["clears"])


@uneven_batches.mistake(
    "old_gradient_again",
    "a rank without a batch gave its last gradient again, since it did not clear .grad.",
    fix="Call optimizer.zero_grad() in every step: without a batch the gradient counts as zero.",
)
def clears_only_with_a_batch(model, batches, optimizer):
    in_steps(model, batches, optimizer, idle=["steps"])


@uneven_batches.mistake(
    "batches_repeated",
    "a rank with fewer batches used some of them again, to make the numbers equal.",
    fix="Use each batch once: without one, a rank takes part with a gradient of zero.",
)
def fills_up_with_the_last_batch(model, batches, optimizer):
    more = most_batches(batches) - len(batches)
    in_steps(model, [*batches, *batches[-1:] * more], optimizer)


@uneven_batches.breaks("not_every_rank_steps")
def rank_zero_steps_for_all(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        average(model)
        if dist.get_rank() == 0:
            optimizer.step()
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
