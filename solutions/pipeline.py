"""Pipeline parallelism by hand: the model is cut into stages, one per GPU, and rows flow through.

Stage 0 holds the first layers, the last stage the last ones.  Outputs are sent to the next stage,
and in backward their gradients are sent back.  With one batch only one stage would work at a time.
So a batch is cut into **micro-batches**: while stage 1 works on the first, stage 0 starts the next.

    balance         cut the layers into stages that take equally long
    gpipe           the order of work on each stage: all forwards, then all backwards
    one_f_one_b     the same time with less memory: each backward as early as possible
    run             one stage at work: send, receive, forward, backward, as the schedule says

The first three are plain functions.  In ``run`` every rank is one stage, in a process of its own,
and ``torch.distributed`` is initialized: ask ``dist.get_rank()`` and ``dist.get_world_size()``.
It works on the CPU and on GPUs.

    multigpu check pipeline.balance         check one function
    multigpu hint pipeline.balance          a hint; add --more for a stronger one
    python exercises/pipeline.py            train on real digits with your code, and see the bubble

Read the lesson docs/lessons/pipeline first.  You build a pipeline here, so you may not use
``torch.distributed.pipelining``.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise  # solution only

import torch
import torch.distributed as dist
from torch import Tensor, nn

MOST_DIMENSIONS = 8  # of an activation  # solution only
WAYS_BACK = {}  # by group: a second one of the same ranks  # solution only


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    """Cut the layers of a model into stages, so that the most expensive one costs least.

    All stages work at the same time, so each step of the pipeline takes as long as its slowest
    stage.

    * ``costs[i]`` is what layer i costs, for example its seconds: integers or floats, zero or more.
      There is at least one layer and at least one stage.
    * The result has ``num_stages`` ranges of layers, which follow each other: the first starts at
      layer 0, each next one where the one before ends, and the last ends with the last layer.
    * The cost of a stage is the sum over its layers.  The cost of the most expensive stage is as
      small as possible, and if several cuts reach this, any of them is right.  Models have few
      layers, so any method that does not try all cuts is fast enough.
    * No stage is empty if there are at least as many layers as stages.  With fewer layers some
      stages are empty, and you choose which: ``range(2, 2)``, or any other empty range.

    Returns a list of ``range`` objects.

    Example::

        balance([1, 1, 1, 3], 2)        # [range(0, 3), range(3, 4)]: 3 and 3
        balance([2, 2, 2], 2)           # [range(0, 1), range(1, 3)]: 2 and 4, or 4 and 2
        balance([5, 1], 3)              # [range(0, 1), range(1, 2), range(2, 2)]

    Lesson: docs/lessons/pipeline
    """
    layers, total = len(costs), [0, *accumulate(costs)]  # total[k]: the first k layers together
    filled = min(num_stages, layers)
    # best[k]: the first k layers in the stages so far, as (largest cost, where the stages end)
    best = {k: (total[k], (k,)) for k in range(1, layers + 1)}
    for stages in range(2, filled + 1):
        best = {
            k: min(
                (max(best[cut][0], total[k] - total[cut]), (*best[cut][1], k))
                for cut in range(stages - 1, k)  # layers[cut:k] are the last of these stages
            )
            for k in range(stages, layers + 1)
        }
    ends = best[layers][1] + (layers,) * (num_stages - filled)
    return [range(first, end) for first, end in pairwise((0, *ends))]


def gpipe(num_stages: int, num_microbatches: int) -> list[list[tuple[str, int]]]:
    """List what each stage does, in order: first all forwards, then all backwards.

    This is the schedule of GPipe (Huang et al. 2019, arXiv 1811.06965).

    * ``result[s]`` lists the actions of stage s in order: ``("forward", m)`` and
      ``("backward", m)`` once for each micro-batch m from 0 to ``num_microbatches - 1``.
    * Every stage does all of its forwards before its first backward.
    * The backwards may come in the order 0, 1, 2, ... or in the reverse order, which must be the
      same on all stages.
    * A stage can do the forward of a micro-batch when the stage before has done it, and the
      backward when the stage after has done it.  A stage whose next action is not possible yet
      waits.  If each action takes one unit of time, the last one is done after
      ``2 * (num_microbatches + num_stages - 1)`` units, and no schedule takes less.  So the share
      of the time in which a stage waits, the **bubble**, is
      ``(num_stages - 1) / (num_microbatches + num_stages - 1)``.

    Both numbers are one or more.  Returns a list with one list of pairs per stage.

    Example::

        gpipe(2, 2)[0]
        # [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]

    Lesson: docs/lessons/pipeline
    """
    microbatches = range(num_microbatches)
    forwards = [("forward", m) for m in microbatches]
    backwards = [("backward", m) for m in microbatches]
    return [forwards + backwards for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_microbatches: int) -> list[list[tuple[str, int]]]:
    """List what each stage does, in order: one forward and one backward in turn.

    A micro-batch is **in flight** on a stage from its forward to its backward, and meanwhile the
    stage holds its activations.  With ``gpipe`` all micro-batches are in flight at once.  Here each
    stage does a few forwards, then one backward and one forward in turn, then the remaining
    backwards (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503).

    * The result is a table like that of ``gpipe``, with each action once per stage.
    * On stage s at most ``num_stages - s`` micro-batches are in flight at any time, so on the last
      stage only one.
    * If each action takes one unit of time, all is done as early as with ``gpipe``, after
      ``2 * (num_microbatches + num_stages - 1)`` units.  The bubble is the same.
    * There may be fewer micro-batches than stages.

    Both numbers are one or more.  Returns a list with one list of pairs per stage.

    Example::

        one_f_one_b(2, 3)[0]
        # [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1),
        #  ("backward", 2)]
        one_f_one_b(2, 3)[1]
        # [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1), ("forward", 2),
        #  ("backward", 2)]

    Lesson: docs/lessons/pipeline
    """
    table = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)  # so many stages come after this one
        actions = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            actions += [("forward", m + ahead), ("backward", m)]
        actions += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(actions)
    return table


def run(
    stage: nn.Module,
    schedule: Sequence[Sequence[tuple[str, int]]],
    microbatches: Sequence[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> float | None:
    """Do forward and backward of one batch, as one stage of the pipeline.  Rank r is stage r.

    * ``stage`` is this rank's part of the model.  It takes one tensor and returns one.  What
      stage r returns is what stage r + 1 takes: float32, of any shape, and the shape may differ
      from stage to stage.  You choose how a stage learns the shape of what it receives.
    * ``schedule`` is the whole table, as made by ``gpipe`` and ``one_f_one_b``: this rank does what
      ``schedule[r]`` says, in this order, each action once.  In every table all stages do their
      forwards in one order of the micro-batches, and all do their backwards in one order.
    * ``microbatches`` is the same list of ``(inputs, targets)`` on every rank, on the device of its
      stage.  Stage 0 takes the inputs (of any dtype), and the last stage needs the targets.
      Micro-batches may have different numbers of rows.
    * ``loss_fn(outputs, targets)`` is the mean loss over the rows of what the last stage returned.
    * Afterwards the gradients of the stage's parameters are those that the uncut model gets from
      the mean loss over all rows of all micro-batches.  So weight each micro-batch by its number of
      rows.  Gradients are added to ``.grad``, as backward does.  Do not call the optimizer.
    * It must not hang.  ``dist.send`` may wait until the receiver takes the message, and with
      ``one_f_one_b`` a stage sends to the next one while that one sends back.
    * After the backward of a micro-batch, nothing of its graph is kept in memory.
    * With one rank there are no messages.

    Returns the mean loss of the whole batch as a ``float`` on the last rank, ``None`` elsewhere.

    Example::

        stage = layers[rank]                        # a piece of the model
        schedule = one_f_one_b(world_size, len(microbatches))
        optimizer.zero_grad()
        loss = run(stage, schedule, microbatches, nn.CrossEntropyLoss())
        optimizer.step()

    Lesson: docs/lessons/pipeline
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    device = microbatches[0][0].device
    rows = sum(len(inputs) for inputs, _ in microbatches)
    in_flight = {}  # by micro-batch: what the stage was given, what it made of it, what it sent
    mean_loss = torch.zeros((), device=device)
    going_back = []
    for action, m in schedule[rank]:
        inputs, targets = microbatches[m]
        if action == "forward":
            given = inputs if rank == 0 else _receive(rank - 1, device)
            made, sent = stage(given), []
            if rank < last:
                sent = _send(made.detach(), rank + 1)
            else:  # its part of the mean over all rows
                made = loss_fn(made, targets) * (len(inputs) / rows)
                mean_loss += made.detach()
            in_flight[m] = given, made, sent
        else:
            given, made, sent = in_flight.pop(m)
            made.backward(_receive_gradient(made, rank + 1) if rank < last else None)
            _wait(sent + going_back)  # the gradient has come, so what was sent has arrived
            if rank > 0:
                going_back = [dist.isend(given.grad.contiguous(), rank - 1, group=_way_back())]
    _wait(going_back)
    return mean_loss.item() if rank == last else None


def _send(activation: Tensor, dst: int) -> list[dist.Work]:
    """Send the shape of an activation, then its numbers.  ``isend`` does not wait."""
    missing = MOST_DIMENSIONS - activation.dim()  # all messages about a shape have one length
    shape = torch.tensor([activation.dim(), *activation.shape, *[0] * missing])
    return [dist.isend(shape.to(activation.device), dst), dist.isend(activation.contiguous(), dst)]


def _receive(src: int, device: torch.device) -> Tensor:
    """The next activation of the stage before, ready to collect its gradient."""
    shape = torch.empty(1 + MOST_DIMENSIONS, dtype=torch.int64, device=device)
    dist.recv(shape, src)
    dimensions, *sizes = shape.tolist()
    activation = torch.empty(sizes[:dimensions], device=device)
    dist.recv(activation, src)
    return activation.requires_grad_()


def _receive_gradient(activation: Tensor, src: int) -> Tensor:
    """The gradient of what this stage has sent: it has the same shape."""
    gradient = torch.empty_like(activation, memory_format=torch.contiguous_format)
    dist.recv(gradient, src, group=_way_back())
    return gradient


def _wait(messages: Sequence[dist.Work]) -> None:
    """Return when all of these messages have arrived."""
    for message in messages:
        message.wait()


def _way_back() -> dist.ProcessGroup | None:
    """The group in which gradients are sent: with NCCL a second one, else that of all ranks.

    NCCL runs the messages between two ranks of a group one after the other.  Two large messages
    in opposite directions would wait for each other.
    """
    everyone = dist.group.WORLD
    if dist.get_backend() == "nccl" and everyone not in WAYS_BACK:
        WAYS_BACK[everyone] = dist.new_group()
    return WAYS_BACK.get(everyone)


if __name__ == "__main__":
    # A small network in three stages learns handwritten digits with your code, as far as it goes.
    import time
    from itertools import pairwise

    from multigpu import RankError, pictures, run_ranks
    from multigpu.data import digits
    from multigpu.ranks import rank_device
    from multigpu.ranks.stage_spans import WatchedStage
    from multigpu.scaling.pipeline_times import recorded_steps

    STAGES, MICROBATCHES, ROWS, STEPS = 3, 6, 60, 40  # rows of a micro-batch
    CHANNELS = (1, 16, 16, 32, 32, 64)
    ON_GPUS = torch.cuda.device_count() >= STAGES
    images, labels = digits().train.tensors
    loss_fn = nn.CrossEntropyLoss()

    def now():
        if ON_GPUS:
            torch.cuda.synchronize()  # calls return before the GPU is done
        return time.monotonic()

    def network():
        """Layers to cut between.  Every rank makes all of them and keeps its own."""
        torch.manual_seed(0)
        convolutions = [
            nn.Sequential(nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU())
            for before, after in pairwise(CHANNELS)
        ]
        head = (nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * CHANNELS[-1], 10))
        return [*convolutions, nn.Sequential(*head)]

    def measured():
        """Seconds of each layer: forward and backward of a micro-batch, the best of ten."""
        torch.set_num_threads(1)  # as each rank
        device = torch.device("cuda" if ON_GPUS else "cpu")
        rows, costs = images[:ROWS].to(device), []
        for layer in network():
            layer.to(device)
            rows, times = rows.detach().requires_grad_(), []
            for _ in range(10):
                began = now()
                made = layer(rows)
                made.backward(torch.ones_like(made))
                times.append(now() - began)
            rows = made
            costs.append(min(times))
        return costs

    def train(stages, schedule):
        """The losses, known on the last rank.  The last step is watched."""
        rank, device = dist.get_rank(), rank_device() if ON_GPUS else "cpu"
        stage = nn.Sequential(*(network()[i] for i in stages[rank])).to(device)
        optimizer = torch.optim.Adam(stage.parameters(), lr=0.003)
        losses, batch = [], MICROBATCHES * ROWS
        for step in range(STEPS):
            rows = torch.arange(step * batch, step * batch + batch) % len(labels)
            parts = rows.split(ROWS)
            microbatches = [(images[i].to(device), labels[i].to(device)) for i in parts]
            if step == STEPS - 1:
                stage = WatchedStage(stage, micro_batches=MICROBATCHES)
            optimizer.zero_grad()
            losses.append(run(stage, schedule, microbatches, loss_fn))
            optimizer.step()
        return losses

    writing = "balance"
    try:
        costs = measured()
        stages = balance(costs, STAGES)
        for number, part in enumerate(stages):
            cost = sum(costs[i] for i in part)
            print(f"stage {number}: {1e3 * cost:.1f} ms for {part} of the layers")
        for name, make in (("gpipe", gpipe), ("one_f_one_b", one_f_one_b)):
            writing = name
            schedule = make(STAGES, MICROBATCHES)
            writing = "run"
            results = run_ranks(train, STAGES, stages, schedule, show=False)
            losses = results[-1]
            print(f"\n{name}: loss {losses[0]:.3f}, after {STEPS} steps {losses[-1]:.3f}")
            steps = recorded_steps(results.trace.spans)
            print(pictures.schedule(steps, title="The last step").text())
        bubble = (STAGES - 1) / (MICROBATCHES + STAGES - 1)
        print(f"\nThe bubble of equal stages and instant messages: {bubble:.0%} of the time.")
    except (NotImplementedError, RankError) as error:
        if "NotImplementedError" not in f"{type(error).__name__} {error}":
            raise SystemExit(str(error)) from None
        print(f"Next to write: {writing}. Check it with: multigpu check pipeline.{writing}")
