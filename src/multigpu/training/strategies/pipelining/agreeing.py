"""All ranks cut the model at the same places.

Where to cut is measured, so no two measurements need to agree: rank 0 measures and tells the
others. In a run with a folder it also writes the places down (stages.json). A run that goes on is
cut there again, or dropout would draw its numbers in another order.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from multigpu.training.agreement import from_main_rank, main_rank_does
from multigpu.training.atomic_file import replace_file
from multigpu.training.checkpoints import CheckpointError
from multigpu.training.config import TrainConfig
from multigpu.training.resuming import restarted

FILE = "stages.json"
STATE = {"adamw": 2.0, "adam": 2.0, "sgd": 1.0}  # numbers that an optimizer keeps per parameter


class Plan(NamedTuple):
    """Where a model is cut, with what rank 0 measured."""

    places: list[int]  # steps of the model at which a stage begins, and the number of steps
    bubble: float  # predicted share of a step in which a rank waits
    table: str
    asked: dict[str, Any]  # for what it was measured


def plan_alike(
    model: nn.Module, sample: tuple[Tensor, ...], config: TrainConfig, *, asked: dict[str, Any]
) -> Plan:
    """Where to cut `model`, the same on every rank.

    Whatever rank 0 runs into is raised there; the other ranks then raise ValueError.
    """
    found: list[Plan] = []

    def measure() -> None:
        found.append(written(config, asked=asked) or measured(model, sample, config, asked=asked))

    main_rank_does(measure, error=ValueError)
    plan: Plan = from_main_rank(found[0] if found else None)
    return plan


def what_is_asked(config: TrainConfig, *, num_stages: int, rows: int) -> dict[str, Any]:
    """What the places depend on, besides the model and the machine; `rows` of a micro-batch."""
    return {
        "num_stages": num_stages,
        "rows": rows,
        "micro_batches": config.micro_batches,
        "schedule": "gpipe" if config.pipeline_schedule == "gpipe" else "1f1b",
        "balance": config.balance,
        "memory": None if config.stage_memory is None else round(config.stage_memory * 1e6),
        "optimizer_state": STATE[config.optimizer],
    }


def measured(
    model: nn.Module, sample: tuple[Tensor, ...], config: TrainConfig, *, asked: dict[str, Any]
) -> Plan:
    """Measure the model's pieces on this rank's device and divide them."""
    from multigpu.training.cutting import cut

    settings = {name: value for name, value in asked.items() if name not in ("num_stages", "rows")}
    stages = cut(model, sample, asked["num_stages"], device=sample[0].device, **settings)
    bubble = stages.bubble(config.micro_batches, asked["schedule"])
    return Plan(list(stages.places), bubble, str(stages), asked)


def stages_at(model: nn.Module, sample: tuple[Tensor, ...], plan: Plan) -> list[nn.Module]:
    """The stages of `model`: modules with its own parameters, under its own names."""
    from multigpu.training.cutting.chain import chain_of
    from multigpu.training.cutting.recording import record_both

    home = next(model.parameters()).device
    inputs = tuple(tensor.to(home) for tensor in sample)
    program = record_both(model, inputs, rows=len(sample[0]))
    return chain_of(model, program, plan.places)


def written(config: TrainConfig, *, asked: dict[str, Any]) -> Plan | None:
    """The plan in the run's folder, if the run goes on and asks for the same."""
    if config.folder is None or not (config.resume or restarted()):
        return None
    with contextlib.suppress(OSError, ValueError, TypeError):
        plan = Plan(**json.loads((Path(config.folder) / FILE).read_text(encoding="utf-8")))
        return plan if plan.asked == asked else None
    return None


def write_down(plan: Plan, config: TrainConfig) -> None:
    """Keep the plan in the run's folder, which is there and belongs to this run.

    Every rank calls it.  Raises CheckpointError on every rank where rank 0 cannot write.
    """
    if config.folder is not None:
        path = Path(config.folder) / FILE
        content = json.dumps(plan._asdict(), indent=1).encode()
        main_rank_does(lambda: replace_file(path, content), error=CheckpointError)
