"""Equal layer counts, equal memory and equal measured time: a pipeline step in each, side by side.

Run with `make bench`.  Cuts of a model run in turn on the same two ranks, and ways that found the
same cut share its figure; medians are printed, and ratios to balance="time".
docs/measurements/cutting.py writes the same down for the lesson on pipelines.
"""

from pathlib import Path

import pytest
import torch

from multigpu.training import cut_points

from .interleaved import table

MEASUREMENTS = str(Path(__file__).resolve().parents[2] / "docs" / "measurements")


@pytest.mark.parametrize("name", ["LargeCNN", "SmallGPT", "SmallGPT with 2048 words", "SmallViT"])
def test_cutting(name, monkeypatch):
    monkeypatch.syspath_prepend(MEASUREMENTS)
    import cutting  # type: ignore[import-not-found]

    torch.set_num_threads(1)  # like a rank
    model, inputs, *_ = cutting.models()[name]
    points = cut_points(model, inputs, repeats=10)
    count = cutting.MICRO_BATCHES
    ways = {
        balance: points.cut(2, balance=balance, micro_batches=count) for balance in cutting.BALANCES
    }
    places = {balance: stages.places for balance, stages in ways.items()}
    taken = cutting.measured(name, places)
    print(table(f"{name}, 2 ranks, {count} micro-batches, 1F1B", taken, against="time"))
    for balance, stages in ways.items():
        print(f"  {balance:34}{stages.predicted_step(count) * 1e3:9.1f} ms predicted")
