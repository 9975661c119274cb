"""A run that was killed goes on as if nothing had happened; on other ranks it goes on, too."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from multigpu import RankError, run_ranks
from multigpu.training import TrainConfig, Trainer
from multigpu.training.checkpoint import CheckpointError

KILLING = Path(__file__).with_name("killing.py")
CASES = ["single", "zero3-sharded", "ddp-partitions"]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bits():
    command = [sys.executable, str(KILLING), str(random.randrange(10**6)), *CASES]
    print(*command)  # shown when it fails
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[]] * len(CASES)


def data() -> TensorDataset:
    torch.manual_seed(3)
    return TensorDataset(torch.rand(46, 5), torch.randint(0, 3, (46,)))


def go_on(folder: Path, *, mode="auto", hidden=8, callbacks=(), **settings) -> Trainer:
    """Train a small model without dropout in `folder`."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    config = TrainConfig(
        mode=mode, batch_size=12, folder=folder, progress=False, optimizer="sgd", **settings
    )
    trainer = Trainer(model, config, data(), data(), callbacks=callbacks)
    trainer.fit()
    return trainer


def weights(trainer: Trainer) -> list[float]:
    return [
        x for p in trainer.strategy.plain.parameters() for x in p.detach().cpu().flatten().tolist()
    ]


def test_a_finished_run_is_not_trained_again_and_a_longer_one_goes_on(tmp_path, capsys):
    import pandas

    first = go_on(tmp_path, epochs=2)
    (tmp_path / "history.csv").unlink()
    again = go_on(tmp_path, epochs=2)
    assert re.search(r"complete\b.*step 8\b", capsys.readouterr().err)
    assert again.history.rows == first.history.rows
    assert len(pandas.read_csv(tmp_path / "history.csv")) == 2, "written anew"
    longer = go_on(tmp_path, epochs=4)
    assert re.search(r"epoch 3\b.*step 8\.$", capsys.readouterr().err, re.MULTILINE)
    assert [row["epoch"] for row in longer.history.rows] == [1, 2, 3, 4]
    assert longer.history.rows[:2] == first.history.rows


def test_a_first_start_does_without_sharded_checkpoints(tmp_path, monkeypatch):
    """To import them takes a second."""
    monkeypatch.setitem(sys.modules, "multigpu.training.sharded_checkpoint", None)
    go_on(tmp_path, epochs=1)
    (tmp_path / "latest.pt").unlink()
    (tmp_path / "latest").mkdir()
    with pytest.raises(ImportError):
        go_on(tmp_path, epochs=1)


class EndsAt:
    """Sends SIGTERM to one rank after a step."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank

    def on_step(self, trainer: Trainer, loss: float) -> None:
        self.trainer = trainer
        if (trainer.position.step, trainer.launch.rank) == (self.step, self.rank):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "ranks", "saved"), [("single", 1, 5), ("ddp", 3, 10)])
def test_sigterm_saves_on_all_ranks_and_the_run_goes_on(tmp_path, mode, ranks, saved):
    def train():
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            go_on(tmp_path / "ended", mode=mode, epochs=4, callbacks=[EndsAt(5, ranks - 1)])
        assert signal.getsignal(signal.SIGTERM) is before
        steps = []
        note = types.SimpleNamespace(on_step=lambda trainer, _: steps.append(trainer.position.step))
        again = go_on(tmp_path / "ended", mode=mode, epochs=4, callbacks=[note])
        whole = go_on(tmp_path / "whole", mode=mode, epochs=4)
        return ended.value.code, steps[0], weights(again) == weights(whole)

    assert list(run_ranks(train, ranks, show=False)) == [(143, saved + 1, True)] * ranks


def test_a_run_that_was_told_to_end_trains_to_its_end_when_fit_is_called_again(tmp_path):
    ends = EndsAt(3, 0)
    with pytest.raises(SystemExit):
        go_on(tmp_path, epochs=2, callbacks=[ends])
    ends.trainer.fit()
    assert ends.trainer.position.step == 8


def test_sigterm_ends_a_run_with_nothing_to_save(tmp_path):
    """Without a folder, and after the last step."""
    ends = types.SimpleNamespace(on_epoch=lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    def train(folder):
        go_on(folder, mode="single", epochs=1, callbacks=[ends])

    for folder in (None, tmp_path / "folder"):
        with pytest.raises(RankError, match="SIGTERM") as ended:
            run_ranks(train, 1, folder, show=False)
        assert ended.value.kind == "exit"
    assert (tmp_path / "folder").exists()


def test_early_stopping_goes_on_counting(tmp_path):
    settings = {"learning_rate": 1e-9, "patience": 3, "epochs": 9, "monitor": "accuracy"}
    parts = [go_on(tmp_path / "parts", max_steps=steps, **settings) for steps in (8, 12, None)]
    whole = go_on(tmp_path / "whole", **settings)
    assert whole.position.epoch == parts[-1].position.epoch == 4, "the first is the best"
    assert go_on(tmp_path / "parts", **settings).position.step == whole.position.step


def test_beginning_anew_removes_what_was_there(tmp_path):
    go_on(tmp_path, epochs=1, learning_rate=0.5)
    anew = go_on(tmp_path, epochs=2, resume=False)
    assert anew.history.rows == anew.checkpoints.load()["history"]["rows"]
    assert len(anew.history) == 2
    with pytest.raises(CheckpointError, match=r"learning_rate=0\.001\D*0\.5\b"):
        go_on(tmp_path, epochs=3, learning_rate=0.5)


def test_every_rank_refuses_another_model(tmp_path):
    go_on(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match=r"\b0\.weight\D*8, 5\D*9, 5"):
        go_on(tmp_path, hidden=9)

    def refused():
        with pytest.raises(CheckpointError, match=r"\b0\.weight\b"):
            go_on(tmp_path, hidden=9)
        return True

    assert list(run_ranks(refused, 2, show=False)) == [True, True]


def test_a_checkpoint_is_an_ordinary_file_of_pytorch(tmp_path):
    trainer = go_on(tmp_path, epochs=1, save_every=2)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    for name in ("latest.pt", "best.pt"):
        model.load_state_dict(torch.load(tmp_path / name)["model"])
    assert [x for p in model.parameters() for x in p.flatten().tolist()] == weights(trainer)
