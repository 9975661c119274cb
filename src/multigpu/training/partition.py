"""Cut any model into stages of equal time, for pipeline parallelism.

    from multigpu.training import cut
    stages = cut(model, sample, 4)      # sample: the inputs of one micro-batch
    print(stages)                       # what is where, how long it takes, how much it needs
    stages.modules[0]                   # an nn.Module: stage 0

model_graph.py finds out what the model calls, as a torch.fx graph. Here the graph is timed in
pieces, and a dynamic programme chooses the cuts between them. stage.py is what comes out.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.pictures import Table
from multigpu.pictures.units import human_bytes, human_seconds
from multigpu.training.model_graph import Program, at_rows, trace_both
from multigpu.training.stage import Stage, chain_of, verify
from multigpu.training.strategy import synchronize

SCHEDULES = ("1f1b", "gpipe", "interleaved")


def cut(
    model: nn.Module,
    sample: Any,
    num_stages: int,
    *,
    balance: str = "time",
    memory: int | None = None,
    micro_batches: int | None = None,
    schedule: str = "1f1b",
    optimizer_state: float = 2.0,
    repeats: int = 4,
    device: Any = None,
) -> Stages:
    """Cut `model` into `num_stages` stages that can run one after the other on different devices.

    `sample` is what the model is called with for one micro-batch: a tensor, or a tuple of inputs;
    the first dimension of each tensor is the rows. `balance` says what shall be equal: "time"
    (forward and backward, measured on `device`, the model's own by default, `repeats` times),
    "memory" or "layers" (modules with parameters). `memory` is the limit of a device in bytes: for
    weights, gradients, the optimizer's `optimizer_state` numbers per parameter (2: Adam), and the
    activations of all micro-batches that `schedule` ("1f1b", "gpipe") keeps in flight.

    Raises ValueError where the model cannot be cut so, and says at which operation.
    """
    points = cut_points(model, sample, repeats=repeats, device=device)
    return points.cut(
        num_stages,
        balance=balance,
        memory=memory,
        micro_batches=micro_batches,
        schedule=schedule,
        optimizer_state=optimizer_state,
    )


def cut_points(model: nn.Module, sample: Any, *, repeats: int = 4, device: Any = None) -> CutPoints:
    """Measure once, then cut as often as you like: `cut_points(model, sample).cut(4)`."""
    inputs = sample if isinstance(sample, tuple) else (sample,)
    tensors = [one for one in tree_leaves(inputs) if isinstance(one, Tensor)]
    if not tensors:
        raise ValueError("sample has no tensor: give the model's inputs for one micro-batch")
    if not (tensors[0].dim() and len(tensors[0])):
        raise ValueError(f"sample {tuple(tensors[0].shape)} has no rows: give a whole micro-batch")
    home = next((p.device for p in model.parameters()), tensors[0].device)
    device = torch.device(device) if device is not None else home
    rows = len(tensors[0])
    inputs = tree_map(lambda one: one.to(home) if isinstance(one, Tensor) else one, inputs)
    program = trace_both(model, inputs, rows=rows)
    verify(model, program, inputs, rows=rows)
    places = pieces_of(model, program, inputs, rows=rows)
    there = tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, inputs)
    seconds = measure(model, program, places, there, device=device, repeats=repeats)
    return CutPoints(model, program, Costs(model, program, places, seconds), rows)


def stages_at(model: nn.Module, sample: tuple[Any, ...], places: Sequence[int]) -> list[nn.Module]:
    """The stages between places that `Stages.places` had, here or in another process."""
    home = next(model.parameters()).device
    inputs = tree_map(lambda one: one.to(home) if isinstance(one, Tensor) else one, sample)
    rows = next(len(one) for one in tree_leaves(inputs) if isinstance(one, Tensor))
    program = trace_both(model, inputs, rows=rows)
    for place in places:
        if place not in program.places:
            raise ValueError(
                f"the model cannot be cut before step {place}: the places {list(places)} belong "
                "to another model. If they are from a run's folder, delete its stages.json."
            )
    return chain_of(model, program, places)


@dataclass(frozen=True)
class CutPoints:
    """Where a model could be cut, with the measured cost of each piece in between."""

    model: nn.Module
    program: Program
    costs: Costs
    rows: int  # of the micro-batch that was measured

    @property
    def places(self) -> list[int]:
        """Every step before which it could be cut, with 0 and the end."""
        return sorted(self.program.places)

    @property
    def num_pieces(self) -> int:
        return len(self.costs.places) - 1

    def cut(
        self,
        num_stages: int,
        *,
        balance: str = "time",
        memory: int | None = None,
        micro_batches: int | None = None,
        schedule: str = "1f1b",
        optimizer_state: float = 2.0,
    ) -> Stages:
        """Divide the pieces into stages; see `multigpu.training.cut`."""
        if balance not in WEIGHTS:
            raise ValueError(f"balance={balance!r}: choose from {', '.join(map(repr, WEIGHTS))}")
        if num_stages < 1:
            raise ValueError(f"num_stages must be at least 1, got {num_stages}")
        if schedule not in SCHEDULES:
            raise ValueError(
                f"schedule={schedule!r}: choose from {', '.join(map(repr, SCHEDULES))}"
            )
        setting = Setting(
            num_stages, self.rows, micro_batches or num_stages, schedule, optimizer_state
        )
        pieces = divide(self.costs, setting, balance=balance, memory=memory)
        return Stages(self, setting, tuple(pieces))


class Stages:
    """A model as a chain of stages. `modules[i]` takes what `modules[i - 1]` returned."""

    def __init__(self, points: CutPoints, setting: Setting, pieces: tuple[int, ...]) -> None:
        self.points, self.setting, self.pieces = points, setting, pieces
        self.places = tuple(points.costs.places[piece] for piece in pieces)
        self.costs: tuple[StageCost, ...] = tuple(
            points.costs.stage(number, first, last, setting)
            for number, (first, last) in enumerate(itertools.pairwise(pieces))
        )
        self.modules = chain_of(points.model, points.program, self.places)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def tied(self) -> list[tuple[str, tuple[int, ...]]]:
        """Parameters that several stages use, by their first name, with the stages' numbers.

        Each of the stages holds one, and their gradients have to be added up.
        """
        names = {id(each): name for name, each in self.points.model.named_parameters()}
        users: dict[int, list[int]] = {}
        for number, stage in enumerate(self.modules):
            for parameter in stage.parameters():
                users.setdefault(id(parameter), []).append(number)
        return [(names[one], tuple(by)) for one, by in users.items() if len(by) > 1]

    def predicted_step(self, num_microbatches: int, schedule: str = "1f1b") -> float:
        """Seconds of a step: the first micro-batch through all stages, then the slowest decides."""
        if schedule == "gpipe":  # all forward passes, then all backward passes
            parts = [[cost.forward for cost in self.costs], [cost.backward for cost in self.costs]]
        else:
            parts = [[cost.seconds for cost in self.costs]]
        return sum(sum(part) + (num_microbatches - 1) * max(part) for part in parts)

    def bubble(self, num_microbatches: int, schedule: str = "1f1b") -> float:
        """The share of a step in which a stage waits, on average."""
        busy = num_microbatches * sum(cost.seconds for cost in self.costs)
        return 1 - busy / (len(self) * self.predicted_step(num_microbatches, schedule))

    def table(self) -> Table:
        """A line per stage, and the predicted bubble.

        MB are millions of bytes, activations those of one micro-batch.
        """
        lines = [
            (
                str(number),
                _named(cost.modules),
                f"{cost.parameters:,}",
                human_seconds(cost.seconds),
                *map(_megabytes, (cost.weight_bytes, cost.gradient_bytes, cost.activation_bytes)),
            )
            for number, cost in enumerate(self.costs)
        ]
        setting, share = self.setting, self.bubble(self.setting.micro_batches)
        title = (
            f"{len(self)} stages for micro-batches of {setting.rows} rows; with "
            f"{setting.micro_batches} of them a stage waits {share:.0%} of a step, as predicted"
        )
        return Table(title, COLUMNS, tuple(lines), frozenset(COLUMNS) - {"modules"})

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


COLUMNS = (
    "stage",
    "modules",
    "parameters",
    "forward + backward",
    "weights MB",
    "gradients MB",
    "activations MB",
)


def _named(modules: tuple[str, ...]) -> str:
    """The first and the last module."""
    if not modules:
        return "functions only"
    return modules[0] if len(modules) == 1 else f"{modules[0]} … {modules[-1]}"


def _megabytes(count: int) -> str:
    """Millions of bytes, with two or three figures."""
    return f"{count / 1e6:,.2f}" if count < 1e7 else f"{count / 1e6:,.0f}"


# What a stage costs


@dataclass(frozen=True)
class Setting:
    """For what training the stages are chosen."""

    num_stages: int
    rows: int  # of a micro-batch
    micro_batches: int
    schedule: str = "1f1b"
    optimizer_state: float = 2.0  # numbers that the optimizer keeps per parameter

    def in_flight(self, stage: int) -> int:
        """Micro-batches that stage `stage` has begun and not yet carried back, at most."""
        if self.schedule == "1f1b":
            return min(self.micro_batches, self.num_stages - stage)
        return self.micro_batches


@dataclass(frozen=True)
class StageCost:
    """One stage, for one micro-batch of `rows` rows."""

    modules: tuple[str, ...]  # the names of the modules that it calls, in order
    forward: float  # seconds
    backward: float  # seconds
    parameters: int  # numbers, each once; those of tied weights in each stage that uses them
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int  # kept from forward to backward
    handed_bytes: int  # what it receives from the stage before it
    in_flight: int  # micro-batches whose activations it holds at the same time
    layers: int  # calls of modules with parameters

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward + self.backward

    @property
    def memory(self) -> int:
        """Bytes in all, with the activations of all micro-batches in flight."""
        fixed = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return fixed + self.in_flight * self.activation_bytes


@dataclass(frozen=True)
class Seconds:
    """Medians for one piece."""

    forward: float
    backward: float


class Costs:
    """The costs of every stage that could be made of the pieces."""

    def __init__(
        self, model: nn.Module, program: Program, places: Sequence[int], seconds: Sequence[Seconds]
    ) -> None:
        self.trace, self.places, self.seconds = program.training, tuple(places), tuple(seconds)
        named = dict(model.named_parameters(remove_duplicate=False))
        tensors = named | dict(model.named_buffers(remove_duplicate=False))
        self.own: list[list[Tensor]] = []  # the parameters and buffers that each step uses
        for step in self.trace.steps:
            used = [tensors[name] for name in step.held if name in tensors]
            if step.module is not None:
                module = model.get_submodule(step.module)
                used += [*module.parameters(), *module.buffers()]
            self.own.append(used)

    def stage(self, number: int, first: int, last: int, setting: Setting) -> StageCost:
        """Stage `number` made of the pieces from `first` up to `last`, without it."""
        begin, end = self.places[first], self.places[last]
        steps = self.trace.steps[begin:end]
        held = {id(one): one for own in self.own[begin:end] for one in own}.values()
        parameters = [one for one in held if isinstance(one, nn.Parameter)]
        trained = [one for one in parameters if one.requires_grad]
        received = self.trace.crossing(begin) if begin else self.trace.inputs
        return StageCost(
            modules=tuple(dict.fromkeys(step.module for step in steps if step.module)),
            forward=sum(one.forward for one in self.seconds[first:last]),
            backward=sum(one.backward for one in self.seconds[first:last]),
            parameters=sum(one.numel() for one in parameters),
            weight_bytes=sum(map(_bytes, held)),
            gradient_bytes=sum(map(_bytes, trained)),
            optimizer_bytes=round(setting.optimizer_state * sum(map(_bytes, trained))),
            activation_bytes=self._activations(begin, end, received, setting.rows),
            handed_bytes=_size(received, setting.rows) if begin else 0,
            in_flight=setting.in_flight(number),
            layers=sum(
                any(isinstance(one, nn.Parameter) for one in own) for own in self.own[begin:end]
            ),
        )

    def _activations(self, begin: int, end: int, received: Sequence[fx.Node], rows: int) -> int:
        """Bytes of all that backward needs, what is received and handed on included; each once."""
        sizes = {
            storage: at_rows(size, rows)
            for step in self.trace.steps[begin:end]
            for storage, size in step.saved.items()
        }
        handed = self.trace.crossing(end) if end < len(self.trace.steps) else []
        for node in (*received, *handed):
            value = node.meta["value"]
            sizes.setdefault(value.storage, at_rows(value.bytes, rows))
        return sum(sizes.values())


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _size(values: Sequence[fx.Node], rows: int) -> int:
    """Bytes of some tensors of the graph, for a batch of so many rows."""
    return sum(at_rows(node.meta["value"].bytes, rows) for node in values)


# Where to cut: the stages whose slowest is as fast as it can be, within the memory of a device.
# This is more than to divide a list of numbers evenly. What a stage holds is not a sum over its
# pieces: tied weights and shared activations count once, and the first stages hold the activations
# of more micro-batches than the last. And handing tensors to the next stage takes time, at some
# places more than at others.

LINK_BYTES_PER_SECOND = 5e9  # gloo within one machine, or a slow PCIe: a guess that is on record
LINK_SECONDS = 50e-6  # per cut, whatever its size
ALIKE = 1.05  # stages within 5 % of the best count as equally good: then fewer bytes decide


def weigh_time(cost: StageCost) -> float:
    """Seconds that a micro-batch keeps the stage busy: compute, receive, send the gradient back."""
    handed = 2 * (cost.handed_bytes / LINK_BYTES_PER_SECOND + LINK_SECONDS)
    return cost.seconds + (handed if cost.handed_bytes else 0.0)


WEIGHTS: dict[str, Callable[[StageCost], float]] = {
    "time": weigh_time,
    "memory": lambda cost: float(cost.memory),
    "layers": lambda cost: float(cost.layers),
}


def divide(costs: Costs, setting: Setting, *, balance: str, memory: int | None) -> list[int]:
    """The numbers of the pieces at which stages begin, with 0 and the end; none is empty.

    Two passes over the same table. The first finds the smallest possible largest stage; the second,
    among all divisions as good as that, the one that hands on the fewest bytes. Both are exact.

    Raises ValueError where there are fewer pieces than stages, and where no division fits `memory`.
    """
    pieces, stages = len(costs.places) - 1, setting.num_stages
    if stages > pieces:
        times = [each.forward + each.backward for each in costs.seconds]
        slowest = costs.trace.steps[costs.places[times.index(max(times))]]
        raise ValueError(
            f"{stages} stages, but the model can only be cut into {pieces} "
            f"{'piece' if pieces == 1 else 'pieces'}: use at most {pieces} "
            f"{'stage' if pieces == 1 else 'stages'}. The slowest piece is {slowest}, "
            f"{human_seconds(max(times))}"
        )
    weigh = WEIGHTS[balance]
    table: dict[tuple[int, int, int], StageCost] = {}
    for number in range(stages):
        for first, last in _spans(number, stages, pieces):
            cost = costs.stage(number, first, last, setting)
            if memory is None or cost.memory <= memory:
                table[number, first, last] = cost
    largest = _best(stages, pieces, {k: weigh(cost) for k, cost in table.items()}, max)
    if largest is None:
        raise ValueError(_no_room(costs, setting, memory or 0))
    enough = largest[0] * ALIKE
    bytes_ = {k: float(cost.handed_bytes) for k, cost in table.items() if weigh(cost) <= enough}
    fewest = _best(stages, pieces, bytes_, lambda one, other: one + other)
    assert fewest is not None
    return fewest[1]


def _spans(number: int, stages: int, pieces: int) -> list[tuple[int, int]]:
    """All pieces that stage `number` could have, so that every other one has at least one."""
    if number == stages - 1:
        return [(first, pieces) for first in range(number, pieces)]
    begins = [0] if number == 0 else range(number, pieces)
    ends = range(number + 1, pieces - (stages - 1 - number) + 1)
    return [(first, last) for first, last in itertools.product(begins, ends) if first < last]


def _best(
    stages: int,
    pieces: int,
    costs: dict[tuple[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]] | None:
    """The cheapest way through: its cost, and the pieces at which stages begin and end."""
    ways: dict[int, tuple[float, list[int]]] = {0: (0.0, [0])}
    for number in range(stages):
        onward: dict[int, tuple[float, list[int]]] = {}
        for (stage, first, last), cost in costs.items():
            if stage != number or first not in ways:
                continue
            so_far, cuts = ways[first]
            total = join(so_far, cost)
            if total < onward.get(last, (math.inf, []))[0]:
                onward[last] = (total, [*cuts, last])
        ways = onward
    return ways.get(pieces)


def _no_room(costs: Costs, setting: Setting, memory: int) -> str:
    """What to say where nothing fits: what the best division by memory would need."""
    cuts = divide(costs, setting, balance="memory", memory=None)
    needed = max(
        costs.stage(number, first, last, setting).memory
        for number, (first, last) in enumerate(itertools.pairwise(cuts))
    )
    return (
        f"no division into {setting.num_stages} stages fits {human_bytes(memory)} each: the best "
        f"one needs {human_bytes(needed)} in its largest stage. Use more stages, smaller or fewer "
        "micro-batches, or more memory."
    )


# How long each piece takes, forward and backward, on the device that it will run on. Nothing is
# estimated: every piece runs by itself, as a stage does, several times. What it costs to start a
# backward pass at all is measured, too, and taken off: a stage pays it once, not per piece.

WINDOWS = 48  # a model is measured in about so many pieces, however many steps it has
AT_LEAST = 16  # of them where there are so many places, even if one step takes nearly all the time
PER_SWEEP = 2  # timed runs of a piece before the next one has its turn
ENOUGH_SECONDS = 4.0  # after which no new sweep begins


def pieces_of(
    model: nn.Module, program: Program, inputs: tuple[Any, ...], *, rows: int
) -> list[int]:
    """The places where pieces begin and end, 0 and the end included.

    The forward pass is divided into windows of equal time, and once more into fewer of equally many
    places; in each the place is taken at which the fewest bytes would have to be handed on.
    """
    trace = program.training
    with quietly(), torch.no_grad():
        stage = copied(Stage(model, program, 0, len(trace.steps)))
        home = next(one.device for one in tree_leaves(inputs) if isinstance(one, Tensor))
        clock: list[float] = []

        def look() -> None:
            synchronize(home)
            clock.append(time.perf_counter())

        for _ in range(2):
            clock.clear()
            look()
            stage.run(inputs, watch=look)
    after = [seconds - clock[0] for seconds in clock]
    window = after[-1] / WINDOWS
    best: dict[tuple[str, int], tuple[int, int, int]] = {}
    allowed = sorted(program.places)[1:-1]
    for nth, place in enumerate(allowed):
        handed = trace.crossing(place)
        # One with gaps is also copied.
        size = sum(_size([node], rows) * (2 if node.meta["value"].gaps else 1) for node in handed)
        mine = (size, len(handed), place)
        by_time = "time", int(after[place] / window)
        by_count = "count", nth * AT_LEAST // len(allowed)
        for which in (by_time, by_count):
            best[which] = min(best.get(which, mine), mine)
    return [0, *sorted({place for _, _, place in best.values()}), len(trace.steps)]


def measure(
    model: nn.Module,
    program: Program,
    places: Sequence[int],
    inputs: tuple[Any, ...],
    *,
    device: torch.device,
    repeats: int,
) -> list[Seconds]:
    """Seconds of each piece between two places: medians over at least `repeats` runs."""
    spans = list(itertools.pairwise(places))
    forward: list[list[float]] = [[] for _ in spans]
    backward: list[list[float]] = [[] for _ in spans]
    with quietly():
        began = time.perf_counter()
        for sweep in range(-(-repeats // PER_SWEEP)):
            if sweep and time.perf_counter() - began > ENOUGH_SECONDS:
                break
            given: tuple[Any, ...] = inputs
            for number, (begin, end) in enumerate(spans):
                stage = copied(Stage(model, program, begin, end)).to(device)
                given, one, two = timed(stage, given, device=device, times=PER_SWEEP)
                forward[number] += one
                backward[number] += two
        nothing = torch.zeros(8, 8, device=device, requires_grad=True)
        _, idle_forward, idle_backward = timed(_Nothing(), (nothing,), device=device, times=20)
    least = statistics.median(idle_forward), statistics.median(idle_backward)
    return [
        Seconds(
            max(statistics.median(one) - least[0], 0.0), max(statistics.median(two) - least[1], 0.0)
        )
        for one, two in zip(forward, backward, strict=True)
    ]


def timed(
    stage: nn.Module, given: tuple[Any, ...], *, device: torch.device, times: int
) -> tuple[tuple[Any, ...], list[float], list[float]]:
    """Run a piece `times` times after a warm-up: its outputs, seconds forward, seconds backward."""
    forward, backward = [], []
    for _ in range(1 + times):
        fresh = tree_map(_detached, given)
        synchronize(device)
        began = time.perf_counter()
        returned = stage(*fresh)
        synchronize(device)
        middle = time.perf_counter()
        outs = [t for t in tree_leaves(returned) if isinstance(t, Tensor) and t.requires_grad]
        grads = [torch.ones_like(out) for out in outs]
        synchronize(device)
        turned = time.perf_counter()
        if outs:
            torch.autograd.backward(outs, grads)
        synchronize(device)
        forward.append(middle - began)
        backward.append(time.perf_counter() - turned)
    handed = tree_map(_detached, returned)
    return handed if isinstance(handed, tuple) else (handed,), forward[1:], backward[1:]


class _Nothing(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        return given.view_as(given)


def _detached(one: Any) -> Any:
    """What is handed on: whether a gradient flows back is kept in it."""
    return one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one


def copied(stage: Stage) -> Stage:
    """A copy in training mode, so that measuring leaves weights, gradients and buffers alone."""
    return copy.deepcopy(stage).train()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had run."""
    with torch.random.fork_rng(), torch.enable_grad():
        yield
