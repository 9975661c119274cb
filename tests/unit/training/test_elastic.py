"""torchrun starts the ranks again when one of them dies, and the run goes on by itself."""

import os
import re
import subprocess
import sys

import pytest
import torch

from multigpu import run_ranks

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
    # A process that trains has torch's own modules, and nothing in the place of the compiler.
    for name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "scipy.signal"):
        assert name not in sys.modules or sys.modules[name].__file__, name
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


def torchrun(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, env=environ
    )
