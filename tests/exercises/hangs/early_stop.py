"""``hangs.early_stop``: when one rank wants to stop, all stop after the same step."""

import math

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.comparing import RESULT, Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe
from multigpu.checking.verdicts import numbered
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted

from .training import batches_of, model, sgd, trained, weights_of

early_stop = exercise(
    "hangs.early_stop",
    expects="{done} on every rank, {why}",
    share_of=lambda case: case.world,
)
LIMIT = 0.1  # a rank wants to stop when its loss is below


@early_stop.cases
def cases():
    """Stop in the middle, never, at once, at the end, and when several or all ranks want to."""
    yield a_case(3, 8, in_the_middle(3), alone=True)
    for world in (3, 2, 4, 1):
        yield a_case(world, 8, in_the_middle(world))
        yield a_case(world, 3, [])
        yield a_case(world, 3, [(1, world - 1)])
        yield a_case(world, 3, [(3, world - 1)])
        for wanting in range(2, world + 1):
            yield a_case(world, 4, [(2, rank) for rank in range(wanting)])


def in_the_middle(world):
    return [(3, 1 % world), (5, 0), (6, world - 1), *((7, rank) for rank in range(world))]


def a_case(world, steps, low, alone=False):
    """Batches with losses of about 1, but nearly 0 where (step, rank) is ``low``."""
    batches = batches_of([steps] * world, seed=world)
    for step, rank in low:
        inputs, targets = batches[rank][step - 1]
        batches[rank][step - 1] = (inputs * 0.01, targets * 0.01)
    last = min([step for step, _ in low], default=steps)
    wanting = [rank for step, rank in low if step == last]
    verb = "wants" if len(wanting) == 1 else "want"
    why = (
        f"where {numbered('rank', wanting)} {verb} to stop" if wanting else "for none wants to stop"
    )
    title = f"{counted(world, 'rank')} with {steps} batches each"
    done = counted(last, "step")
    return case(title, world=world, alone=alone, of=batches, last=last, why=why, done=done)


@early_stop.drive
def drive(submission, case, rank):
    """The steps that were returned, with which losses it asked, and the weights."""
    own = [(x.to(rank_device()), y.to(rank_device())) for x, y in case.of[rank]]
    net, asked = model().to(rank_device()), []

    def should_stop(loss):
        asked.append(float(loss) if isinstance(loss, float) else loss)
        return float(loss) < LIMIT

    returned = submission.early_stop(net, own, sgd(net), should_stop)
    return {"asked": asked, RESULT: returned, "the vector of all weights": weights_of(net)}


@early_stop.expected
def expected(case):
    weights, losses = trained(case.of)
    return [
        {
            "asked": Rule(with_own_losses([of_ranks[rank] for of_ranks in losses])),
            RESULT: Rule(whole_number(case.last)),
            "the vector of all weights": weights[case.last],
        }
        for rank in range(case.world)
    ]


def with_own_losses(own):
    """A rank asks about its own losses, in their order; it may ask twice."""

    def examine(asked):
        left = [*own]
        for number, loss in enumerate(asked):
            if not isinstance(loss, float):
                return Difference("wrong_type", f"should_stop got {describe(loss)} and not a float")
            while left and not math.isclose(left[0], loss, rel_tol=1e-6):
                left.pop(0)
            if not left:
                step = min(number, len(own) - 1)
                found = f"in step {step + 1} should_stop({loss:.6g}) was asked, and its own loss is"
                return Difference("wrong_value", f"{found} {own[step]:.6g}")
        return None

    return examine


def whole_number(right):
    def examine(came):
        if type(came) is not int:
            return Difference("wrong_type", f"the result is {describe(came)} and not an int")
        if came != right:
            return Difference(
                "wrong_value", f"the result is {counted(came, 'step')} and not {right}"
            )
        return None

    return examine


# --- what answers are made of --------------------------------------------------------------------


def backward(model, batch, optimizer):
    inputs, targets = batch
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train_on(model, batch, optimizer):
    loss = backward(model, batch, optimizer)
    average(model)
    optimizer.step()
    return loss


def reduced(value, op=dist.ReduceOp.MAX):
    tensor = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return tensor.item()


def reducing(should_stop, op=dist.ReduceOp.MAX):
    """A ``should_stop`` that says what the answers of all ranks come to."""
    return lambda loss: reduced(should_stop(loss), op)


def until(stop, model, batches, optimizer, *, first=1, train=train_on):
    """Train until ``stop(loss)``."""
    for step, batch in enumerate(batches, first):
        if stop(train(model, batch, optimizer).item()):
            return step
    return len(batches)


@early_stop.right
def adds_up_the_answers(model, batches, optimizer, should_stop):
    return until(reducing(should_stop, dist.ReduceOp.SUM), model, batches, optimizer)


@early_stop.right
def rank_zero_collects_and_tells(model, batches, optimizer, should_stop):
    def stop(loss):
        wanted = torch.tensor(int(should_stop(loss)))
        dist.reduce(wanted, dst=0)
        dist.broadcast(wanted, src=0)
        return wanted.item()

    return until(stop, model, batches, optimizer)


ANY = "One rank is enough: reduce the answers with MAX, or add them up and compare with 0."


@early_stop.mistake(
    "stops_alone",
    "a rank that wants to stop returns at once, and the others wait for its part of the next step.",
    fix="In every step reduce the answers, 0 or 1, with MAX, and stop where the result is 1.",
    status="hang",
    roughly=True,
)
def as_it_was_handed_out(model, batches, optimizer, should_stop):
    return until(should_stop, model, batches, optimizer)


@early_stop.mistake(
    "told_only_when_stopping",
    "a rank tells the others only when it wants to stop, and they are in another call then.",
    fix="In every step each rank says whether it wants to stop: 0 or 1.",
    status="mismatch",
    roughly=True,
)
def reduces_only_when_it_stops(model, batches, optimizer, should_stop):
    return until(lambda loss: should_stop(loss) and reduced(1), model, batches, optimizer)


@early_stop.mistake(
    "rank_zero_decides", "only rank 0's answer counts: broadcast hands on what it has.", fix=ANY
)
def rank_zero_tells_the_others(model, batches, optimizer, should_stop):
    def stop(loss):
        wanted = torch.tensor(int(should_stop(loss)))
        dist.broadcast(wanted, src=0)
        return wanted

    return until(stop, model, batches, optimizer)


@early_stop.mistake(
    "all_must_agree", "the ranks stop only when all of them, or most of them, want to.", fix=ANY
)
def stops_when_all_want_to(model, batches, optimizer, should_stop):
    return until(reducing(should_stop, dist.ReduceOp.MIN), model, batches, optimizer)


@early_stop.mistake(
    "never_stopped",
    "several ranks want to stop in the same step, so the sum of their answers is neither 0 nor 1.",
    fix="Stop where the sum is more than 0, or reduce with MAX.",
)
def stops_when_exactly_one_wants_to(model, batches, optimizer, should_stop):
    def stop(loss):
        return reduced(should_stop(loss), dist.ReduceOp.SUM) == 1

    return until(stop, model, batches, optimizer)


@early_stop.mistake(
    "counted_from_zero",
    "all steps were done, but they were counted from 0.",
    fix="Count the steps that are done: enumerate(batches, 1).",
)
def counts_from_zero(model, batches, optimizer, should_stop):
    return until(reducing(should_stop), model, batches, optimizer, first=0)


@early_stop.mistake(
    "step_left_out",
    "the last step was counted, but optimizer.step() was not called in it.",
    fix="Do the step, then stop.",
)
def counts_a_step_that_it_does_not_do(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        loss = backward(model, batch, optimizer)
        if reducing(should_stop)(loss.item()):
            return step
        average(model)
        optimizer.step()
    return len(batches)


@early_stop.mistake(
    "stopped_too_late",
    "the ranks look at the answer of the step before, so they do one step more.",
    fix="Reduce the answers and stop within the same step.",
)
def looks_at_the_flag_in_the_next_step(model, batches, optimizer, should_stop):
    answers = [False]

    def stop(loss):
        answers.append(answers[-1] or reducing(should_stop)(loss))
        return answers[-2]

    return until(stop, model, batches, optimizer)


@early_stop.mistake(
    "asked_about_the_mean",
    "should_stop was asked about the mean loss over the ranks, in which one low loss disappears.",
    fix="Ask with this rank's own loss, and reduce the answers.",
)
def asks_with_the_mean_loss(model, batches, optimizer, should_stop):
    def stop(loss):
        return should_stop(reduced(loss, dist.ReduceOp.SUM) / dist.get_world_size())

    return until(stop, model, batches, optimizer)


@early_stop.mistake(
    "asked_after_the_step",
    "the loss was computed again with the new weights.",
    fix="Ask with the loss from before optimizer.step().",
)
def computes_the_loss_again(model, batches, optimizer, should_stop):
    def train(model, batch, optimizer):
        train_on(model, batch, optimizer)
        return backward(model, batch, optimizer)

    return until(reducing(should_stop), model, batches, optimizer, train=train)


@early_stop.mistake(
    "loss_is_a_tensor", "should_stop was given the loss as a tensor.", fix="Pass loss.item()."
)
def hands_over_the_tensor(model, batches, optimizer, should_stop):
    stop = reducing(lambda loss: should_stop(torch.tensor(loss, dtype=torch.float64)))
    return until(stop, model, batches, optimizer)


@early_stop.mistake(
    "never_averaged",
    "each rank was trained by itself: no average went into .grad.",
    fix="Average .grad over all ranks before optimizer.step().",
)
def takes_the_collective_away(model, batches, optimizer, should_stop):
    def train(model, batch, optimizer):
        loss = backward(model, batch, optimizer)
        optimizer.step()
        return loss

    return until(reducing(should_stop), model, batches, optimizer, train=train)
