"""Record what lesson 9 shows of batch sizes and learning rates: recall@10 and NDCG@10 on flights.

    python docs/measurements/batch_sizes.py     writes docs/reference/batch_sizes/flights.csv

The model of the task `flights` is trained for one epoch with each batch size, optimizer, rule for
the learning rate and seed, from the same first weights. Only the batch and the rate differ: warm-up
is a tenth of the steps, then a cosine to 0. About five minutes of one core. The page shows what is
stored. One process does it all: DDP on several ranks trains the same from the same global batch.
"""

from collections.abc import Iterator
from typing import Any

import torch
from writer import write

from multigpu.training.optimizer import scaled_learning_rate
from multigpu.training.tasks import TASKS
from multigpu.training.trainer import Trainer

BASE = 512  # where the learning rates below were found
RATES = {"adamw": 0.003, "sgd": 0.3}
SIZES = (128, 512, 2048, 8192)
RULES = ("none", "sqrt", "linear")
SEEDS = (0, 1)
FIGURES = {"recall@10": "eval_recall@10", "ndcg@10": "eval_ndcg@10", "loss": "eval_loss"}


def settings() -> Iterator[dict[str, Any]]:
    """Every run. At the base batch size all rules are one."""
    for seed in SEEDS:
        for optimizer, rate in RATES.items():
            for size in SIZES:
                for rule in RULES if size != BASE else RULES[:1]:
                    yield {
                        "seed": seed,
                        "optimizer": optimizer,
                        "learning_rate": rate,
                        "batch_size": size,
                        "lr_scaling": rule,
                    }


def train(split: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """One run: its settings and what it reached on the test rows."""
    task = TASKS["flights"]
    steps = -(-len(split.train) // chosen["batch_size"])
    config = task.config(
        **chosen,
        base_batch_size=BASE,
        epochs=1,
        warmup_steps=steps // 10,
        weight_decay=0.0,  # sgd adds it to the gradient, adamw does not: it would not compare
    )
    torch.manual_seed(chosen["seed"])
    trainer = Trainer(task.model(), config, split.train, split.test, metrics=task.metrics)
    reached = trainer.fit().last
    return {
        **chosen,
        "learning_rate": f"{scaled_learning_rate(config):g}",
        "steps": reached["step"],
        **{name: f"{reached[column]:.4f}" for name, column in FIGURES.items()},
    }


def main() -> None:
    """Train all."""
    split = TASKS["flights"].load()
    about = f"one process on the CPU; 1 epoch, base batch size {BASE}"
    write("batch_sizes/flights.csv", about, (train(split, chosen) for chosen in settings()))


if __name__ == "__main__":
    main()
