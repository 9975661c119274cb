"""Where to cut: the stages whose slowest is as fast as it can be, within the memory of a device.

This is more than to divide a list of numbers evenly. What a stage holds is no sum over its pieces:
tied weights and shared activations count once, and the first stages hold the activations of more
micro-batches than the last. And handing tensors to the next stage takes time, at some places more
than at others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from multigpu.pictures.units import human_bytes, human_seconds
from multigpu.training.cutting.costs import Costs, Setting, StageCost

LINK_BYTES_PER_SECOND = 5e9  # gloo within one machine, or a slow PCIe: a guess that is on record
LINK_SECONDS = 50e-6  # per cut, whatever its size
ALIKE = 1.05  # stages within 5 % of the best count as equally good: then fewer bytes decide

Weigh = Callable[[StageCost], float]


def weigh_time(cost: StageCost) -> float:
    """Seconds that a micro-batch keeps the stage busy: compute, receive, send the gradient back."""
    handed = 2 * (cost.handed_bytes / LINK_BYTES_PER_SECOND + LINK_SECONDS)
    return cost.seconds + (handed if cost.handed_bytes else 0.0)


WEIGHTS: dict[str, Weigh] = {
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
        raise ValueError(
            f"{stages} stages, but the model can only be cut into {pieces} "
            f"{'piece' if pieces == 1 else 'pieces'}: use at most {pieces} "
            f"{'stage' if pieces == 1 else 'stages'}. The slowest piece is {_slowest(costs)}"
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


def _slowest(costs: Costs) -> str:
    """The first step of the piece that takes longest, and how long it takes."""
    which = max(range(len(costs.seconds)), key=lambda piece: costs.seconds[piece].both)
    step = costs.program.steps[costs.places[which]]
    return f"{step}, {human_seconds(costs.seconds[which].both)}"


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
