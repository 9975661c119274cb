"""torchrun starts the ranks again when one of them dies, and the run goes on by itself."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed as dist

from multigpu import run_ranks
from multigpu.training import distributed

pytestmark = pytest.mark.slow

SCRIPT = '''
"""Rank 1 is killed at its seventh step, in its first life."""
import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from multigpu.training import TrainConfig, Trainer


class Fragile(nn.Sequential):
    steps = 0

    def forward(self, rows):
        self.steps += self.training
        is_script = __name__ == "__main__"  # and not the same in run_ranks, to compare with
        first = is_script and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and self.steps == 7 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(rows)


def train(folder, **settings):
    torch.manual_seed(3)
    data = TensorDataset(torch.rand(46, 5), torch.randint(0, 3, (46,)))
    model = Fragile(nn.Linear(5, 8), nn.Dropout(0.4), nn.Linear(8, 3))
    config = TrainConfig(
        batch_size=12, epochs=3, folder=folder, save_every=2, progress=False, **settings
    )
    Trainer(model, config, data, data).fit()


if __name__ == "__main__":
    train(sys.argv[1], resume=False)  # a restart goes on even so
'''


def test_a_rank_that_dies_is_started_again_and_the_weights_are_the_same(tmp_path):
    script, folder = tmp_path / "elastic.py", tmp_path / "elastic"
    script.write_text(SCRIPT)
    definitions: dict = {"__name__": "elastic"}
    exec(SCRIPT, definitions)
    run_ranks(definitions["train"], 2, tmp_path / "alone", show=False)
    folder.mkdir()
    torch.save({"an older run": 1}, folder / "latest.pt")
    done = torchrun("--max-restarts=2", str(script), str(folder))
    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch 2\b.*step 6\.$", done.stderr, re.MULTILINE)
    saved, alone = (
        torch.load(path / "latest.pt", weights_only=True) for path in (folder, tmp_path / "alone")
    )
    assert saved["step"] == alone["step"] == 12
    for name, weight in alone["model"].items():
        assert torch.equal(saved["model"][name], weight), name


def names_of_a_life(store: dist.Store, ranks: list[int], *, world_size: int) -> set[str]:
    """The names that these ranks agree on, all at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return {*pool.map(lambda rank: distributed.new_name(store, rank, world_size), ranks)}


def test_each_life_of_a_run_meets_under_a_name_of_its_own():
    """In one store, as torchrun keeps it; ranks of a life that never came about have asked, too."""
    store = dist.HashStore()
    for rank in (1, 2):
        store.set(f"multigpu/question/{rank}", f"of a dead process {rank}")
    lives = [names_of_a_life(store, [1, 2, 0], world_size=3) for _ in range(3)]
    lives.append(names_of_a_life(store, [0, 1], world_size=2))  # a machine did not come back
    lives.append(names_of_a_life(store, [0], world_size=1))
    assert all(len(names) == 1 for names in lives)
    assert len(set.union(*lives)) == 5


def torchrun(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, env=environ
    )
