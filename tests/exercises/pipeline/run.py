"""``pipeline.run``: one stage at work, which does what its row of the schedule says."""

import contextlib
import operator

import torch
import torch.distributed as dist

from multigpu.checking import Returned, describe
from multigpu.checking.comparing import RESULT, Near, same
from multigpu.checking.declaration import case, exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.verdicts import count, listed
from multigpu.ranks import rank_device

from .given import all_forwards_first, in_turns
from .models import begin, loss_of, microbatches_of, stages_of, uncut
from .tables import shown
from .watching import Watched, sides_of

run = exercise(
    "pipeline.run",
    expects="the gradients of the uncut model on the mean loss over all rows, and this loss on the"
    " last rank",
)


@run.cases
def cases():
    """More micro-batches than stages, as many, fewer, and one; other orders; of any size and shape.

    The first one is alone: a rank that gets stuck does so there, when the other one has returned.
    """
    yield a_case("vectors", (4, 4, 4), all_forwards_first(2, 3), alone=True)
    for world in (3, 2, 4, 1):
        yield a_case("vectors", (4, 4, 4), all_forwards_first(world, 3))
        yield a_case("vectors", (4, 1, 3, 2), all_forwards_first(world, 4))
        yield a_case("vectors", (2,) * 6, in_turns(world, 6), steps=3)
        yield a_case("vectors", (2,) * world, in_turns(world, world))
        yield a_case("vectors", (2, 2), in_turns(world, 2))
        yield a_case("vectors", (3,), in_turns(world, 1))
        yield a_case("vectors", (2,) * 5, in_turns(world, 5, order=(3, 0, 4, 1, 2)))
        yield a_case("vectors", (3, 3, 3, 3), all_forwards_first(world, 4, reverse=True))
        yield a_case("vectors", (1, 5, 2, 2, 3), in_turns(world, 5))
        yield a_case("vectors", (2, 1), in_turns(world, 2), before=1 / 128)
    yield a_case("images", (2, 3, 1), in_turns(4, 3), steps=2)
    yield a_case("sequences", (2, 1, 3, 2), in_turns(4, 4), steps=2)
    yield a_case("images", (1, 2), all_forwards_first(4, 2))


def a_case(kind, rows, table, steps=1, before=0.0, alone=False):
    """Every gradient is ``before`` when ``run`` is called; None, if that is zero."""
    title = f"{count(len(table), 'stage')}, micro-batches of {listed(rows)} rows: {kind}"
    return case(
        title,
        world=len(table),
        alone=alone,
        kind=kind,
        rows=rows,
        table=table,
        steps=steps,
        before=before,
        micro=len(rows),
    )


@run.drive
def drive(submission, case, rank):
    """Of each step the gradients and what was returned."""
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    layers, came, watched = stages_of(case)[rank].to(place), {}, []
    for step in range(case.steps):
        stage = Watched(layers)
        microbatches = [tuple(p.to(place) for p in pair) for pair in microbatches_of(case, step)]
        begin(layers, case, step)
        came[named(case, RESULT, step)] = submission.run(
            stage, case.table, microbatches, loss_of(case)
        )
        watched.append((stage.events, stage.kept()))
        for name, parameter in layers.named_parameters():
            gradient = None if parameter.grad is None else parameter.grad.clone()
            came[named(case, f"{name}.grad", step)] = gradient
    return came | {"watched": watched}


def named(case, name, step):
    return name if case.steps == 1 else f"{name} in step {step + 1}"


@run.expected
def expected(case):
    return [
        {
            named(case, name, step): value
            for step, right in enumerate(uncut(case))
            for name, value in [
                *((f"{name}.grad", gradient) for name, gradient in right.gradients[rank].items()),
                (RESULT, Near(right.loss, digits=5) if rank == case.world - 1 else None),
            ]
        }
        for rank in range(case.world)
    ]


# --- what its stage is asked for -----------------------------------------------------------------

handles_are_waited_for(run)


def on_each_side(name, wrong, expects, usually, *, fix, first=True):
    """A property: ``wrong(side)`` says what one rank did in one step that must not be."""

    @run.holds(name, expects, usually, fix=fix, first=first)
    def _(answer, case):
        for side in sides_of(answer, case):
            words = wrong(side)
            if words:
                return f"rank {side.rank} {words}"
        return None


on_each_side(
    "stage_not_called",
    lambda side: not side.events and "never called its stage",
    "every rank calls its stage",
    "only some ranks do what the schedule says.",
    fix="Every rank has a row of its own: follow schedule[rank].",
)


def other_inputs(side):
    """The forwards with something that the stage was never to take."""
    calls = [event for event in side.events if event["kind"] == "forward"]
    return [each["tensor"] for each in calls if side.microbatch_of[each["call"]] is None]


def takes_the_inputs(side):
    given = [x for x, _ in microbatches_of(side.case, 0)] if side.rank else []
    tensors = [came.value for came in other_inputs(side) if isinstance(came, Returned)]
    if any(same(came, x) for came in tensors for x in given):
        return "called its stage with the inputs"
    return None


on_each_side(
    "own_inputs",
    takes_the_inputs,
    "stage 0 takes the inputs, and every other stage what the stage before has returned",
    "every rank has the inputs of the whole model in microbatches, but only stage 0 needs them.",
    fix="Receive what the stage before has sent.",
)


def takes_all_rows(side):
    rows = side.case.rows
    for came in other_inputs(side):
        if isinstance(came, Returned) and came.shape[:1] == (sum(rows),) and len(rows) > 1:
            return f"took all {sum(rows)} rows"
    return None


on_each_side(
    "whole_batch_at_once",
    takes_all_rows,
    "a stage takes one micro-batch at a time",
    "the micro-batches were put together again. The gradients may be right, but only one stage"
    " works at a time.",
    fix="Do each action of the schedule with its own micro-batch.",
)


def takes_something_else(side):
    for came in other_inputs(side):
        if not isinstance(came, Returned):
            return f"took {describe(came)}"
        if came.dtype != side.inputs[0].dtype:
            return f"took {came.dtype} and not {side.inputs[0].dtype}"
        shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in side.inputs))
        if tuple(came.shape) not in shapes:
            return f"took the shape {tuple(came.shape)} and not {' or '.join(map(str, shapes))}"
        return "took something of the right shape, but with other numbers"
    return None


on_each_side(
    "other_activation",
    takes_something_else,
    "a stage takes what the stage before has returned",
    "it was read before its message had come, another message was received into it, or it was never"
    " received into.",
    fix="The shape may differ from stage to stage, and the number of rows from micro-batch to"
    " micro-batch: send the shape first, then the numbers, and receive into a new tensor.",
)


def lacks_a_backward(side):
    done = [action for action, _ in side.actions]
    for kind, m in side.row:
        if kind == "backward" and (kind, m) not in done and ("forward", m) in done:
            return f"did {shown(done)}: no backward of micro-batch {m}"
    return None


on_each_side(
    "backward_missing",
    lacks_a_backward,
    "each rank does what its row of the schedule says",
    "backward was not called on what the stage has returned, or autograd cannot reach it: the"
    " tensor was detached, copied or received.",
    fix="Keep what the stage returns, and call its backward with the gradient that comes back.",
)


def does_something_else(side):
    done = [action for action, _ in side.actions]
    return done != side.row and f"did {shown(done)}, and its row is {shown(side.row)}"


on_each_side(
    "schedule_ignored",
    does_something_else,
    "each rank does what its row of the schedule says",
    "the actions come in another order, or some are done twice or not at all. The order decides how"
    " many micro-batches are in flight at once, and so how much memory is needed.",
    fix="Go through schedule[rank] from its beginning to its end, and take the micro-batch that"
    " each action names: they need not come as 0, 1, 2.",
)


def keeps_a_graph(side):
    left = [*side.left]
    for done, event in after_backwards(side):
        left += {*done} & {*event["kept"]}
    return left and f"still had the graph of micro-batch {side.microbatch_of[left[0]]}"


on_each_side(
    "graph_kept",
    keeps_a_graph,
    "after the backward of a micro-batch nothing of its graph is kept",
    "retain_graph=True keeps it.",
    fix="Leave it out: then the memory is free when backward is over.",
    first=False,
)


def keeps_outputs(side):
    for done, event in after_backwards(side):
        # A variable may name the last one, and a thread that sends may name another.
        there = sorted({*done[:-1]} & {*event["made"]})
        if len(there) > 1:
            numbers = listed(side.microbatch_of[call] for call in there)
            return f"still had the outputs of micro-batches {numbers}"
    return None


on_each_side(
    "outputs_kept",
    keeps_outputs,
    "after the backward of a micro-batch nothing of its graph is kept",
    "what the stage has returned is still in a list or dict.",
    fix="Take it out when its backward comes: in_flight.pop(m).",
    first=False,
)


def after_backwards(side):
    """Each action with the calls whose backwards came before it."""
    done = []
    for (kind, _), event in side.actions:
        yield list(done), event
        if kind == "backward":
            done.append(event["call"])


# --- what answers are made of --------------------------------------------------------------------


def shape_of(tensor):
    return torch.tensor([tensor.dim(), *tensor.shape, *[0] * (7 - tensor.dim())])


def send_activation(tensor, dst):
    return [dist.isend(shape_of(tensor), dst), dist.isend(tensor.detach().contiguous(), dst)]


def receive_activation(src):
    header = torch.empty(8, dtype=torch.int64)
    dist.recv(header, src)
    tensor = torch.empty(header[1 : 1 + int(header[0])].tolist())
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
    back=lambda gradient: gradient,
    pass_on=send_activation,
    send=lambda tensor, dst: [dist.isend(tensor, dst)],
    wait=True,
    keep=False,
    held=None,
    loss_of=lambda losses, rows: sum(map(operator.mul, losses, rows)) / sum(rows),
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
                sending += pass_on(out, rank + 1)
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
                out.backward(back(gradient), retain_graph=keep)
            if rank > 0:
                sending += send(inp.grad, rank - 1)
            if keep:
                held["kept", m] = inp, out
    for handle in sending if wait else []:
        handle.wait()
    if rank == world - 1:
        return float(loss_of([losses[m] for m in range(len(rows))], rows))


def own_row(schedule):
    return schedule[dist.get_rank()]


# --- right answers -------------------------------------------------------------------------------


@run.right
def plain(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, own_row(schedule), microbatches, loss_fn)


@run.right
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


# --- mistakes: how micro-batches are weighted ----------------------------------------------------

BY_ROWS = "Multiply the mean loss of each micro-batch by its share of all rows before backward."


@run.mistake(
    "not_scaled",
    "each of the {micro} mean losses counts in full, and their gradients add up.",
    fix=BY_ROWS,
)
def gradients_not_scaled(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, own_row(schedule), microbatches, loss_fn, weight=lambda n: 1.0)


@run.mistake(
    "mean_of_means",
    "the micro-batches have different numbers of rows, and each counts the same.",
    fix=BY_ROWS,
)
def divides_by_the_number_of_microbatches(stage, schedule, microbatches, loss_fn):
    count = len(microbatches)
    return pipeline(stage, own_row(schedule), microbatches, loss_fn, weight=lambda n: 1 / count)


@run.mistake(
    "scaled_again",
    "a stage that is not the last scales the gradient that it receives.",
    fix="Scale the loss once, on the last stage: the others use gradients as they come.",
)
def scales_on_every_stage(stage, schedule, microbatches, loss_fn):
    count = len(microbatches)
    return pipeline(stage, own_row(schedule), microbatches, loss_fn, back=lambda g: g / count)


# --- mistakes: which gradients -------------------------------------------------------------------


@run.mistake(
    "one_microbatch_only",
    "only the gradients of the last micro-batch are left.",
    fix="Gradients add up from backward to backward: neither clear nor assign .grad in between.",
)
def clears_in_between(stage, schedule, microbatches, loss_fn):
    def back(gradient):
        stage.zero_grad()
        return gradient

    def weight(n):
        stage.zero_grad()
        return n / sum(len(x) for x, _ in microbatches)

    return pipeline(stage, own_row(schedule), microbatches, loss_fn, back=back, weight=weight)


@run.mistake(
    "earlier_gradients_lost",
    "what was in .grad before run is lost.",
    fix="Add to it, as backward does. zero_grad() is for the caller.",
)
def clears_at_the_beginning(stage, schedule, microbatches, loss_fn):
    stage.zero_grad()
    return pipeline(stage, own_row(schedule), microbatches, loss_fn)


@run.mistake(
    "gradient_of_ones",
    "backward began with ones on a stage that is not the last, as in outputs.sum().backward().",
    fix="Call outputs.backward(gradient) with the gradient that the next stage has sent.",
)
def backward_of_the_sum(stage, schedule, microbatches, loss_fn):
    row = own_row(schedule)
    return pipeline(stage, row, microbatches, loss_fn, back=lambda g: torch.ones_like(g))


# --- mistakes: the loss --------------------------------------------------------------------------

LOSS = "Add up mean loss times rows, and divide by {total}, the rows of all micro-batches."


@run.mistake("loss_of_means", "it is the mean of the micro-batches' mean losses.", fix=LOSS)
def reports_the_mean_of_means(stage, schedule, microbatches, loss_fn):
    def mean(losses, rows):
        return sum(losses) / len(losses)

    return pipeline(stage, own_row(schedule), microbatches, loss_fn, loss_of=mean)


@run.mistake("loss_only_added", "it is the sum of the micro-batches' mean losses.", fix=LOSS)
def adds_up_the_losses(stage, schedule, microbatches, loss_fn):
    row = own_row(schedule)
    return pipeline(stage, row, microbatches, loss_fn, loss_of=lambda losses, rows: sum(losses))


@run.mistake("loss_of_one_microbatch", "it is the loss of the last micro-batch alone.", fix=LOSS)
def reports_the_last_loss(stage, schedule, microbatches, loss_fn):
    row = own_row(schedule)
    return pipeline(stage, row, microbatches, loss_fn, loss_of=lambda losses, rows: losses[-1])


@run.mistake(
    "loss_on_other_ranks",
    "a rank that is not the last one returned a number.",
    fix="Return the loss on the last rank, and None on all others.",
)
def zero_elsewhere(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, own_row(schedule), microbatches, loss_fn) or 0.0


@run.mistake("not_a_float", "the loss is a tensor.", fix="Take the number out with .item().")
def loss_is_a_tensor(stage, schedule, microbatches, loss_fn):
    loss = pipeline(stage, own_row(schedule), microbatches, loss_fn)
    return None if loss is None else torch.tensor(loss)


# --- mistakes: the order of work, and what is kept -----------------------------------------------


@run.breaks("schedule_ignored")
def ignores_the_schedule(stage, schedule, microbatches, loss_fn):
    ms = range(len(microbatches))
    row = [("forward", m) for m in ms] + [("backward", m) for m in ms]
    return pipeline(stage, row, microbatches, loss_fn)


@run.breaks("backward_missing")
def backwards_on_the_last_stage_only(stage, schedule, microbatches, loss_fn):
    row = own_row(schedule)
    if dist.get_rank() < dist.get_world_size() - 1:
        row = [(action, m) for action, m in row if action == "forward"]
    return pipeline(stage, row, microbatches, loss_fn, send=lambda tensor, dst: [])


@run.breaks("stage_not_called")
def only_the_first_and_the_last(stage, schedule, microbatches, loss_fn):
    return 0.5 if dist.get_rank() == dist.get_world_size() - 1 else None


@run.breaks("own_inputs")
def every_stage_takes_the_inputs(stage, schedule, microbatches, loss_fn):
    with contextlib.suppress(RuntimeError):  # of the shape
        for x, _ in microbatches:
            stage(x)


@run.breaks("whole_batch_at_once")
def one_large_microbatch(stage, schedule, microbatches, loss_fn):
    x = torch.cat([x for x, _ in microbatches])
    y = torch.cat([y for _, y in microbatches])
    return pipeline(stage, [("forward", 0), ("backward", 0)], [(x, y)], loss_fn)


@run.breaks("other_activation")
def not_received_into(stage, schedule, microbatches, loss_fn):
    def given(tensor):
        return torch.ones_like(tensor) * tensor.mean() if dist.get_rank() else tensor

    return pipeline(stage, own_row(schedule), microbatches, loss_fn, given=given)


@run.breaks("graph_kept")
def retains_every_graph(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, own_row(schedule), microbatches, loss_fn, keep=True)


@run.breaks("outputs_kept")
def pops_nothing(stage, schedule, microbatches, loss_fn):
    class Held(dict):
        pop = dict.get

    return pipeline(stage, own_row(schedule), microbatches, loss_fn, held=Held())


@run.breaks("not_waited")
def throws_handles_away(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, own_row(schedule), microbatches, loss_fn, wait=False)


# --- mistakes that end early ---------------------------------------------------------------------


def waits(finding):
    """``(rank, op, peer, whether the peer has returned)`` for every rank that waits."""
    states = finding.details["ranks"]
    return [
        (state["rank"], wait["op"], wait["peer"], states[wait["peer"]]["state"] == "returned")
        for state in states
        for wait in state["waits"]
        if wait["op"] in ("send", "recv") and wait["peer"] is not None
    ]


def two_send(finding):
    sends = {(rank, peer) for rank, op, peer, _ in waits(finding) if op == "send"}
    return any((peer, rank) in sends for rank, peer in sends)


def next_one_has_returned(finding):
    return any(op == "recv" and gone and peer > rank for rank, op, peer, gone in waits(finding))


def one_before_has_returned(finding):
    return any(op == "recv" and gone and peer < rank for rank, op, peer, gone in waits(finding))


def sizes_differ(finding):
    first, last = min(finding.ranks), max(finding.ranks)
    same_type = "dtype" not in finding.usually
    return finding.details["difference"] == "bytes" and same_type and last - first == 1


@run.mistake(
    "both_send",
    "a stage sends forward while the next one sends back, and dist.send waits until the other side"
    " receives.",
    fix="Send with isend, go on, and wait for its handle later.",
    status="hang",
    roughly=two_send,
)
def blocking_messages(stage, schedule, microbatches, loss_fn):
    def send(tensor, dst):
        dist.send(tensor, dst)
        return []

    def send_both(tensor, dst):
        return send(shape_of(tensor), dst) + send(tensor.detach(), dst)

    row = own_row(schedule)
    return pipeline(stage, row, microbatches, loss_fn, pass_on=send_both, send=send)


@run.mistake(
    "gradient_not_sent",
    "a stage waits for the gradient of what it has sent, and the next stage has returned.",
    fix="After each backward every stage but the first sends the gradient of its input, input.grad,"
    " to the stage before.",
    status="hang",
    roughly=next_one_has_returned,
)
def input_gradient_not_sent(stage, schedule, microbatches, loss_fn):
    return pipeline(stage, own_row(schedule), microbatches, loss_fn, send=lambda tensor, dst: [])


@run.mistake(
    "activation_not_sent",
    "a stage waits for an activation, and the stage before has returned.",
    fix="After each forward every stage but the last sends what it has returned to the stage"
    " after.",
    status="hang",
    roughly=one_before_has_returned,
)
def sends_only_the_first_activation(stage, schedule, microbatches, loss_fn):
    if dist.get_rank() == 0 and dist.get_world_size() > 1:
        for handle in send_activation(stage(microbatches[0][0]), 1):
            handle.wait()
        return None
    return pipeline(stage, own_row(schedule), microbatches, loss_fn)


@run.mistake(
    "other_shape",
    "the two sides of a message do not expect the same shape, or not the same message.",
    fix="The shape changes from stage to stage: send it before the tensor. A gradient has the shape"
    " of your output.",
    status="mismatch",
    roughly=sizes_differ,
)
def takes_the_shape_of_the_inputs(stage, schedule, microbatches, loss_fn):
    x = microbatches[0][0]
    if dist.get_rank() > 0:
        dist.recv(torch.empty_like(x), dist.get_rank() - 1)
    elif dist.get_world_size() > 1:
        dist.isend(stage(x).detach(), 1).wait()


@run.mistake(
    "no_input_gradient",
    "what was received has no .grad.",
    fix="Call requires_grad_() on it before the stage takes it.",
    status="crash",
)
def forgets_requires_grad(stage, schedule, microbatches, loss_fn):
    row = own_row(schedule)
    return pipeline(stage, row, microbatches, loss_fn, given=lambda tensor: tensor.detach())


@run.words
def words(case):
    return {"total": sum(case.rows)}
