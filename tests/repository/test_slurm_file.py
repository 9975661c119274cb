"""The lesson's batch file, without Slurm: what it would start, and that it can be started."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from multigpu.cli import parser_for
from multigpu.commands.train import given_fields
from multigpu.training import TrainConfig
from multigpu.training.config import refuse_batch

FILE = Path(__file__).resolve().parents[2] / "docs" / "scripts" / "train.sbatch"
STUBS = {  # what a cluster has
    "scontrol": 'echo "scontrol $*" >&2; echo gpu07; sleep 0.1; echo gpu12',
    "srun": 'echo "OMP_NUM_THREADS=$OMP_NUM_THREADS"; printf "%s\\n" "$@"',
}


def directives() -> dict[str, str]:
    """The ``#SBATCH`` lines."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)", FILE.read_text(), re.MULTILINE))


@pytest.fixture
def started(tmp_path: Path) -> list[str]:
    """The words that srun is given, after a line with OMP_NUM_THREADS."""
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    asked = directives()
    slurm = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "8123456",
        "SLURM_JOB_NODELIST": "gpu[07,12]",
        "SLURM_JOB_NUM_NODES": asked["nodes"],
        "SLURM_GPUS_ON_NODE": asked["gpus-per-node"],
        "SLURM_CPUS_PER_TASK": asked["cpus-per-task"],
    }
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", FILE], env=os.environ | slurm | path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "scontrol show hostnames gpu[07,12]\n"
    return done.stdout.splitlines()


def test_bash_can_read_it() -> None:
    subprocess.run(["bash", "-n", FILE], check=True)


def test_slurm_starts_one_task_on_each_machine() -> None:
    """With a task for each GPU, each would start torchrun with all ranks of the machine."""
    asked = directives()
    assert asked["ntasks-per-node"] == "1"
    assert "gpus-per-task" not in asked, "then each rank would see one GPU only, named cuda:0"


def test_the_command_is_one_that_torchrun_and_multigpu_understand(started: list[str]) -> None:
    from torch.distributed.run import parse_args

    threads, *words = started
    assert threads == "OMP_NUM_THREADS=8"
    begin = words.index("torchrun")
    assert all(word.startswith("--") for word in words[:begin])
    told = parse_args(words[begin + 1 :])
    assert (told.nnodes, told.nproc_per_node) == ("2", "4")
    assert (told.rdzv_backend, told.rdzv_id) == ("c10d", "8123456")
    assert told.rdzv_endpoint == f"gpu07:{20000 + 8123456 % 20000}"
    assert told.max_restarts == 3
    assert (told.module, told.training_script) == (True, "multigpu")
    options = parser_for(told.training_script_args).parse_args(told.training_script_args)
    config = TrainConfig(**given_fields(options))
    refuse_batch(config, ranks=int(told.nnodes) * int(told.nproc_per_node), rows=274_376)
    assert config.mode == "ddp"
    assert config.folder == "runs/flights-8123456", "the same after a requeue"
