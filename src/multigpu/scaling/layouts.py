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
from itertools import chain, product
from math import gcd
from typing import Any

from multigpu.scaling.plan import GIB, WORDS, Layout, Plan, check, plan
from multigpu.scaling.specs import Cluster, Model

SHOWN = 10
USUAL: dict[str, tuple[Any, ...]] = {  # what is tried for each field of Layout, besides the sizes
    "micro_batch": (1, 2, 4, 8, 16),
    "stages_per_rank": (1, 2, 4),
    "schedule": ("1f1b", "interleaved"),
    "zero": (0, 1, 2, 3),
    "recompute": WORDS["recompute"],
    "attention": ("auto",),
    "precision": ("bf16",),
}
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
    there is none at all, or if a fixed value is not possible, and TypeError for another name.
    """
    of_kind: dict[str, list[Plan]] = {}
    for layout in layouts(model, cluster, global_batch, **fixed):
        planned = plan(model, cluster, layout, global_batch=global_batch)
        of_kind.setdefault(kind_of(layout), []).append(planned)
    every = list(chain.from_iterable(of_kind.values()))
    if not every:
        given = "".join(f", {name}={value}" for name, value in fixed.items())
        raise ValueError(
            f"no layout of {cluster.gpus} GPUs suits the model with global_batch={global_batch}"
            f"{given}: try a batch that is a multiple of the number of GPUs"
            + (", or leave out a value that is given" if given else "")
        )
    # The faster first; of equally fast ones that with less memory.
    fitting = sorted(
        (planned for planned in every if planned.fits),
        key=lambda planned: (round(planned.step_seconds, 6), planned.memory_gib),
    )
    fastest: dict[tuple[int, ...], Plan] = {}  # by sizes
    for planned in fitting:
        each = planned.layout
        fastest.setdefault((each.dp, each.tp, each.pp, each.cp), planned)
    best = tuple(fastest.values())[:SHOWN]
    others: dict[str, str] = {}
    for planned in fitting:  # the first of a kind is its fastest
        kind = kind_of(planned.layout)
        if kind not in others:
            others[kind] = why_slower(planned, best[0])
    for kind, plans in of_kind.items():
        if kind not in others:
            least = min(plans, key=lambda planned: planned.memory_gib)
            use = max(least.memory, key=least.memory.__getitem__)
            needs = f"needs {least.memory_gib:.0f} GiB"
            others[kind] = f"{needs} ({use} {least.memory[use] / GIB:.0f})"
    for planned in best:
        others.pop(kind_of(planned.layout), None)
    return Found(best, others, len(every), len(fitting))


def layouts(model: Model, cluster: Cluster, global_batch: int, **fixed: Any) -> Iterator[Layout]:
    """Every layout that `search` tries. Raises ValueError or TypeError, as it does."""
    Layout(**fixed)  # refuses names and values that no layout has
    usual = USUAL | {name: (value,) for name, value in fixed.items() if name in USUAL}
    for groups in sizes(model, cluster):
        if any(fixed.get(name, size) != size for name, size in groups.items()):
            continue
        for chosen in product(*usual.values()):
            fields = groups | dict(zip(usual, chosen, strict=True))
            # `Layout` and `check` would refuse most of these at length, thousands of times.
            v = fields["stages_per_rank"]
            if (fields["schedule"] == "interleaved") != (v > 1):
                continue
            if v > 1 and (groups["pp"] == 1 or model.layers % (groups["pp"] * v)):
                continue  # no pipeline, or stages of unequal size
            if global_batch % (groups["dp"] * fields["micro_batch"]):
                continue
            if fields["zero"] and groups["dp"] * groups["cp"] == 1 and "zero" not in fixed:
                continue  # one replica divides nothing: the same as ZeRO 0
            layout = Layout(**fields)
            try:
                check(model, cluster, layout, global_batch)
            except ValueError:
                continue
            yield layout


def sizes(model: Model, cluster: Cluster) -> Iterator[dict[str, int]]:
    """dp, tp, pp and cp that use all GPUs and suit the model; tp stays within a node."""
    for tp in divisors(gcd(model.heads, model.ffn, cluster.gpus)):
        if tp > cluster.gpus_per_node:
            continue
        for pp in divisors(cluster.gpus // tp):
            places = -(-model.layers // pp) * pp  # for layers
            if pp > model.layers or places > (1 + MOST_IDLE) * model.layers:
                continue
            for cp in divisors(gcd(cluster.gpus // tp // pp, model.seq)):
                if cp == 1 or model.seq // cp >= LEAST_SEQUENCE:
                    dp = cluster.gpus // tp // pp // cp
                    yield {"dp": dp, "tp": tp, "pp": pp, "cp": cp}


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
