"""Whatever a submission does, it gets its status and a clear message, and no process is left."""

import os
from pathlib import Path

import psutil
import pytest

from multigpu.checking.encoding import Foreign, describe
from multigpu.checking.verdicts import Refused
from multigpu.ranks.process_tree import marked

from .conftest import BATCH, wait_until

BODY = "    return [batch.to(devices[0])]\n"

BAD = {
    "syntax error": (
        "def split(batch, devices):\n    return [batch\n",
        ("crash", "syntax_error"),
        ["'[' was never closed", "  return [batch\n         ^", "data_parallel.py:2"],
    ),
    "import error": (
        "import nothing_of_this_name\n",
        ("crash", "import_error"),
        ["ModuleNotFoundError: No module named 'nothing_of_this_name'", "data_parallel.py:1"],
    ),
    "error at import": (
        "def f():\n    return 1 / 0\nf()\n",
        ("crash", "import_error"),
        ["ZeroDivisionError", "data_parallel.py:2 in f: return 1 / 0", "data_parallel.py:3"],
    ),
    "missing function": (
        "def splits(batch, devices): pass\n",
        ("wrong", "missing_function"),
        ["split(batch, devices)", "splits"],
    ),
    "one parameter": (
        "def split(batch):\n    return [batch]\n",
        ("wrong", "signature"),
        ["expected: split(batch, devices)", "came: split(batch)"],
    ),
    "a function of torch itself": (
        "import functools, torch\nsplit = functools.partial(torch.chunk)\n",
        ("wrong", "unusable_result"),
        ["chunk(): argument 'chunks'"],
    ),
    "starter": (
        "def split(batch, devices):\n    raise NotImplementedError\n",
        ("not_started", "not_started"),
        ["data_parallel.split", "data_parallel.py:2"],
    ),
    "uses a starter": (
        "def split(batch, devices):\n    return cut(batch)\n"
        "def cut(batch):\n    raise NotImplementedError\n",
        ("not_started", "not_started"),
        ["split needs cut,", "data_parallel.py:4"],  # `multigpu check` reads these words
    ),
    "NotImplementedError of torch": (
        "import torch\ndef split(batch, devices):\n    return torch.nn.Module()(batch)\n",
        ("crash", "exception"),
        ["NotImplementedError", "data_parallel.py:3"],
    ),
    "exception": (
        "def split(batch, devices):\n    return cut(batch)\ndef cut(batch):\n    return batch[7]\n",
        ("crash", "exception"),
        ["IndexError", "data_parallel.py:4 in cut: return batch[7]", "data_parallel.py:2 in split"],
    ),
    "two devices in one operation": (
        "def split(batch, devices):\n    return batch.to(devices[0]) + batch.to(devices[1])\n",
        ("crash", "exception"),
        ["Expected all tensors to be on the same device", "usually: ", "x.to(y.device)"],
    ),
    "exit in the function": (
        "import sys\ndef split(batch, devices):\n    sys.exit(0)\n",
        ("crash", "exit"),
        ["sys.exit(0)", "data_parallel.py:3"],
    ),
    "_exit": (
        "from os import _exit\ndef split(batch, devices):\n    _exit(0)\n",
        ("crash", "exit"),
        ["os._exit(0)", "data_parallel.py:3"],
    ),
    "_exit at the very end": (
        f"import atexit, os\ndef split(batch, devices):\n    atexit.register(os._exit, 0)\n{BODY}",
        ("crash", "exit"),
        ["os._exit(0)"],
    ),
    "skip": (
        "import pytest\ndef split(batch, devices):\n    pytest.skip('no')\n",
        ("crash", "exception"),
        ["Skipped: no", "data_parallel.py:3"],
    ),
    "endless loop": (
        "def split(batch, devices):\n    while True:\n        batch = batch + 1\n",
        ("hang", "hang_busy"),
        ["1 s ", "in split: "],
    ),
    "blocked": (
        "import threading\ndef split(batch, devices):\n    threading.Lock().acquire()\n"
        "    threading.Event().wait()\n",
        ("hang", "hang_blocked"),
        ["0.5 s ", "data_parallel.py:4 in split: threading.Event().wait()"],
    ),
    "a thread that never ends": (
        "import threading\ndef split(batch, devices):\n"
        f"    threading.Thread(target=threading.Event().wait).start()\n{BODY}",
        ("hang", "hang_blocked"),
        ["split returned", "joined"],
    ),
    "an exception beside a busy thread that never ends": (
        "import threading\ndef work():\n    while True: pass\n"
        "def split(batch, devices):\n    threading.Thread(target=work).start()\n"
        "    return batch.no_such\n",
        ("crash", "exception"),
        ["no_such", "data_parallel.py:6"],
    ),
    "a child process that stays": (
        "import subprocess\ndef split(batch, devices):\n"
        f"    subprocess.Popen(['sleep', '1000'])\n{BODY}",
        ("wrong", "processes_left"),
        ["split", "sleep"],
    ),
    "a daemon that fled": (
        "import os, time\ndef split(batch, devices):\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        f"            time.sleep(1000)\n        os._exit(0)\n    os.wait()\n{BODY}",
        ("wrong", "processes_left"),
        ["joined"],
    ),
    "a forked child that returns too": (
        "import os, time\ndef split(batch, devices):\n    child = os.fork()\n"
        "    if child == 0:\n        return [batch.to(devices[1])]\n"
        "    os.waitpid(child, 0)\n    raise ValueError('parent')\n",
        ("crash", "exception"),
        ["ValueError: parent"],
    ),
    "memory by tensors": (
        "import torch\ndef split(batch, devices):\n    return torch.ones(2**34)\n",
        ("crash", "memory"),
        ["data_parallel.py:3"],
    ),
    "many processes": (
        "import os, time\ndef split(batch, devices):\n"
        "    for i in range(200):\n        if os.fork() == 0:\n            time.sleep(1000)\n"
        "    time.sleep(1000)\n",
        ("crash", "processes"),
        ["64 processes"],
    ),
    "memory in children": (
        "import os, time\ndef split(batch, devices):\n    for i in range(4):\n"
        "        if os.fork() == 0:\n            held = bytearray(os.urandom(2**20)) * 150\n"
        "            time.sleep(1000)\n    time.sleep(1000)\n",
        ("crash", "memory"),
        ["0.5 GiB"],
    ),
    "segmentation fault": (
        "import ctypes\ndef split(batch, devices):\n    ctypes.string_at(0)\n",
        ("crash", "segfault"),
        ["SIGSEGV", "data_parallel.py:3 in split"],
    ),
    "killed": (
        "import os\ndef split(batch, devices):\n    os.kill(os.getpid(), 9)\n",
        ("crash", "killed"),
        ["SIGKILL"],
    ),
    "recursion": (
        "def split(batch, devices):\n    return split(batch, devices)\n",
        ("crash", "exception"),
        ["RecursionError", "data_parallel.py:2"],
    ),
    "closed descriptors": (
        f"import os\ndef split(batch, devices):\n    os.closerange(3, 1000)\n{BODY}",
        ("crash", "broke_checker"),
        ["handed over"],
    ),
    "a forged answer": (
        "def split(batch, devices):\n"
        "    from multigpu.checking.encoding import Encoder\n"
        f"    Encoder.encode = lambda self, value: b'pass'\n{BODY}",
        ("crash", "broke_checker"),
        ["JSONDecodeError"],
    ),
}

LIMITS = {"cpu": 1.0, "idle": 0.5, "host_memory": 512 * 2**20, "grace": 0.2}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_submission_is_told_apart(run, server, name):
    source, verdict, phrases = BAD[name]
    with pytest.raises(Refused) as refused:
        run(source, **LIMITS)
    assert (refused.value.status, refused.value.message_id) == verdict, refused.value.message
    for phrase in phrases:
        assert phrase in refused.value.message
    assert len(refused.value.message) < 1000
    assert_only_the_server_runs(server)


def assert_only_the_server_runs(server):
    """Its supervisor has reported, and needs a moment to be gone."""
    pid = server.processes[0].popen.pid
    wait_until(lambda: [process.pid for process in marked(server.processes[0].mark)] == [pid])
    wait_until(lambda: psutil.Process(pid).children() == [])
    assert os.getpid() != pid


def test_a_file_that_cannot_be_read_is_told_apart(run, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(Refused, match=r"data_parallel\.py.*Permission denied") as no:
        run(f"def split(batch, devices):\n{BODY}")
    assert (no.value.status, no.value.message_id) == ("missing_file", "unreadable_file")


def drive(submission, devices):
    return submission.split(None, devices)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfdef split(batch, devices):\r\n    return 'caf\xc3\xa9'\r\n",
        b"# -*- coding: latin-1 -*-\ndef split(batch, devices):\n    return 'caf\xe9'\n",
    ],
)
def test_every_encoding_that_python_takes_is_read(learner, submission, text):
    (submission / "data_parallel.py").write_bytes(text)
    assert learner.run(drive, gpus=1).results[0] == "caf\xe9"


@pytest.mark.parametrize("text", [b"x = '\xe9'\n", b"# coding: nothing-like-it\n", b"x = '\0'\n"])
def test_a_text_that_python_does_not_take_is_told_apart(learner, submission, text):
    (submission / "data_parallel.py").write_bytes(text)
    with pytest.raises(Refused, match=r"data_parallel\.py") as refused:
        learner.run(drive, gpus=1)
    assert refused.value.message_id == "syntax_error"


PATCHED = """
import torch
from multigpu.devices.tensor import VirtualTensor
lie = property(lambda tensor: torch.device("cuda:1"))
def split(batch, devices):
    on_gpu = batch.to(devices[0])
    for kind in (torch.Tensor, VirtualTensor):
        kind.device = lie
    return [batch, on_gpu]
"""


def test_patched_attributes_of_tensors_are_not_believed(run):
    on_cpu, on_gpu = run(PATCHED).results[0]
    assert [on_cpu.device, on_gpu.device] == ["cpu", "cuda:0"]
    assert on_gpu.value.tolist() == on_cpu.value.tolist() == BATCH.tolist()


@pytest.mark.slow
def test_importing_the_compiler_is_no_work_of_the_answers(run):
    """Where Python finds no compiled files of it, that takes longer than most limits."""
    source = "import time, torch\ndef split(b, d):\n    {}\n"
    source += "    while time.process_time() < 2.5: pass\n    return [b]\n"
    assert run(source.format("torch._dynamo.utils.counters"), cpu=2.0).results
    with pytest.raises(Refused):
        run(source.format("pass"), cpu=2.0)


def test_too_much_is_given_up_at_once(run):
    """Going through all of the list takes ten times the processor time allowed here."""
    answer = run("def split(b, d):\n    a = []; a += [a] * 100_000; return a\n", cpu=2.0)
    assert isinstance(answer.results[0], Foreign)
    assert "list" in describe(answer.results[0])
