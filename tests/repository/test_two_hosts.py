"""Training on two hosts, for real: two network namespaces of this machine, joined by a cable.

docs/scripts/two_hosts.sh makes them. Needs Linux, iproute2, and root or namespaces for every user.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from multigpu import run_ranks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "scripts" / "two_hosts.sh"
STEPS = 12
GRADIENT = 6090 * 4  # bytes of the small CNN's parameters


@cache
def why_not() -> str:
    """Why two hosts cannot be made here; empty where they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    tried = subprocess.run([SCRIPT, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


@pytest.fixture(autouse=True)
def _possible() -> None:
    lacking = [name for name in ("ip", "unshare", "hostname") if not shutil.which(name)]
    if lacking and os.environ.get("CI"):
        pytest.fail(f"{', '.join(lacking)} is not installed (Debian: iproute2, util-linux)")
    if lacking or why_not():
        pytest.skip(f"no two hosts on this machine: {why_not() or lacking}")


def on_both(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command on both hosts."""
    return subprocess.run(
        [SCRIPT, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}, **more,
    )  # fmt: skip


def on_one_host(folder: Path) -> None:
    """The same training in ranks of one host, without torchrun."""
    from multigpu.training import Trainer
    from multigpu.training.tasks import TASKS

    digits = TASKS["digits"]
    torch.manual_seed(0)
    config = digits.config(mode="ddp", max_steps=STEPS, folder=folder)
    Trainer(digits.model(), config, *digits.load(), metrics=digits.metrics).fit()


def test_two_hosts_train_what_one_host_with_as_many_ranks_does(tmp_path: Path) -> None:
    done = on_both(
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
        "--nproc_per_node", "1", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "host-a:29400", "-m", "multigpu", "train", "--data", "digits",
        "--mode", "ddp", "--max-steps", str(STEPS), "--folder", str(tmp_path / "two"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ddp\b.*\b2 ranks", done.stdout)
    assert done.stdout.count("epoch 1 ") == 1, "rank 0 alone prints, and it is on one host"
    received = {
        host: int(count) for host, count in re.findall(r"(\S+) \| received (\d+)", done.stdout)
    }
    through_the_cable = GRADIENT * STEPS  # 2 (n - 1) / n of it on n = 2 ranks
    assert received.keys() == {"host-a", "host-b"}
    assert all(count > through_the_cable for count in received.values()), received
    run_ranks(on_one_host, 2, tmp_path / "one", backend="gloo", show=False)
    two, one = (torch.load(tmp_path / run / "latest.pt")["model"] for run in ("two", "one"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-6)


def test_a_host_that_fails_ends_the_other_one_and_its_exit_code_comes_out() -> None:
    failed = on_both("bash", "-c", "[ $(hostname) = host-a ] || exit 7; sleep 600")
    assert failed.returncode == 7


def test_nothing_stays_behind_when_the_run_is_killed() -> None:
    mark = f"3600.{os.getpid()}"
    run = subprocess.Popen([SCRIPT, "sleep", mark], start_new_session=True)
    wait_until(lambda: len(processes(mark)) >= 2)
    run.kill()
    run.wait(timeout=20)
    wait_until(lambda: not processes(mark))


def processes(mark: str) -> list[psutil.Process]:
    """The processes `sleep MARK`."""
    named = psutil.process_iter(["cmdline"])
    return [process for process in named if process.info["cmdline"] == ["sleep", mark]]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come about in 60 s"
        time.sleep(0.05)
