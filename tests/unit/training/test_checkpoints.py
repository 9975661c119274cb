"""Checkpoints are whole at every moment, and every rank hears of what goes wrong with them."""

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import distributed as dist
from torch import nn

from multigpu import run_ranks, virtual_gpus
from multigpu.data.replacing import replace_file
from multigpu.training import checkpoint
from multigpu.training.checkpoint import (
    CheckpointError,
    Checkpoints,
)
from multigpu.training.distributed import Launch


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "WAIT", 0.0)
    return Checkpoints(tmp_path / "new" / "run", launch=Launch())


def state(step: int = 3) -> dict:
    return {"model": nn.Linear(2, 2).state_dict(), "step": step, "rows": [{"loss": 0.5}], "x": None}


def save(checkpoints: Checkpoints, state: dict, **how: bool) -> None:
    with checkpoints:
        checkpoints.save(state, **how)


def files(checkpoints: Checkpoints) -> set[str]:
    return {path.name for path in checkpoints.folder.iterdir()} - {checkpoint.LOCK}


def test_what_was_saved_comes_back(checkpoints):
    saved = state()
    assert checkpoints.load() is None
    save(checkpoints, saved)
    loaded = checkpoints.load()
    assert loaded["model"]._metadata == saved["model"]._metadata
    mine = {name: loaded[name] for name in saved}
    torch.testing.assert_close(mine, saved, rtol=0, atol=0)
    assert files(checkpoints) == {"latest.pt"}


def test_a_damaged_weight_is_found(checkpoints):
    save(checkpoints, {"model": {"weight": torch.zeros(1000)}})
    content = bytearray(checkpoints.path().read_bytes())
    inside = content.index(bytes(4000))
    content[inside + 100 : inside + 500] = b"x" * 400
    checkpoints.path().write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(checkpoints.path()))):
        checkpoints.load()


def test_the_best_is_kept_beside_the_latest(checkpoints):
    with checkpoints:
        save(checkpoints, state(1), best=True)
        save(checkpoints, state(2))
    assert [checkpoints.load(name)["step"] for name in ("latest", "best")] == [2, 1]
    checkpoints.clear()
    assert files(checkpoints) == set()


def test_tensors_of_gpus_are_loaded_without_them(checkpoints):
    with virtual_gpus(2):
        save(checkpoints, {"weight": torch.arange(3.0, device="cuda:1")})
    assert checkpoints.load()["weight"].tolist() == [0, 1, 2]


def test_a_view_does_not_carry_all_that_it_looks_into(checkpoints):
    save(checkpoints, {"row": torch.zeros(1_000_000)[:2]})
    assert checkpoints.path().stat().st_size < 10_000


def test_what_could_not_be_loaded_again_is_not_saved(checkpoints):
    save(checkpoints, state(1))
    with pytest.raises(TypeError, match=r"numpy\..*\bfloat\("):
        save(checkpoints, {"rows": [{"loss": numpy.float64(0.5)}]})
    assert checkpoints.load()["step"] == 1


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_writer_killed_at_any_moment_leaves_the_old_one_whole(checkpoints, moment):
    save(checkpoints, state(1), best=True)
    child = os.fork()
    if not child:  # it computes nothing, so a fork is enough
        if moment == "write":  # the kernel kills it in the middle of the file
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
        else:
            setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        replace_file(checkpoints.path(), b"x" * 100)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert checkpoints.load()["step"] == 1
    assert len(files(checkpoints)) == 3, "what the killed writer has left is there"
    with checkpoints:
        assert files(checkpoints) == {"latest.pt", "best.pt"}


def test_a_folder_belongs_to_one_run_at_a_time(checkpoints):
    save(checkpoints, state(1))
    with other_process_in(checkpoints.folder) as other:
        leftover = checkpoints.folder / ".latest.pt.1.partial"
        leftover.touch()
        with pytest.raises(CheckpointError, match="process 7 on other-host"):
            save(checkpoints, state(2))
        assert leftover.exists(), "it may be what the other run is writing"
        assert checkpoints.load()["step"] == 1, "reading needs no lock"
        other.kill()
        other.wait()
        save(checkpoints, state(2))
    assert checkpoints.load()["step"] == 2
    assert not leftover.exists()


def other_process_in(folder: Path) -> subprocess.Popen:
    """A process that holds the folder's lock; nothing of it but the lock matters."""
    code = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.write('process 7 on other-host'); file.flush()\n"
        "print('held', flush=True); time.sleep(60)"
    )
    lock = str(folder / checkpoint.LOCK)
    other = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    return other


def test_a_second_run_of_the_same_process_is_refused_too(checkpoints):
    second = Checkpoints(checkpoints.folder, launch=Launch())
    with checkpoints, pytest.raises(CheckpointError, match="this process"):
        save(second, state())
    save(second, state(7))
    assert checkpoints.load()["step"] == 7


def test_a_file_system_without_locks_is_used_with_a_warning(checkpoints, monkeypatch):
    def refuse(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="Operation not supported"):
        save(checkpoints, state())
    assert checkpoints.load()["step"] == 3


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half a file", b"loss,step\n1,2\n"])
def test_a_broken_file_is_refused_with_a_way_out(checkpoints, content):
    save(checkpoints, state(1), best=True)
    checkpoints.path().write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"latest\.pt \({len(content)} .*best\.pt"):
        checkpoints.load()
    checkpoints.path("best").write_bytes(checkpoints.path("best").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"best\.pt .*[Rr]emove"):
        checkpoints.load("best")


def test_a_foreign_file_is_refused_and_runs_no_code(checkpoints):
    save(checkpoints, state(1))
    torch.save(nn.Linear(2, 2).state_dict(), checkpoints.path())
    with pytest.raises(CheckpointError, match="Trainer"):
        checkpoints.load()
    torch.save(RunsCode(), checkpoints.path())
    with pytest.raises(CheckpointError, match="broken"):
        checkpoints.load()


class RunsCode:
    def __reduce__(self):
        return (os._exit, (3,))


def test_every_rank_hears_that_the_disk_is_full(tmp_path):
    def save_with_little_room():
        run = Checkpoints(tmp_path, launch=Launch.here())
        with run:
            run.save({"step": 1, "weight": torch.zeros(10)})
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
            try:
                run.save({"step": 2, "weight": torch.zeros(100_000)})
            except CheckpointError as error:
                return str(error), run.load()["step"]

    said = list(run_ranks(save_with_little_room, 2, show=False))
    assert said[0] == said[1]
    assert "rank 0" in said[0][0]
    assert "File too large" in said[0][0]
    assert said[0][1] == 1
    assert {path.name for path in tmp_path.iterdir()} == {checkpoint.LOCK, "latest.pt"}


def test_machines_without_a_shared_folder(tmp_path):
    def load_from_folders_of_their_own(steps):
        rank = dist.get_rank()
        folder = tmp_path / f"{steps}" / str(rank)
        folder.mkdir(parents=True)
        if steps[rank]:
            content = {"saved": f"{rank}", "step": steps[rank]}
            (folder / "latest.pt").write_bytes(checkpoint.packed(content))
        try:
            found = Checkpoints(folder, launch=Launch.here()).load()
        except CheckpointError as error:
            return str(error).partition(": ")[2]
        return found and found["step"]

    def together():
        cases = ((7, 0), (7, 5), (0, 7), (5, 7), (0, 0))
        return [load_from_folders_of_their_own(steps) for steps in cases]

    one, other = run_ranks(together, 2, show=False)
    assert one == other
    assert one[:2] == [7, 7]
    assert ["rank 1 on" in said and "newer" in said for said in one[2:4]] == [True, True]
    assert one[4] is None
