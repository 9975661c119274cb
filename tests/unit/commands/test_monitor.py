"""``multigpu monitor``: which processes belong to the course, what each is, and how it looks."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nvitop.api import NA, Device
from rich.console import Console
from torch import distributed as dist

from multigpu import run_ranks
from multigpu.cli import main
from multigpu.commands.course_processes import Start, recognise
from multigpu.commands.monitor import Look, seconds
from multigpu.commands.monitor_tables import age
from multigpu.commands.process_tree import in_order, numbered
from multigpu.commands.seen_process import CourseProcess
from multigpu.devices.monitor import GpuStatus, memory_by_process

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.path.join(sys.prefix, "bin", "python")
OF_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        ([PYTHON, "-m", "multigpu", "train", "--epochs", "2"], {}, ("command", "multigpu train")),
        ([PYTHON, f"{sys.prefix}/bin/multigpu", "check"], {}, ("command", "multigpu check")),
        (["/elsewhere/python", "-u", "-m", "multigpu", "start"], {}, ("command", "multigpu start")),
        ([PYTHON, "-u", "-m", "multigpu", "train"], OF_TORCHRUN, ("rank", "multigpu train")),
        ([PYTHON, "docs/scripts/ddp.py"], OF_TORCHRUN, ("rank", "docs/scripts/ddp.py")),
        ([PYTHON, "/home/me/own.py"], OF_TORCHRUN, ("rank", "python own.py")),
        ([PYTHON, "-u", "docs/scripts/dp.py"], {}, ("script", "docs/scripts/dp.py")),
        ([PYTHON, "bin/torchrun", "-m", "multigpu", "train"], {}, ("torchrun", "torchrun")),
        ([PYTHON, "-m", "torch.distributed.run", "a.py"], {}, ("torchrun", "torchrun")),
        (
            [PYTHON, "-m", "ipykernel_launcher", "-f", "x.json"],
            {"JPY_SESSION_NAME": "notebooks/ddp.ipynb"},
            ("notebook", "ddp.ipynb"),
        ),
        (
            [PYTHON, "-P", "-m", "multigpu.ranks.forkserver", "8"],
            {"MULTIGPU_RUN": "ab"},
            ("server", "server of run_ranks"),
        ),
        (["/bin/sleep", "9"], {"MULTIGPU_RUN": "ab"}, ("child", "sleep 9")),
        ([PYTHON, "-m", "pytest", "tests/unit/test_stacks.py"], {}, None),
        ([PYTHON, f"{sys.prefix}/lib/server.py"], {}, None),
        (["/elsewhere/python", "-m", "ipykernel_launcher"], {}, None),
        (["/elsewhere/python", "train.py"], OF_TORCHRUN, None),
        (["vim", "docs/scripts/dp.py"], {}, None),
    ],
)
def test_a_process_is_known_by_how_it_was_started(command, environment, expected):
    start = Start(command, environment | {"PATH": os.environ["PATH"]}, str(ROOT))
    assert recognise(start, ROOT) == expected


def process(pid, parent, kind="server", *, command="forkserver", started=0.0, **given):
    given = {"what": kind, "rank": None, "world_size": None, **given}
    return CourseProcess(pid, parent, kind, started=started, command=command, **given)


def names(processes):
    return [(each.pid, each.kind, each.what, each.rank, each.world_size) for each in processes]


def test_forks_of_the_server_are_ranks_in_the_order_of_their_start():
    server = "python -P -m multigpu.ranks.forkserver 8"
    found = [
        process(20, 11, command=server, started=3),
        process(10, 1, command=server, what="server of run_ranks"),
        process(19, 11, command=server, started=4),
        process(11, 10, command=server, started=2),
        process(30, 19, command=server, started=5),
        process(5, 1, "notebook", command="kernel", started=9),
    ]
    assert names(in_order(numbered({each.pid: each for each in found}))) == [
        (10, "server", "server of run_ranks", None, None),
        (11, "server", "watcher of run_ranks", None, None),
        (20, "rank", "run_ranks", 0, 2),
        (19, "rank", "run_ranks", 1, 2),
        (30, "child", "forked by it", None, None),
        (5, "notebook", "notebook", None, None),
    ]


def test_a_check_on_one_process_has_no_rank():
    server = "python -P -m multigpu.checking.worker 8"
    found = [process(10, 1, command=server), process(11, 10, command=server)]
    numbered_ones = numbered({each.pid: each for each in found})
    assert names(numbered_ones)[1] == (11, "rank", "check", None, None)


def test_what_a_rank_of_torchrun_forks_is_no_rank_of_its_own():
    train = {"command": "python -m multigpu train", "what": "multigpu train", "world_size": 2}
    found = [
        process(10, 1, "torchrun", command="torchrun"),
        process(13, 12, "rank", rank=0, **train),  # a DataLoader's worker
        process(12, 10, "rank", rank=0, started=2.0, **train),
        process(11, 10, "rank", rank=1, started=1.0, **train),
    ]
    kinds = [each[:4] for each in names(in_order(numbered({each.pid: each for each in found})))]
    assert kinds == [
        (10, "torchrun", "torchrun", None),
        (12, "rank", "multigpu train", 0),
        (13, "child", "forked by it", None),
        (11, "rank", "multigpu train", 1),
    ]


@pytest.mark.slow
def test_the_ranks_of_a_run_are_found_while_it_goes_on():
    def ask_on_rank_0():
        if dist.get_rank() == 0:
            command = [sys.executable, "-m", "multigpu", "monitor", "--json"]
            asked = subprocess.run(command, capture_output=True, text=True, check=True)
        dist.barrier()
        return os.getpid(), json.loads(asked.stdout) if dist.get_rank() == 0 else None

    ranks = run_ranks(ask_on_rank_0, 3, show=False)
    pids, (found, *_) = zip(*ranks, strict=True)
    by_pid = {each["pid"]: each for each in found["processes"]}
    for rank, pid in enumerate(pids):
        seen = by_pid[pid]
        assert (seen["rank"], seen["world_size"], seen["what"]) == (rank, 3, "run_ranks")
        assert seen["memory"] > 2**20
        assert seen["cpu"] >= 0
        assert seen["gpu_memory"] == {}
        assert time.time() - seen["started"] < 600
    assert "multigpu monitor" not in [each["what"] for each in found["processes"]]


GPUS = [
    GpuStatus(0, "NVIDIA H100 80GB HBM3", 50, 20 * 2**30, 80 * 2**30, 61, 310.4, (11,)),
    GpuStatus(1, "NVIDIA H100 80GB HBM3", None, None, None, None, None, ()),
]


def shown(look, *, width=120, encoding="utf-8", rows=None):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    out = Console(file=file, width=width, color_system=None)
    out.print(look.shown(out, rows=rows))
    file.flush()
    return [line.rstrip() for line in file.buffer.getvalue().decode(encoding).splitlines()]


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 130.0)
    train = {"command": "python -m multigpu train", "what": "multigpu train", "world_size": 2}
    ranks = [process(11 + rank, 10, "rank", rank=rank, **train) for rank in (0, 1)]
    agent = process(10, 1, "torchrun", command="torchrun", cpu=1.6, memory=3 * 2**20)
    return [agent, *ranks]


def cells(line):
    return re.split(r"  +", line.strip())


HALF = "━━━━━━────── 50 %"
QUARTER = "━━━───────── 20.0 GiB of 80.0 GiB"


def test_gpus_and_ranks_are_shown_side_by_side(two_ranks):
    lines = shown(Look("2 cores", GPUS, two_ranks, {11: {0: 2**30}, 12: {0: 5, 1: 2**31}}))
    first, second = map(cells, lines[3:5])
    assert first == ["GPU 0", GPUS[0].name, HALF, QUARTER, "61", "310"]
    assert second == ["GPU 1", GPUS[1].name, "-", "-", "-", "-"]
    agent, rank_0, rank_1 = map(cells, lines[7:])
    assert agent == ["torchrun", "10", "2 %", "3.0 MiB", "-", age(130), "torchrun"]
    assert rank_0[:3] == ["└ multigpu train", "rank 0 of 2", "11"]
    assert rank_0[3:7] == ["-", "-", "GPU 0 1.0 GiB", age(130)]
    assert rank_1[1:3] == ["rank 1 of 2", "12"]
    assert rank_1[5:7] == ["GPU 0 5 B · GPU 1 2.0 GiB", age(130)]


def test_a_narrow_terminal_keeps_every_number(two_ranks):
    gpus = shown(Look("2 cores", GPUS, [], {}), width=80)
    assert cells(gpus[3])[-4:] == [HALF, QUARTER, "61", "310"]
    lines = shown(Look("2 cores", [], two_ranks, {}), width=80)
    assert "No NVIDIA GPU" in lines[2]
    assert cells(lines[6]) == ["└ multigpu train", "rank 0 of 2", "11", "-", "-", age(130)]
    assert max(map(len, lines)) <= 80


def test_a_low_terminal_says_how_many_it_leaves_out(two_ranks):
    last = shown(Look("2 cores", [], two_ranks, {}), rows=1)[-1]
    assert re.findall(r"\d+", last) == ["2"]


def test_a_terminal_without_unicode_is_served(two_ranks):
    lines = shown(Look("2 cores", GPUS, two_ranks, {}), encoding="latin-1")
    assert any("======------ 50 %" in line for line in lines)


def test_without_processes_it_says_so():
    assert "No process" in shown(Look("2 cores", [], [], {}))[-1]


def test_once_prints_one_table_and_ends(capsys, monkeypatch):
    monkeypatch.setattr(Device, "all", classmethod(lambda cls: []))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["monitor", "--once"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("No NVIDIA GPU") == 1
    assert printed.err == ""
    assert "\x1b" not in printed.out


def test_each_process_has_its_memory_on_each_gpu(monkeypatch):
    class OnGpu:
        def __init__(self, memory):
            self.gpu_memory = lambda: memory

    class Pretended:
        def __init__(self, index, memory):
            self.physical_index, self.memory = index, memory

        def processes(self):
            return {pid: OnGpu(memory) for pid, memory in self.memory.items()}

    devices = [Pretended(0, {11: 5}), Pretended(3, {11: 7, 12: NA})]
    monkeypatch.setattr(Device, "all", classmethod(lambda cls: devices))
    assert memory_by_process() == {11: {0: 5, 3: 7}}


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "1e9"])
def test_an_interval_that_cannot_be_meant_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"0\.1 .*3600"):
        seconds(text)


def test_ages_are_said_in_two_units():
    said = [age(each).split() for each in (7.9, 185, 7800)]
    assert said == [["7", "s"], ["3", "min", "5", "s"], ["2", "h", "10", "min"]]
