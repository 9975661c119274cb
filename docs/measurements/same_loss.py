"""Record that every mode trains the small GPT to the same loss: what the pipeline lesson shows.

    python docs/measurements/same_loss.py     writes docs/reference/same_loss/text.csv

An epoch of the task `text`, from the same first weights, on the same rows in the same order: in
one process, and on ranks with DDP, zero2, zero3 and pipelines. Some minutes of two cores. The
last column is the difference to one process.
"""

from collections.abc import Iterator
from typing import Any

import torch
from writer import write

from multigpu import run_ranks
from multigpu.training.tasks import TASKS
from multigpu.training.trainer import Trainer

EPOCHS = 1


def runs() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(what it is called, ranks, fields of TrainConfig); the first is what others compare with."""
    yield "single", 1, {"mode": "single"}
    for mode in ("ddp", "zero2", "zero3"):
        for ranks in (2, 4):
            yield mode, ranks, {"mode": mode}
    for schedule in ("gpipe", "1f1b", "interleaved"):
        for ranks in (2, 4) if schedule == "1f1b" else (2,):
            per_rank = 2 if schedule == "interleaved" else 1
            settings = {"pipeline_schedule": schedule, "stages_per_rank": per_rank}
            yield f"pipeline, {schedule}", ranks, {"mode": "pipeline", **settings}


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """One run, on every rank: its last figures."""
    task = TASKS["text"]
    train_rows, test_rows = task.load()
    config = task.config(epochs=EPOCHS, progress=False, **settings)
    torch.manual_seed(0)
    trainer = Trainer(
        task.model(), config, train_rows, test_rows, loss_fn=task.loss_fn, metrics=task.metrics
    )
    return trainer.fit().last


def rows() -> Iterator[dict[str, Any]]:
    """Train all, and compare with the first."""
    single = None
    for name, ranks, settings in runs():
        if ranks == 1:
            reached = train(settings)
        else:
            options = {"backend": "gloo", "trace": False, "show": False, "timeout": 300}
            reached = run_ranks(train, ranks, settings, **options)[0]
        loss = reached["eval_loss"]
        single = loss if single is None else single
        yield {
            "mode": name,
            "ranks": ranks,
            "steps": reached["step"],
            "loss": f"{loss:.6f}",
            "difference": f"{abs(loss - single):.0e}" if ranks > 1 else "0",
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("same_loss/text.csv", f"gloo; {EPOCHS} epoch of the task text", rows())
