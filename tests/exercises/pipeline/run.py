"""``pipeline.run``: one stage at work, which does what its row of the schedule says."""

import operator

import torch
import torch.distributed as dist

from multigpu.checking import Returned, describe
from multigpu.checking.comparing import RESULT, Near
from multigpu.checking.declaration import case, exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

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
        yield a_case("vectors", (4, 1, 3, 2), all_forwards_first(world, 4))
        yield a_case("vectors", (2,) * 6, in_turns(world, 6), steps=3)
        yield a_case("vectors", (2,) * world, in_turns(world, world))
        yield a_case("vectors", (3,), in_turns(world, 1))
        yield a_case("vectors", (2,) * 5, in_turns(world, 5, order=(3, 0, 4, 1, 2)))
        yield a_case("vectors", (3, 3, 3, 3), all_forwards_first(world, 4, reverse=True))
        yield a_case("vectors", (2, 1), in_turns(world, 2), before=1 / 128)
    yield a_case("sequences", (2, 1, 3, 2), in_turns(4, 4), steps=2)
    yield a_case("sequences", (1, 2), all_forwards_first(4, 2))


def a_case(kind, rows, table, steps=1, before=0.0, alone=False):
    """Every gradient is ``before`` when ``run`` is called; None, if that is zero."""
    title = f"{counted(len(table), 'stage')}, micro-batches of {listed(rows)} rows: {kind}"
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


def takes_something_else(side):
    for event in side.events:
        if event["kind"] == "backward" or side.microbatch_of[event["call"]] is not None:
            continue
        came, right = event["tensor"], side.inputs[0].dtype
        if not isinstance(came, Returned):
            return f"took {describe(came)}"
        shapes = listed(dict.fromkeys(tuple(tensor.shape) for tensor in side.inputs))
        there = f"{came.dtype} of shape {tuple(came.shape)}"
        return f"took {there}, and none of what is for it: {right} of shape {shapes}"
    return None


on_each_side(
    "other_activation",
    takes_something_else,
    "stage 0 takes the inputs of one micro-batch, every other stage what the stage before returned",
    "it was read before its message had come, another message was received into it, or it was never"
    " received: microbatches has the inputs of the whole model on every rank.",
    fix="The shape may differ from stage to stage, and the number of rows from micro-batch to"
    " micro-batch: send the shape first, then the numbers, and receive into a new tensor.",
)


def does_something_else(side):
    done = [action for action, _ in side.actions]
    return done != side.row and f"did {shown(done)}, and its row is {shown(side.row)}"


on_each_side(
    "schedule_ignored",
    does_something_else,
    "each rank does what its row of the schedule says",
    "the actions come in another order, or some are done twice or not at all; or backward does not"
    " reach what the stage has returned. The order decides how many micro-batches are in flight at"
    " once, and so how much memory is needed.",
    fix="Go through schedule[rank] from its beginning to its end, and take the micro-batch that"
    " each action names: they need not come as 0, 1, 2. Call backward on what the stage returned.",
)


def keeps_a_graph(side):
    done = []
    for (kind, _), event in side.actions:
        graphs = {*done} & {*event["kept"]}
        # A variable may name the last output, and a thread that sends may name another.
        outputs = {*done[:-1]} & {*event["made"]}
        if graphs or len(outputs) > 1:
            numbers = listed(sorted(side.microbatch_of[call] for call in graphs or outputs))
            return f"still had the {'graph' if graphs else 'outputs'} of micro-batch {numbers}"
        if kind == "backward":
            done.append(event["call"])
    return side.left and f"still had the graph of micro-batch {side.microbatch_of[side.left[0]]}"


on_each_side(
    "graph_kept",
    keeps_a_graph,
    "after the backward of a micro-batch nothing of its graph is kept",
    "what the stage has returned is still in a list or dict, or retain_graph=True keeps the graph.",
    fix="Take it out when its backward comes: in_flight.pop(m).",
    first=False,
)


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


def send_gradient(gradient, dst):
    return [dist.isend(gradient, dst)]


def pipeline(
    stage,
    schedule,
    microbatches,
    loss_fn,
    *,
    weight=lambda n, rows: n / sum(rows),
    given=lambda tensor: tensor,
    before_backward=lambda: None,
    pass_on=send_activation,
    send=send_gradient,
    wait=True,
    twice=False,
    retain=False,
    held=None,
    loss_of=lambda losses, rows: sum(map(operator.mul, losses, rows)) / sum(rows),
):
    """The right answer, unless an option says otherwise."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    rows = [len(x) for x, _ in microbatches]
    held, sending, losses = {} if held is None else held, [], [0.0] * len(rows)
    for action, m in schedule[rank]:
        x, y = microbatches[m]
        if action == "forward":
            inp = x if rank == 0 else receive_activation(rank - 1)
            with torch.set_grad_enabled(not twice):
                out = stage(given(inp))
            if rank < last:
                sending += pass_on(out, rank + 1)
            else:
                out = loss_fn(out, y)
                losses[m] = out.item()
            held[m] = inp, out
        else:
            inp, out = held.pop(m)
            if twice:
                out = stage(inp) if rank < last else loss_fn(stage(inp), y)
            gradient = torch.full_like(out, weight(len(x), rows))
            if rank < last:
                dist.recv(gradient, rank + 1)
            before_backward()
            out.backward(gradient, retain_graph=retain)
            if rank > 0:
                sending += send(inp.grad, rank - 1)
    for handle in sending if wait else []:
        handle.wait()
    return loss_of(losses, rows) if rank == last else None


# --- right answers -------------------------------------------------------------------------------


@run.right
def plain(*given):
    return pipeline(*given)


@run.right
def computes_twice_to_save_memory(*given):
    """Repeats the forward before the backward, as GPipe does."""
    return pipeline(*given, twice=True)


# --- mistakes: gradients and loss ----------------------------------------------------------------

BY_ROWS = "Multiply the mean loss of each micro-batch by its share of all rows before backward."
LOSS = "Add up mean loss times rows, and divide by {total}, the rows of all micro-batches."


@run.mistake(
    "not_scaled",
    "each of the {micro} mean losses counts in full, and their gradients add up.",
    fix=BY_ROWS,
)
def gradients_not_scaled(*given):
    return pipeline(*given, weight=lambda n, rows: 1.0)


@run.mistake(
    "mean_of_means",
    "the micro-batches have different numbers of rows, and each counts the same.",
    fix=BY_ROWS,
)
def divides_by_the_number_of_microbatches(*given):
    return pipeline(*given, weight=lambda n, rows: 1 / len(rows))


@run.mistake(
    "one_microbatch_only",
    "only the gradients of the last micro-batch are left.",
    fix="Gradients add up from backward to backward: neither clear nor assign .grad in between.",
)
def clears_in_between(stage, *given):
    return pipeline(stage, *given, before_backward=stage.zero_grad)


@run.mistake(
    "earlier_gradients_lost",
    "what was in .grad before run is lost.",
    fix="Add to it, as backward does. zero_grad() is for the caller.",
)
def clears_at_the_beginning(stage, *given):
    stage.zero_grad()
    return pipeline(stage, *given)


@run.mistake("loss_of_means", "it is the mean of the micro-batches' mean losses.", fix=LOSS)
def reports_the_mean_of_means(*given):
    return pipeline(*given, loss_of=lambda losses, rows: sum(losses) / len(losses))


@run.mistake("loss_of_one_microbatch", "it is the loss of the last micro-batch alone.", fix=LOSS)
def reports_the_last_loss(*given):
    return pipeline(*given, loss_of=lambda losses, rows: losses[-1])


# --- mistakes: the order of work, and what is kept -----------------------------------------------


@run.breaks("schedule_ignored")
def ignores_the_schedule(stage, schedule, microbatches, loss_fn):
    row = [(action, m) for action in ("forward", "backward") for m in range(len(microbatches))]
    return pipeline(stage, [row] * len(schedule), microbatches, loss_fn)


@run.breaks("schedule_ignored")
def backwards_on_the_last_stage_only(stage, schedule, *given):
    forwards = [[(action, m) for action, m in row if action == "forward"] for row in schedule[:-1]]
    return pipeline(stage, [*forwards, schedule[-1]], *given, send=lambda tensor, dst: [])


@run.breaks("other_activation")
def one_large_microbatch(stage, schedule, microbatches, loss_fn):
    whole = [tuple(torch.cat(parts) for parts in zip(*microbatches, strict=True))]
    return pipeline(stage, [[("forward", 0), ("backward", 0)]] * len(schedule), whole, loss_fn)


@run.breaks("other_activation")
def not_received_into(*given):
    def other(tensor):
        return torch.ones_like(tensor) * tensor.mean() if dist.get_rank() else tensor

    return pipeline(*given, given=other)


class Held(dict):
    """Takes nothing out."""

    pop = dict.get


@run.breaks("graph_kept")
def retains_every_graph(*given):
    return pipeline(*given, retain=True, held=Held())


@run.breaks("graph_kept")
def pops_nothing(*given):
    return pipeline(*given, held=Held())


@run.breaks("not_waited")
def throws_handles_away(*given):
    return pipeline(*given, wait=False)


# --- mistakes that end early ---------------------------------------------------------------------


def two_send(finding):
    """Whether two ranks wait in send, each for the other."""
    states = finding.details["ranks"]
    sends = {(s["rank"], w["peer"]) for s in states for w in s["waits"] if w["op"] == "send"}
    return any((peer, rank) in sends for rank, peer in sends)


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
def blocking_messages(*given):
    def send(tensor, dst):
        dist.send(tensor, dst)
        return []

    def send_both(tensor, dst):
        return send(shape_of(tensor), dst) + send(tensor.detach(), dst)

    return pipeline(*given, pass_on=send_both, send=send)


@run.mistake(
    "not_sent",
    "a stage waits for the other side of a message, and that stage has returned.",
    fix="After each forward every stage but the last sends what it has returned to the stage after."
    " After each backward every stage but the first sends the gradient of its input, input.grad, to"
    " the stage before.",
    status="hang",
    roughly=True,
)
def input_gradient_not_sent(*given):
    return pipeline(*given, send=lambda tensor, dst: [])


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
def forgets_requires_grad(*given):
    return pipeline(*given, given=lambda tensor: tensor.detach())


@run.words
def words(case):
    return {"total": sum(case.rows)}
