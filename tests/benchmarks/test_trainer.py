"""One optimizer step of the Trainer, of a loop written by hand, of Accelerate and of Fabric.

Run with `make bench`. All train the same model on the same batches, in turn, in one run; what is
asserted is that they end with the same weights. Times are printed in two tables: with each one's
own DataLoader, and with all of them on the Trainer's feed, where only the step differs. What the
Trainer does at an epoch's end besides, loops by hand do not do: it is printed by itself.
"""

import importlib.util
import os
import statistics

import pytest
import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.data.feeds import RowFeed
from multigpu.training.distributed import NEEDED
from multigpu.training.models import LargeCNN, SmallCNN

from .interleaved import table, times_in_turn
from .ways_to_train import TrainersEpochs, by_hand, digits_for, with_accelerate, with_fabric

BATCH = 64  # rows of all ranks together
ROUNDS = 31
TRAINER, EPOCHS_END, BY_HAND = "Trainer", "Trainer, an epoch's end", "by hand"
LIBRARIES = {"Accelerate": "accelerate", "Fabric": "lightning_fabric"}
WAYS = {BY_HAND: by_hand, "Accelerate": with_accelerate, "Fabric": with_fabric}


def epochs_in_turn(make_model, steps, ways):
    """On each rank: the seconds of an epoch in every way, and the weights at the end."""
    torch.backends.cudnn.deterministic = True  # else weights on a GPU differ in every run
    if dist.get_world_size() == 1:
        leave_group()
    meet = dist.barrier if dist.is_initialized() else lambda: None
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    dataset = digits_for(steps, batch_size=BATCH)

    def model():
        torch.manual_seed(0)
        return make_model()

    trainer = TrainersEpochs(model(), dataset, batch_size=BATCH)
    candidates = {}
    for name in ways:
        for own_loader in (True, False):
            feed = RowFeed(dataset, batch_size=BATCH, rank=rank, world_size=world_size)
            candidates[label(name, own_loader)] = WAYS[name](model(), feed, own_loader=own_loader)
    its_own = {TRAINER: trainer.steps, EPOCHS_END: trainer.end}
    times = times_in_turn({**its_own, **candidates}, rounds=ROUNDS, meet=meet)
    weights = {name: candidate.weights() for name, candidate in candidates.items()}
    return times, {TRAINER: trainer.weights(), **weights}


def leave_group() -> None:
    """Turn a rank that is alone into the process that `python` starts."""
    dist.destroy_process_group()
    for name in (*NEEDED, "LOCAL_WORLD_SIZE"):
        del os.environ[name]


def label(way: str, own_loader: bool) -> str:
    return f"{way}, {'own DataLoader' if own_loader else 'same feed'}"


def installed(library: str) -> bool:
    if importlib.util.find_spec(LIBRARIES[library]):
        return True
    print(f"\n{library} is left out: it is not installed (make bench installs it)")
    return False


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("make_model", "steps"), [(SmallCNN, 80), (LargeCNN, 4)])
def test_a_training_step(make_model, steps, world_size):
    if 0 < torch.cuda.device_count() < world_size:
        pytest.skip(f"{world_size} ranks need as many GPUs, or none")
    ways = [BY_HAND, *filter(installed, LIBRARIES)]
    options = {"trace": False, "show": False, "timeout": 900}
    results = run_ranks(epochs_in_turn, world_size, make_model, steps, ways, **options)
    times, weights = results[0]
    for name, ended_with in weights.items():
        torch.testing.assert_close(ended_with, weights[label(BY_HAND, False)], msg=name)
    where = f"2 ranks, {results.backend}" if world_size > 1 else "one process"
    per_step = {name: [epoch / steps for epoch in taken] for name, taken in times.items()}
    for own_loader in (False, True):
        names = [TRAINER, *(label(way, own_loader) for way in ways)]
        title = f"one step of {make_model.__name__}, {where}"
        shown = {name: per_step[name] for name in names}
        print(table(title, shown, against=label(BY_HAND, own_loader)))
    print(f"  {EPOCHS_END}: {statistics.median(times[EPOCHS_END]) * 1e3:.1f} ms")
