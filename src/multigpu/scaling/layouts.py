"""Searches for the layout that trains fastest on a cluster, and says why each other kind loses.

    from multigpu.scaling.layouts import search
    found = search(model_of("llama-3-70b"), cluster_of("H100", gpus=512), global_batch=1024)
    found.best[0].layout
    found.others        # {"ZeRO-3": "1.21 × the step: data +1.90 s", …}

Every layout is planned (plan.py): all sizes of the four groups that suit the model, with each
micro-batch, ZeRO stage, recomputation and number of stages per rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from multigpu.scaling.plan import GIB, RECOMPUTE, Cluster, Layout, Model, Plan, plan

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
    tried = 0
    fastest: dict[tuple[int, ...], Plan] = {}
    smallest: dict[str, Plan] = {}
    fitting = 0
    for layout in layouts(model, cluster, global_batch, **fixed):
        planned = plan(model, cluster, layout, global_batch=global_batch)
        tried += 1
        kind = kind_of(layout)
        if kind not in smallest or planned.memory_gib < smallest[kind].memory_gib:
            smallest[kind] = planned
        if planned.fits:
            fitting += 1
            sizes = (layout.dp, layout.tp, layout.pp, layout.cp)
            if sizes not in fastest or _rank(planned) < _rank(fastest[sizes]):
                fastest[sizes] = planned
    if not tried:
        raise ValueError(
            f"no layout of {cluster.gpus} GPUs divides global_batch={global_batch} and the model: "
            "try a batch that is a multiple of the number of GPUs"
        )
    ranked = sorted(fastest.values(), key=_rank)
    best = tuple(ranked[:SHOWN])
    listed = {kind_of(planned.layout) for planned in best}
    others = {}
    for kind, least in smallest.items():
        if kind in listed:
            continue
        own = [planned for planned in ranked if kind_of(planned.layout) == kind]
        others[kind] = why_slower(own[0], best[0]) if own else why_too_large(least)
    return Found(best, others, tried, fitting)


def _rank(planned: Plan) -> tuple[float, float]:
    """The faster first; of equally fast ones that with less memory."""
    return round(planned.step_seconds, 6), planned.memory_gib


def layouts(
    model: Model, cluster: Cluster, global_batch: int, **fixed: Any
) -> Iterator[Layout]:
    """Every layout that `search` tries."""

    def choices(name: str, usual: Any) -> Any:
        return (fixed[name],) if name in fixed else usual

    rest = {name: value for name, value in fixed.items() if name in ("attention", "precision")}
    for tp in divisors(min(cluster.gpus, cluster.gpus_per_node)):
        if model.heads % tp or model.ffn % tp or cluster.gpus % tp:
            continue
        for pp in divisors(cluster.gpus // tp):
            if pp > model.layers or -(-model.layers // pp) * pp > (1 + MOST_IDLE) * model.layers:
                continue
            for cp in divisors(cluster.gpus // tp // pp):
                if cp > 1 and (model.seq % cp or model.seq // cp < LEAST_SEQUENCE):
                    continue
                dp = cluster.gpus // tp // pp // cp
                for micro_batch in choices("micro_batch", MICRO_BATCHES):
                    if global_batch % (dp * micro_batch):
                        continue
                    micro_batches = global_batch // (dp * micro_batch)
                    for v in choices("stages_per_rank", STAGES_PER_RANK):
                        # Interleaving needs m divisible by p (Narayanan et al. 2021, section 2.2.2)
                        if v > 1 and (pp == 1 or model.layers % (pp * v) or micro_batches % pp):
                            continue
                        schedule = "interleaved" if v > 1 else "1f1b"
                        if schedule not in choices("schedule", ("1f1b", "interleaved")):
                            continue
                        for zero in choices("zero", (0, 1, 2, 3) if dp * cp > 1 else (0,)):
                            for recompute in choices("recompute", RECOMPUTE):
                                yield Layout(
                                    dp=dp,
                                    tp=tp,
                                    pp=pp,
                                    cp=cp,
                                    zero=zero,
                                    micro_batch=micro_batch,
                                    recompute=recompute,
                                    schedule=schedule,
                                    stages_per_rank=v,
                                    **rest,
                                )


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
    more = {
        name: part.exposed - best.parts[name].exposed for name, part in planned.parts.items()
    }
    worst = max(more, key=more.__getitem__)
    ratio = planned.step_seconds / best.step_seconds
    return f"{ratio:.2f} × the step: {worst} +{more[worst]:.2f} s ({planned.layout})"


def why_too_large(least: Plan) -> str:
    """What the smallest plan of a kind needs, and for what."""
    use = max(least.memory, key=least.memory.__getitem__)
    return (
        f"needs {least.memory_gib:.0f} GiB at least, {least.memory[use] / GIB:.0f} of them "
        f"{use} ({least.layout})"
    )
