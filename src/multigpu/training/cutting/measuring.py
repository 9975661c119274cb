"""How long each piece of a model takes, forward and backward, on the device that it will run on.

Nothing is estimated: every piece runs by itself, as a stage does, several times. What it costs to
start a backward pass at all is measured, too, and taken off: a stage pays it once, not per piece.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.cutting.program import Program, Step
from multigpu.training.cutting.stage import Stage, rows_in
from multigpu.training.devices import synchronize

WINDOWS = 48  # a model is measured in about so many pieces, however many steps it has
AT_LEAST = 16  # of them where there are so many places, even if one step takes nearly all the time
PER_SWEEP = 2  # timed runs of a piece before the next one has its turn
ENOUGH_SECONDS = 4.0  # after which no new sweep begins


@dataclass(frozen=True)
class Seconds:
    """Medians for one piece."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


class TimedStage(Stage):
    """A stage that notes how long each of its steps takes, forward."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.taken: list[float] = []

    def run(self, step: Step, context: Any) -> Any:
        synchronize(context.given[0].device)
        began = time.perf_counter()
        returned = super().run(step, context)
        synchronize(context.given[0].device)
        self.taken.append(time.perf_counter() - began)
        return returned


def allowed_places(program: Program) -> list[int]:
    """Where the model may be cut: something flows back through the cut, and the rows are known."""
    places = []
    for place in range(1, len(program.steps)):
        crossing = program.crossing(place)
        flows_back = any(program.shapes[number].requires_grad for number in crossing)
        if place in program.joined or not flows_back:
            continue
        if rows_in(crossing, program.shapes) is not None:
            places.append(place)
    return places


def pieces_of(
    model: nn.Module, program: Program, inputs: tuple[Any, ...], *, rows: int
) -> list[int]:
    """The places where pieces begin and end, 0 and the end included.

    The forward pass is divided into windows of equal time, and once more into fewer of equally many
    places; in each the place is taken at which the fewest bytes would have to be handed on.
    """
    with quietly():
        stage = copied(TimedStage(model, program, 0, len(program.steps)))
        for _ in range(2):
            stage.taken = []
            with torch.no_grad():
                stage(*inputs)
    ends = 0.0
    best: dict[tuple[str, int], tuple[int, int, int]] = {}
    window = sum(stage.taken) / WINDOWS
    after = [0.0]
    for seconds in stage.taken:
        ends += seconds
        after.append(ends)
    allowed = allowed_places(program)
    for nth, place in enumerate(allowed):
        handed = program.crossing(place)
        shapes = [program.shapes[number] for number in handed]
        size = sum(shape.bytes(rows) * (2 if shape.gaps else 1) for shape in shapes)
        mine = (size, len(handed), place)
        by_time = "time", int(after[place] / window)
        by_count = "count", nth * AT_LEAST // len(allowed)
        for which in (by_time, by_count):
            best[which] = min(best.get(which, mine), mine)
    return [0, *sorted({place for _, _, place in best.values()}), len(program.steps)]


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
        idle_forward, idle_backward = overhead(device)
    return [
        Seconds(
            max(statistics.median(one) - idle_forward, 0.0),
            max(statistics.median(two) - idle_backward, 0.0),
        )
        for one, two in zip(forward, backward, strict=True)
    ]


def timed(
    stage: nn.Module, given: tuple[Any, ...], *, device: torch.device, times: int
) -> tuple[tuple[Any, ...], list[float], list[float]]:
    """Run a piece `times` times after a warm-up: its outputs, seconds forward, seconds backward."""
    forward, backward = [], []
    for _ in range(1 + times):
        fresh = tree_map(_as_leaf, given)
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


def overhead(device: torch.device) -> tuple[float, float]:
    """Seconds that a piece which computes nothing takes, forward and backward."""
    nothing = torch.zeros(8, 8, device=device, requires_grad=True)
    _, forward, backward = timed(_Nothing(), (nothing,), device=device, times=20)
    return statistics.median(forward), statistics.median(backward)


class _Nothing(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        return given.view_as(given)


def _detached(one: Any) -> Any:
    """What is handed on: whether a gradient flows back is kept in it."""
    return one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one


def _as_leaf(one: Any) -> Any:
    return _detached(one) if isinstance(one, Tensor) else one


def copied(stage: nn.Module) -> Any:
    """A copy in training mode, so that measuring leaves weights, gradients and buffers alone."""
    return copy.deepcopy(stage).train()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had run."""
    with torch.random.fork_rng(), torch.enable_grad():
        yield
