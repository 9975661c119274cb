"""Cut any model into stages of equal time, for pipeline parallelism.

    from multigpu.training import cut
    stages = cut(model, sample, 4)      # sample: the inputs of one micro-batch
    print(stages)                       # what is where, how long it takes, how much it needs
    stages.modules[0]                   # an nn.Module: stage 0

model_graph.py finds out what the model calls, as a torch.fx graph. Here the graph is timed in
pieces, and a dynamic programme chooses the cuts between them. stage.py is what comes out.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import operator
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.pictures import Table
from multigpu.pictures.units import human_bytes, human_seconds
from multigpu.training.model_graph import Program, at_rows, trace_both
from multigpu.training.stage import Stage, chain_of, verify
from multigpu.training.strategy import synchronize, to_device


def cut(
    model: nn.Module,
    sample: Any,
    num_stages: int,
    *,
    repeats: int = 4,
    device: Any = None,
    **setting: Any,
) -> Stages:
    """Cut `model` into `num_stages` stages that can run one after the other on different devices.

    `sample` is what the model is called with for one micro-batch: a tensor, or a tuple of inputs;
    the first dimension of each tensor is the rows. Its pieces are measured on `device`, the model's
    own by default, `repeats` times. `setting`, all of them by name:

    * `balance`: what shall be equal: "time" (forward and backward; the default), "memory" or
      "layers" (modules with parameters).
    * `memory`: the limit of a device in bytes, for weights, gradients, the optimizer's
      `optimizer_state` numbers per parameter (2, as Adam has, by default), and the activations of
      all micro-batches in flight.
    * `micro_batches` (as many as stages by default) and `schedule` ("1f1b", the default, or
      "gpipe") decide how many are in flight.

    Raises ValueError where the model cannot be cut so, and says at which operation.
    """
    return cut_points(model, sample, repeats=repeats, device=device).cut(num_stages, **setting)


def cut_points(model: nn.Module, sample: Any, *, repeats: int = 4, device: Any = None) -> CutPoints:
    """Measure once, then cut as often as you like: `cut_points(model, sample).cut(4)`."""
    inputs = sample if isinstance(sample, tuple) else (sample,)
    tensors = [one for one in tree_leaves(inputs) if isinstance(one, Tensor)]
    if not tensors:
        raise ValueError("sample has no tensor: give the model's inputs for one micro-batch")
    if not (tensors[0].dim() and len(tensors[0])):
        raise ValueError(f"sample {tuple(tensors[0].shape)} has no rows: give a whole micro-batch")
    home = next((p.device for p in model.parameters()), tensors[0].device)
    rows, inputs = len(tensors[0]), to_device(inputs, home)
    program = trace_both(model, inputs, rows=rows)
    verify(model, program, inputs, rows=rows)
    places = pieces_of(program, rows)
    device = torch.device(device) if device is not None else home
    there = to_device(inputs, device)
    seconds = measure(model, program, places, there, device=device, repeats=repeats)
    return CutPoints(model, program, places, seconds, rows)


def stages_at(model: nn.Module, sample: tuple[Any, ...], places: Sequence[int]) -> list[nn.Module]:
    """The stages between places that `Stages.places` had, here or in another process."""
    inputs = to_device(sample, next(model.parameters()).device)
    rows = next(len(one) for one in tree_leaves(inputs) if isinstance(one, Tensor))
    program = trace_both(model, inputs, rows=rows)
    for place in places:
        if place not in program.places:
            raise ValueError(
                f"the model cannot be cut before step {place}: the places {list(places)} belong "
                "to another model. If they are from a run's folder, delete its stages.json."
            )
    return chain_of(model, program, places)


SCHEDULES = ("1f1b", "gpipe", "interleaved")
# What stages get equal shares of → the figure of a StageCost.
BALANCES = {"time": "busy", "memory": "memory", "layers": "layers"}


@dataclass(frozen=True)
class Setting:
    """For what training the stages are chosen, and what they get equal shares of; see `cut`."""

    num_stages: int
    balance: str = "time"
    memory: int | None = None
    micro_batches: int | None = None
    schedule: str = "1f1b"
    optimizer_state: float = 2.0

    def __post_init__(self) -> None:
        for name, allowed in (("balance", BALANCES), ("schedule", SCHEDULES)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: choose from {', '.join(map(repr, allowed))}")
        if self.num_stages < 1:
            raise ValueError(f"num_stages must be at least 1, got {self.num_stages}")

    @property
    def count(self) -> int:
        """Micro-batches of a step."""
        return self.micro_batches or self.num_stages

    def in_flight(self, stage: int) -> int:
        """Micro-batches that stage `stage` has begun and not yet carried back, at most."""
        return min(self.count, self.num_stages - stage) if self.schedule == "1f1b" else self.count


# Handing tensors to the next stage takes time, at some places more than at others.
LINK_BYTES_PER_SECOND = 5e9  # gloo within one machine, or a slow PCIe: a guess that is on record
LINK_SECONDS = 50e-6  # per cut, whatever its size


@dataclass(frozen=True)
class StageCost:
    """One stage, for one micro-batch."""

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
    def busy(self) -> float:
        """Seconds for one micro-batch: compute, receive, send the gradient back."""
        handed = 2 * (self.handed_bytes / LINK_BYTES_PER_SECOND + LINK_SECONDS)
        return self.seconds + (handed if self.handed_bytes else 0.0)

    @property
    def memory(self) -> int:
        """Bytes in all, with the activations of all micro-batches in flight."""
        fixed = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return fixed + self.in_flight * self.activation_bytes


class Seconds(NamedTuple):
    """Medians for one piece."""

    forward: float
    backward: float


@dataclass(frozen=True)
class CutPoints:
    """Where a model could be cut, with the measured cost of each piece in between."""

    model: nn.Module
    program: Program
    pieces: Sequence[int]  # the steps at which measured pieces begin, and the number of steps
    seconds: Sequence[Seconds]  # of each piece
    rows: int  # of the micro-batch that was measured

    @property
    def places(self) -> list[int]:
        """Every step before which it could be cut, with 0 and the end."""
        return sorted(self.program.places)

    @property
    def num_pieces(self) -> int:
        return len(self.seconds)

    def cut(self, num_stages: int, **setting: Any) -> Stages:
        """Divide the pieces into stages; see `multigpu.training.cut`."""
        chosen = Setting(num_stages, **setting)
        return Stages(self, chosen, divide(self, chosen))

    @functools.cached_property
    def _own(self) -> list[list[Tensor]]:
        """The parameters and buffers that each step uses."""
        named = self.model.named_parameters, self.model.named_buffers
        tensors = {name: one for each in named for name, one in each(remove_duplicate=False)}
        own: list[list[Tensor]] = []
        for step in self.program.training.steps:
            used: list[Tensor] = [tensors[name] for name in step.held if name in tensors]
            if step.module is not None:
                module = self.model.get_submodule(step.module)
                used += [*module.parameters(), *module.buffers()]
            own.append(used)
        return own

    def cost(self, number: int, first: int, last: int, setting: Setting) -> StageCost:
        """Stage `number` made of the pieces from `first` up to `last`, without it.

        What it holds is not a sum over its pieces: tied weights and shared activations count once.
        """
        trace, begin, end = self.program.training, self.pieces[first], self.pieces[last]
        steps, own = trace.steps[begin:end], self._own[begin:end]
        held = {id(one): one for used in own for one in used}.values()
        parameters = [one for one in held if isinstance(one, nn.Parameter)]
        trained_bytes = sum(one.nbytes for one in parameters if one.requires_grad)
        received = trace.crossing(begin) if begin else trace.inputs
        handed = trace.crossing(end) if end < len(trace.steps) else []
        kept = {storage: size for step in steps for storage, size in step.saved.items()}
        for value in (node.meta["value"] for node in (*received, *handed)):
            kept.setdefault(value.storage, value.bytes)
        return StageCost(
            modules=tuple(dict.fromkeys(step.module for step in steps if step.module)),
            forward=sum(one.forward for one in self.seconds[first:last]),
            backward=sum(one.backward for one in self.seconds[first:last]),
            parameters=sum(one.numel() for one in parameters),
            weight_bytes=sum(one.nbytes for one in held),
            gradient_bytes=trained_bytes,
            optimizer_bytes=round(setting.optimizer_state * trained_bytes),
            activation_bytes=sum(at_rows(size, self.rows) for size in kept.values()),
            handed_bytes=bytes_of(received, self.rows) if begin else 0,
            in_flight=setting.in_flight(number),
            layers=sum(any(isinstance(one, nn.Parameter) for one in used) for used in own),
        )


def bytes_of(nodes: Sequence[fx.Node], rows: int) -> int:
    """Bytes of some tensors of the graph, for a batch of so many rows."""
    return sum(at_rows(node.meta["value"].bytes, rows) for node in nodes)


class Stages:
    """A model as a chain of stages. `modules[i]` takes what `modules[i - 1]` returned."""

    def __init__(self, points: CutPoints, setting: Setting, pieces: Sequence[int]) -> None:
        """`pieces`: the numbers of the pieces at which stages begin, and the number of pieces."""
        self.points, self.setting, self.pieces = points, setting, tuple(pieces)
        self.places = tuple(points.pieces[piece] for piece in pieces)
        self.costs = tuple(
            points.cost(number, first, last, setting)
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
        users: dict[nn.Parameter, list[int]] = {}
        for number, stage in enumerate(self.modules):
            for parameter in stage.parameters():
                users.setdefault(parameter, []).append(number)
        named = self.points.model.named_parameters()
        return [(name, tuple(users[one])) for name, one in named if len(users.get(one, ())) > 1]

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

        def megabytes(count: int) -> str:  # with two or three figures
            return f"{count / 1e6:,.2f}" if count < 1e7 else f"{count / 1e6:,.0f}"

        lines = [
            (
                str(number),
                " … ".join(dict.fromkeys(cost.modules[:1] + cost.modules[-1:])) or "functions only",
                f"{cost.parameters:,}",
                human_seconds(cost.seconds),
                *map(megabytes, (cost.weight_bytes, cost.gradient_bytes, cost.activation_bytes)),
            )
            for number, cost in enumerate(self.costs)
        ]
        count = self.setting.count
        title = (
            f"{len(self)} stages for micro-batches of {self.points.rows} rows; with {count} of "
            f"them a stage waits {self.bubble(count):.0%} of a step, as predicted"
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

# Where to cut: the stages whose slowest is as fast as it can be, within the memory of a device.
# This is more than to divide a list of numbers evenly: see `CutPoints.cost`, and the first stages
# hold the activations of more micro-batches than the last.

ALIKE = 1.05  # stages within 5 % of the best count as equally good: then fewer bytes decide
Span = tuple[int, int, int]  # a stage's number, its first piece, the piece after its last
Way = tuple[float, list[int]]  # what it costs, and the pieces at which its stages begin and end


def divide(points: CutPoints, setting: Setting) -> list[int]:
    """The numbers of the pieces at which stages begin, with 0 and the end; none is empty.

    Two passes over the same table. The first finds the smallest possible largest stage; the second,
    among all divisions as good as that, the one that hands on the fewest bytes. Both are exact.

    Raises ValueError where there are fewer pieces than stages, and where no division fits into
    `setting.memory`.
    """
    pieces, stages, memory = points.num_pieces, setting.num_stages, setting.memory
    if stages > pieces:
        times = [sum(each) for each in points.seconds]
        slowest = points.program.training.steps[points.pieces[times.index(max(times))]]
        raise ValueError(
            f"{stages} stages, but the model can only be cut into {pieces} "
            f"{'piece' if pieces == 1 else 'pieces'}: use at most {pieces} "
            f"{'stage' if pieces == 1 else 'stages'}. The slowest piece is {slowest}, "
            f"{human_seconds(max(times))}"
        )
    table: dict[Span, StageCost] = {}
    for number in range(stages):
        for first, last in itertools.combinations(range(pieces + 1), 2):
            if (first == 0) == (number == 0) and (last == pieces) == (number == stages - 1):
                cost = points.cost(number, first, last, setting)
                if memory is None or cost.memory <= memory:
                    table[number, first, last] = cost
    weights = {span: getattr(cost, BALANCES[setting.balance]) for span, cost in table.items()}

    def best(costs: Mapping[Span, float], join: Callable[[float, float], float]) -> Way | None:
        """The cheapest way through all stages."""
        ways: dict[int, Way] = {0: (0.0, [0])}
        for number in range(stages):
            onward: dict[int, Way] = {}
            for (stage, first, last), cost in costs.items():
                if stage == number and first in ways:
                    so_far, begins = ways[first]
                    total = join(so_far, cost)
                    if total < onward.get(last, (math.inf, []))[0]:
                        onward[last] = total, [*begins, last]
            ways = onward
        return ways.get(pieces)

    largest = best(weights, max)
    if largest is None:
        other = dataclasses.replace(setting, balance="memory", memory=None)
        needed = max(cost.memory for cost in Stages(points, other, divide(points, other)).costs)
        raise ValueError(
            f"no division into {stages} stages fits {human_bytes(memory or 0)} each: the best one "
            f"needs {human_bytes(needed)} in its largest stage. Use more stages, smaller or fewer "
            "micro-batches, or more memory."
        )
    enough = largest[0] * ALIKE
    handed = {span: cost.handed_bytes for span, cost in table.items() if weights[span] <= enough}
    fewest = best(handed, operator.add)
    assert fewest is not None
    return fewest[1]


# How long each piece takes, forward and backward, on the device that it will run on. Nothing is
# estimated: every piece runs by itself, as a stage does, several times. What it costs to start a
# backward pass at all is measured, too, and taken off: a stage pays it once, not per piece.

PIECES = 48  # at most, however many steps a model has
PER_SWEEP = 2  # timed runs of a piece before the next one has its turn
ENOUGH_SECONDS = 4.0  # after which no new sweep begins


def pieces_of(program: Program, rows: int) -> list[int]:
    """The places where pieces begin and end, 0 and the end included.

    Where there are more places than pieces, neighbours are grouped, and of each group the place is
    taken at which the fewest bytes would have to be handed on.
    """
    trace, allowed = program.training, sorted(program.places)[1:-1]

    def handed(place: int) -> tuple[int, int]:
        nodes = trace.crossing(place)
        copied = [node for node in nodes if node.meta["value"].gaps]
        return bytes_of([*nodes, *copied], rows), len(nodes)

    size = max(1, math.ceil(len(allowed) / PIECES))
    groups = (allowed[at : at + size] for at in range(0, len(allowed), size))
    return [0, *(min(group, key=handed) for group in groups), len(trace.steps)]


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
    runs: list[list[Seconds]] = [[] for _ in spans]
    began = time.perf_counter()
    with torch.random.fork_rng(), torch.enable_grad():
        for sweep in range(-(-repeats // PER_SWEEP)):
            if sweep and time.perf_counter() - began > ENOUGH_SECONDS:
                break
            given: tuple[Any, ...] = inputs
            for (begin, end), mine in zip(spans, runs, strict=True):
                # A copy, so that measuring leaves weights, gradients and buffers alone.
                stage = copy.deepcopy(Stage(model, program, begin, end)).train().to(device)
                returned, times = timed(stage, given, device=device, times=PER_SWEEP)
                given = returned if isinstance(returned, tuple) else (returned,)
                mine += times
        nothing = torch.zeros(8, 8, device=device, requires_grad=True)
        _, idle = timed(nn.Flatten(0), (nothing,), device=device, times=20)

    def median(times: list[Seconds]) -> tuple[float, ...]:
        return tuple(map(statistics.median, zip(*times, strict=True)))

    least = median(idle)
    return [
        Seconds(*(max(one - idle, 0.0) for one, idle in zip(median(mine), least, strict=True)))
        for mine in runs
    ]


def timed(
    stage: nn.Module, given: tuple[Any, ...], *, device: torch.device, times: int
) -> tuple[Any, list[Seconds]]:
    """Run a piece `times` times after a warm-up: what it returned, and how long each run took."""

    def detached(one: Any) -> Any:  # whether a gradient flows back is kept
        return one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one

    def now() -> float:
        synchronize(device)
        return time.perf_counter()

    runs = []
    for _ in range(1 + times):
        fresh = tree_map(detached, given)
        began = now()
        returned = stage(*fresh)
        middle = now()
        outs = [t for t in tree_leaves(returned) if isinstance(t, Tensor) and t.requires_grad]
        grads = [torch.ones_like(out) for out in outs]
        turned = now()
        if outs:
            torch.autograd.backward(outs, grads)
        runs.append(Seconds(middle - began, now() - turned))
    return tree_map(detached, returned), runs[1:]
