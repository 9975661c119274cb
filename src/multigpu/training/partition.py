"""Cut any model into stages of equal time, for pipeline parallelism.

    from multigpu.training import cut
    stages = cut(model, sample, 4)      # sample: the inputs of one micro-batch
    print(stages)                       # the parts of each stage, its time and its memory
    stages.modules[0]                   # an nn.Module: stage 0

model_graph.py traces the model's calls as a torch.fx graph, and stage.py runs and times parts of
it. Here a dynamic program chooses the cuts.

A *step* is one call, a *place* is a step before which the model can be cut, a *piece* is the steps
from one place to the next, and a *stage* is one or more pieces.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from multigpu.pictures import Table
from multigpu.pictures.units import human_bytes, human_seconds
from multigpu.ranks.errors import counted
from multigpu.training.config import CHOICES, check_choice, check_whole
from multigpu.training.model_graph import TracedModel, storage_of, tensors_in, trace_both
from multigpu.training.stage import Seconds, chain_of, measure, verify
from multigpu.training.strategy import to_device


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

    `sample` has the model's inputs for one micro-batch: a tensor, or a tuple of tensors; the first
    dimension of each counts the rows. The stages take micro-batches of the same shapes. Pieces of
    the model are measured on `device`, the model's own by default, `repeats` times. `setting`, all
    of them by name:

    * `balance`: what should be equal: "time" (forward and backward; the default), "memory" or
      "layers" (modules with parameters).
    * `memory`: the limit of a device in bytes, for weights, gradients, the optimizer's
      `optimizer_state` numbers per parameter (2, as Adam has, by default), and the activations of
      all micro-batches in flight. It is only for one stage per rank.
    * `micro_batches` (as many as stages by default) and `schedule` ("1f1b", the default, or
      "gpipe") decide how many are in flight.
    * `stages_per_rank`: 2 or more with the interleaved schedule, whose bubble is smaller.

    Raises ValueError if the model cannot be cut, and says at which operation.
    """
    return cut_points(model, sample, repeats=repeats, device=device).cut(num_stages, **setting)


def cut_points(model: nn.Module, sample: Any, *, repeats: int = 4, device: Any = None) -> CutPoints:
    """Measure once, then cut as often as you like: `cut_points(model, sample).cut(4)`."""
    check_whole("repeats", repeats, at_least=1)
    inputs = sample if isinstance(sample, tuple) else (sample,)
    tensors = tensors_in(inputs)
    if not tensors:
        raise ValueError("sample contains no tensor: pass the model's inputs for one micro-batch")
    if not (tensors[0].dim() and len(tensors[0])):
        raise ValueError(f"sample {tuple(tensors[0].shape)} has no rows: pass a whole micro-batch")
    home = next((p.device for p in model.parameters()), tensors[0].device)
    inputs = to_device(inputs, home)
    program = trace_both(model, inputs)
    verify(model, program, inputs)
    device = torch.device(device) if device is not None else home
    seconds = measure(model, program, to_device(inputs, device), device=device, repeats=repeats)
    return CutPoints(model, program, seconds, rows=len(tensors[0]))


def stages_at(model: nn.Module, sample: tuple[Any, ...], places: Sequence[int]) -> list[nn.Module]:
    """The stages between places that `Stages.places` had, here or in another process."""
    program = trace_both(model, to_device(sample, next(model.parameters()).device))
    for place in places:
        if place not in program.places:
            raise ValueError(
                f"the model cannot be cut before step {place}: the places {list(places)} belong "
                "to another model. If they are from a run's folder, delete its stages.json."
            )
    return chain_of(model, program, places)


Costs = NDArray[np.float64]  # (pieces, pieces + 1)


@dataclass(frozen=True)
class Setting:
    """The training that the stages are chosen for, and what is divided equally; see `cut`."""

    num_stages: int
    balance: str = "time"
    memory: int | None = None
    micro_batches: int | None = None
    schedule: str = "1f1b"
    stages_per_rank: int = 1  # stage i is on rank i % ranks
    optimizer_state: float = 2.0

    def __post_init__(self) -> None:
        check_choice("balance", self.balance, CHOICES["balance"])
        check_choice("schedule", self.schedule, ("1f1b", "gpipe"))
        if self.num_stages < 1:
            raise ValueError(f"num_stages must be at least 1, got {self.num_stages}")
        if self.stages_per_rank < 1 or self.num_stages % self.stages_per_rank:
            raise ValueError(
                f"stages_per_rank={self.stages_per_rank} does not divide {self.num_stages} stages: "
                "each rank has as many"
            )
        if self.memory is not None and self.stages_per_rank > 1:
            raise ValueError(
                f"a limit of memory ({human_bytes(self.memory)}) with stages_per_rank="
                f"{self.stages_per_rank}: the limit is compared with each stage by itself. Leave "
                "it out, or use one stage per rank."
            )

    @property
    def ranks(self) -> int:
        return self.num_stages // self.stages_per_rank

    @property
    def count(self) -> int:
        """Micro-batches of a step."""
        return self.micro_batches or self.num_stages

    def in_flight(self, stage: int) -> int:
        """The most micro-batches that stage `stage` has begun and not ended backward of."""
        count, v = self.count, self.stages_per_rank
        if self.schedule == "gpipe":
            return count
        if v == 1:
            return min(count, self.num_stages - stage)
        # As PyTorch's ScheduleInterleaved1F1B, after Narayanan et al. 2021, arXiv 2104.04473: the
        # stages of a rank take turns, each for `turn` micro-batches, and for backward in reverse.
        # `ahead` forwards come first; from then on each forward is followed by a backward.
        own, rank = divmod(stage, self.ranks)
        turn = count // max(1, count // self.ranks)
        ahead = (v - 1) * turn + 2 * (self.ranks - 1 - rank)
        passes = range(v * count)
        forward = [at // turn % v == own for at in passes]
        backward = [at // turn % v == v - 1 - own for at in passes]
        return max(sum(forward[: ahead + at + 1]) - sum(backward[:at]) for at in passes)


# Handing tensors to the next stage takes time, at some places more than at others.
LINK_BYTES_PER_SECOND = 5e9  # gloo within one machine, or a slow PCIe: a guess that is on record
LINK_SECONDS = 50e-6  # per cut, whatever its size


def link_seconds(handed_bytes: int) -> float:
    """The time to receive a micro-batch from the previous stage and to send its gradient back."""
    return 2 * (handed_bytes / LINK_BYTES_PER_SECOND + LINK_SECONDS) if handed_bytes else 0.0


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

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward + self.backward

    @property
    def memory(self) -> int:
        """Bytes in total, with the activations of all micro-batches in flight."""
        fixed = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return fixed + self.in_flight * self.activation_bytes


@dataclass(frozen=True)
class CutPoints:
    """The places where a model can be cut, with the measured cost of each piece in between."""

    model: nn.Module
    program: TracedModel
    seconds: Sequence[Seconds]  # of each piece: the steps between two places
    rows: int  # of the micro-batch that was measured

    @functools.cached_property
    def places(self) -> list[int]:
        """Every step before which it can be cut, with 0 and the end."""
        return sorted(self.program.places)

    @property
    def num_pieces(self) -> int:
        return len(self.seconds)

    def cut(self, num_stages: int, **setting: Any) -> Stages:
        """Divide the pieces into stages; see `multigpu.training.cut`."""
        chosen = Setting(num_stages, **setting)
        return Stages(self, chosen, divide(self, chosen))

    @functools.cached_property
    def weights(self) -> list[list[Tensor]]:
        """The parameters and buffers that each step uses."""
        named = self.model.named_parameters, self.model.named_buffers
        tensors = {name: one for each in named for name, one in each(remove_duplicate=False)}
        found: list[list[Tensor]] = []
        for step in self.program.training.steps:
            names = [str(one.target) for one in step.node.all_input_nodes if one.op == "get_attr"]
            used = [tensors[name] for name in names if name in tensors]
            if step.module is not None:
                module = self.model.get_submodule(step.module)
                used += [*module.parameters(), *module.buffers()]
            found.append(used)
        return found

    @functools.cached_property
    def layers(self) -> list[int]:
        """Calls of modules with parameters, in each piece."""
        counted = [any(isinstance(one, nn.Parameter) for one in used) for used in self.weights]
        return [sum(counted[begin:end]) for begin, end in itertools.pairwise(self.places)]

    @functools.cached_property
    def handed(self) -> list[list[tuple[int, int]]]:
        """What a stage that begins with each piece receives: storages and bytes."""
        crossings = (self.program.training.crossings[place] for place in self.places[:-1])
        values = [[node.meta["value"] for node in crossing] for crossing in crossings]
        return [*([(storage_of(one), one.nbytes) for one in each] for each in values), []]

    def handed_bytes(self, piece: int) -> int:
        """Bytes that are sent to a stage that begins with this piece."""
        return sum(size for _, size in self.handed[piece]) if piece else 0

    def held(self, first: int) -> NDArray[np.int64]:
        """Memory of a stage that begins with the piece `first`, for each piece before which it may
        end: int64 (pieces + 1, 4), numbers of parameters, bytes of weights, gradients, activations.

        Not a sum over its pieces: tied weights and shared activations count once.
        """
        table = np.zeros((self.num_pieces + 1, 4), dtype=np.int64)
        own: set[int] = set()  # parameters and buffers by their id
        saved: dict[int, int] = {}  # storages kept from forward to backward → bytes
        parameters = weights = gradients = 0
        for piece in range(first, self.num_pieces):
            for at in range(*self.places[piece : piece + 2]):
                saved |= self.program.training.steps[at].saved
                for one in self.weights[at]:
                    if id(one) in own:
                        continue
                    own.add(id(one))
                    weights += one.nbytes
                    if isinstance(one, nn.Parameter):
                        parameters += one.numel()
                        gradients += one.nbytes if one.requires_grad else 0
            kept = {**dict(self.handed[first]), **dict(self.handed[piece + 1]), **saved}
            table[piece + 1] = parameters, weights, gradients, sum(kept.values())
        return table

    def cost(self, number: int, first: int, last: int, setting: Setting) -> StageCost:
        """Stage `number` made of the pieces from `first` up to `last`, without it."""
        steps = self.program.training.steps[self.places[first] : self.places[last]]
        parameters, weights, gradients, activations = self.held(first)[last].tolist()
        return StageCost(
            modules=tuple(dict.fromkeys(step.module for step in steps if step.module)),
            forward=sum(one.forward for one in self.seconds[first:last]),
            backward=sum(one.backward for one in self.seconds[first:last]),
            parameters=parameters,
            weight_bytes=weights,
            gradient_bytes=gradients,
            optimizer_bytes=round(setting.optimizer_state * gradients),
            activation_bytes=activations,
            handed_bytes=self.handed_bytes(first),
            in_flight=setting.in_flight(number),
        )


class Stages:
    """A model as a chain of stages. `modules[i]` takes what `modules[i - 1]` returned."""

    def __init__(self, points: CutPoints, setting: Setting, pieces: Sequence[int]) -> None:
        """`pieces`: the numbers of the pieces at which stages begin, and the number of pieces."""
        self.points, self.setting, self.pieces = points, setting, tuple(pieces)
        self.places = tuple(points.places[piece] for piece in pieces)
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

        Each of these stages holds a copy, and the copies' gradients have to be added up.
        """
        users: dict[nn.Parameter, list[int]] = {}
        for number, stage in enumerate(self.modules):
            for parameter in stage.parameters():
                users.setdefault(parameter, []).append(number)
        named = self.points.model.named_parameters()
        return [(name, tuple(users[one])) for name, one in named if len(users.get(one, ())) > 1]

    def predicted_step(self, num_microbatches: int) -> float:
        """Seconds of a step: the slowest rank decides, after the ranks before it have begun."""
        if self.setting.schedule == "gpipe":  # all forwards, then all backwards
            parts = [[cost.forward for cost in self.costs], [cost.backward for cost in self.costs]]
        else:
            parts = [[cost.seconds for cost in self.costs]]
        total, count = 0.0, self.setting.ranks
        for part in parts:
            ranks = [sum(part[rank::count]) for rank in range(count)]
            # A rank begins when one stage of each rank before it has ended, not all of them.
            waiting = (sum(ranks) - max(ranks)) / self.setting.stages_per_rank
            total += num_microbatches * max(ranks) + waiting
        return total

    def bubble(self, num_microbatches: int) -> float:
        """The share of a step in which a rank waits, on average."""
        busy = num_microbatches * sum(cost.seconds for cost in self.costs)
        return 1 - busy / (self.setting.ranks * self.predicted_step(num_microbatches))

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
        count, each = self.setting.count, self.setting.stages_per_rank
        waits = "a stage" if each == 1 else f"a rank with {each} of the stages"
        title = (
            f"{len(self)} stages for micro-batches of {self.points.rows} rows; with {count} of "
            f"them {waits} is predicted to wait {self.bubble(count):.0%} of a step"
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
# This is more than to divide a list of numbers evenly: see `CutPoints.held`, and the first stages
# hold the activations of more micro-batches than the last.

TOLERANCE = 1.05  # stages within 5 % of the best count as equally good: then fewer bytes decide


def divide(points: CutPoints, setting: Setting) -> list[int]:
    """The numbers of the pieces at which stages begin, with 0 and the end; none is empty.

    Two passes. The first finds the smallest possible largest stage; the second, among all divisions
    as good as that, the one that sends the fewest bytes. Both are exact.

    Raises ValueError if there are fewer pieces than stages, or if no division fits into
    `setting.memory`.
    """
    pieces, stages = points.num_pieces, setting.num_stages
    if stages > pieces:
        times = [sum(each) for each in points.seconds]
        slowest = points.program.training.steps[points.places[times.index(max(times))]]
        raise ValueError(
            f"{stages} stages, but the model can only be cut into {counted(pieces, 'piece')}: use "
            f"at most {counted(pieces, 'stage')}. The slowest piece is {slowest}, "
            f"{human_seconds(max(times))}"
        )
    # Each table has the stage from piece `first` up to `last` in row `first` and column `last`.
    held = None
    if setting.balance == "memory" or setting.memory is not None:
        held = np.stack([points.held(first) for first in range(pieces)])
    handed = [points.handed_bytes(first) for first in range(pieces)]
    is_time = setting.balance == "time"
    before = np.cumsum([0, *(map(sum, points.seconds) if is_time else points.layers)])
    arrival = np.array([link_seconds(size) if is_time else 0.0 for size in handed])
    plain = before - before[:-1, None] + arrival[:, None]

    def shares(number: int) -> Costs:
        """The cost to balance, as stage `number`; infinite if the stage is impossible."""
        found = plain
        if held is not None:
            memory = held @ (0, 1, 1 + setting.optimizer_state, setting.in_flight(number))
            found = memory if setting.balance == "memory" else plain
            limit = math.inf if setting.memory is None else setting.memory
            found = np.where(memory <= limit, found, math.inf)
        return np.where(np.tri(pieces, pieces + 1, dtype=bool), math.inf, found)

    largest, _ = cheapest(pieces, map(shares, range(stages)), np.maximum)
    if largest == math.inf:
        other = dataclasses.replace(setting, balance="memory", memory=None)
        needed = max(cost.memory for cost in Stages(points, other, divide(points, other)).costs)
        raise ValueError(
            f"no cut into {stages} stages fits {human_bytes(setting.memory or 0)} each. The "
            f"best cut needs {human_bytes(needed)} in its largest stage. Use more stages, smaller "
            "or fewer micro-batches, or more memory."
        )
    sent = np.array(handed)[:, None]
    enough = (shares(number) <= largest * TOLERANCE for number in range(stages))
    _, chosen = cheapest(pieces, (np.where(each, sent, math.inf) for each in enough), np.add)
    return chosen


def cheapest(
    pieces: int, costs: Iterable[Costs], join: Callable[..., Costs]
) -> tuple[float, list[int]]:
    """The cheapest division into stages: its cost, and the pieces at which they begin."""
    total = np.array([0.0, *[math.inf] * pieces])  # of the stages so far, up to each piece
    begins = []
    for cost in costs:
        whole = join(total[:-1, None], cost)  # (first, last) of the next stage
        begins.append(whole.argmin(axis=0))
        total = whole.min(axis=0)
    chosen = [pieces]
    for first in reversed(begins):
        chosen.insert(0, int(first[chosen[0]]))
    return float(total[-1]), chosen
