"""Record what lesson 9 shows of the flights: simple rules, the model, one process and two ranks.

    python docs/measurements/flights.py     writes docs/reference/flights/trained.csv

The task `flights` is trained in full with its own settings, once in one process and once with DDP
on two ranks, from the same first weights. Then the same with a ReLU in the hidden layer, which does
not keep the two together. Two minutes on two cores. The page shows what is stored.
"""

import time
from collections.abc import Iterator

import torch
from torch import nn
from writer import write

from multigpu import run_ranks
from multigpu.data import flight_baselines
from multigpu.training.tasks import TASKS
from multigpu.training.trainer import Trainer

FIGURES = ("recall@10", "ndcg@10", "loss")


def train(hidden: str) -> tuple[str, float, dict[str, float]]:
    """Train in full with `hidden` units; on what it ran, the seconds, the figures at the end."""
    began = time.perf_counter()
    task = TASKS["flights"]
    train_rows, test_rows = task.load()
    torch.manual_seed(0)  # the same first weights
    model = task.model()
    model.perceptron[1] = getattr(nn, hidden)()
    config = task.config(progress=False)
    trainer = Trainer(model, config, train_rows, test_rows, metrics=task.metrics)
    reached = trainer.fit().last
    where = f"{hidden}: {trainer.strategy.mode} on {trainer.strategy.where()}"
    figures = {name: reached[f"eval_{name}"] for name in FIGURES}
    return where, time.perf_counter() - began, figures


def rows() -> Iterator[dict[str, str]]:
    """The rules' rows, then a row for each way of training."""
    for rule, reached in flight_baselines().items():
        yield {
            "what": rule,
            "seconds": "",
            **{n: f"{reached[n]:.6f}" for n in FIGURES[:2]},
            "loss": "",
        }
    for hidden in ("Tanh", "ReLU"):
        ranks = run_ranks(train, 2, hidden, trace=False, show=False, timeout=None)
        for where, seconds, reached in (train(hidden), ranks[0]):
            figures = {name: f"{reached[name]:.6f}" for name in FIGURES}
            yield {"what": where, "seconds": f"{seconds:.0f}", **figures}


if __name__ == "__main__":
    torch.set_num_threads(1)  # like a rank
    write("flights/trained.csv", "one process and two gloo ranks on the CPU", rows())
