"""Searches for the layout that trains fastest on a cluster, and says why each other kind loses.

    from multigpu.scaling.layouts import search
    found = search(model_of("llama-3-70b"), cluster_of("H100", gpus=512), global_batch=1024)
    found.best[0].layout
    found.others        # {"ZeRO-3": "1.33 × the step, compute +5.68 s", …}

Every layout is planned (plan.py): all sizes of the four groups that suit the model, with each
micro-batch, ZeRO stage, recomputation and number of stages per rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any

from multigpu.scaling.plan import GIB, WORDS, Layout, Plan, plan
from multigpu.scaling.specs import Cluster, Model

SHOWN = 10
MICRO_BATCHES = (1, 2, 4, 8, 16)
STAGES_PER_RANK = (1, 2, 4)
LEAST_SEQUENCE = 2048  # tokens of a part in context parallelism
MOST_IDLE = 0.1  # share of a pipeline's places for layers that may be empty


@dataclass(frozen=True)
class Found:
    """What `search` found: plans that fit, the fastest first, and the kinds that are not there."""

    best: tuple[Plan, ...]
    others: dict[str, str]
    tried: int
    fitting: int


def search(model: Model, cluster: Cluster, *, global_batch: int, **fixed: Any) -> Found:
    """Plan every layout on all GPUs of the cluster; `fixed` are fields of Layout, such as `zero=1`.

    Of the layouts with the same dp, tp, pp and cp only the fastest is listed. Raises ValueError if
    there is none at all, or if a fixed value is not possible.
    """
    tried = fitting = 0
    fastest: dict[tuple[Any, ...], Plan] = {}  # by kind and sizes
    smallest: dict[str, Plan] = {}  # by kind
    for layout in layouts(model, cluster, global_batch, **fixed):
        planned = plan(model, cluster, layout, global_batch=global_batch)
        tried += 1
        kind = kind_of(layout)
        if kind not in smallest or planned.memory_gib < smallest[kind].memory_gib:
            smallest[kind] = planned
        if planned.fits:
            fitting += 1
            key = (kind, layout.dp, layout.tp, layout.pp, layout.cp)
            if key not in fastest or _rank(planned) < _rank(fastest[key]):
                fastest[key] = planned
    if not tried:
        raise ValueError(
            f"no layout of {cluster.gpus} GPUs divides global_batch={global_batch} and the model: "
            "try a batch that is a multiple of the number of GPUs"
        )
    ranked = sorted(fastest.values(), key=_rank)
    by_sizes: dict[tuple[int, ...], Plan] = {}
    for planned in ranked:
        each = planned.layout
        by_sizes.setdefault((each.dp, each.tp, each.pp, each.cp), planned)
    best = tuple(by_sizes.values())[:SHOWN]
    listed = {kind_of(planned.layout) for planned in best}
    others: dict[str, str] = {}
    for planned in ranked:  # the first of a kind is its fastest
        others.setdefault(kind_of(planned.layout), why_slower(planned, best[0]))
    for kind, least in smallest.items():
        others.setdefault(kind, why_too_large(least))
    return Found(best, {k: why for k, why in others.items() if k not in listed}, tried, fitting)


def _rank(planned: Plan) -> tuple[float, float]:
    """The faster first; of equally fast ones that with less memory."""
    return round(planned.step_seconds, 6), planned.memory_gib


def layouts(model: Model, cluster: Cluster, global_batch: int, **fixed: Any) -> Iterator[Layout]:
    """Every layout that `search` tries."""

    def choices(name: str, usual: Any) -> Any:
        return (fixed[name],) if name in fixed else usual

    rest = {name: value for name, value in fixed.items() if name in ("attention", "precision")}
    micro_sizes = choices("micro_batch", MICRO_BATCHES)
    schedules = choices("schedule", ("1f1b", "interleaved"))
    for tp, pp, cp, dp in sizes(model, cluster):
        zeros = choices("zero", (0, 1, 2, 3) if dp * cp > 1 else (0,))
        stages = choices("stages_per_rank", STAGES_PER_RANK if pp > 1 else (1,))
        for micro_batch, v in product(micro_sizes, stages):
            if global_batch % (dp * micro_batch):
                continue
            # Interleaving needs m divisible by p (Narayanan et al. 2021, section 2.2.2).
            if v > 1 and (model.layers % (pp * v) or global_batch // (dp * micro_batch) % pp):
                continue
            for schedule in schedules:
                if (schedule == "interleaved") != (v > 1):
                    continue
                for zero, recompute in product(zeros, choices("recompute", WORDS["recompute"])):
                    yield Layout(
                        dp=dp, tp=tp, pp=pp, cp=cp, zero=zero, micro_batch=micro_batch,
                        recompute=recompute, schedule=schedule, stages_per_rank=v, **rest,
                    )  # fmt: skip


def sizes(model: Model, cluster: Cluster) -> Iterator[tuple[int, int, int, int]]:
    """tp, pp, cp and dp that use all GPUs and suit the model; tp stays within a node."""
    for tp in divisors(gcd(model.heads, model.ffn, cluster.gpus)):
        if tp > cluster.gpus_per_node:
            continue
        for pp in divisors(cluster.gpus // tp):
            places = -(-model.layers // pp) * pp  # for layers
            if pp > model.layers or places > (1 + MOST_IDLE) * model.layers:
                continue
            for cp in divisors(gcd(cluster.gpus // tp // pp, model.seq)):
                if cp == 1 or model.seq // cp >= LEAST_SEQUENCE:
                    yield tp, pp, cp, cluster.gpus // tp // pp // cp


def divisors(number: int) -> list[int]:
    """All of them, in rising order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def kind_of(layout: Layout) -> str:
    """The ways that a layout combines: `ZeRO-3 + tensor`."""
    ways = []
    if layout.dp * layout.cp > 1 and layout.zero == 3:
        ways.append("ZeRO-3")
    elif layout.dp > 1:
        ways.append("data")
    named = {"tensor": layout.tp, "pipeline": layout.pp, "context": layout.cp}
    ways += [name for name, size in named.items() if size > 1]
    return " + ".join(ways) or "one GPU"


def why_slower(planned: Plan, best: Plan) -> str:
    """How much slower a plan is, and the part that costs most of the difference."""
    more = {name: part.exposed - best.parts[name].exposed for name, part in planned.parts.items()}
    worst = max(more, key=more.__getitem__)
    ratio = planned.step_seconds / best.step_seconds
    return f"{ratio:.2f} × the step, {worst} +{more[worst]:.2f} s"


def why_too_large(least: Plan) -> str:
    """What the smallest plan of a kind needs, and for what."""
    use = max(least.memory, key=least.memory.__getitem__)
    return f"needs {least.memory_gib:.0f} GiB ({use} {least.memory[use] / GIB:.0f})"
