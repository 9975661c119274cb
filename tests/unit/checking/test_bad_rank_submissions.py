"""Whatever ranks do wrong: never a pass, never the checker's fault, and nothing is left running."""

import re

import pytest

from multigpu.checking.verdicts import Refused
from multigpu.ranks.process_tree import marked

from .conftest import wait_until

# what stands in `average` -> status, message id, parts of the message
BAD = {
    "if dist.get_rank() == 1: 1 / 0\ndist.all_reduce(tensor)": (
        *("crash", "exception"),
        *("rank 1: ZeroDivisionError", "where: distributed_data_parallel.py:4"),
    ),
    "if dist.get_rank() != 1: 1 / 0\nelse: dist.all_reduce(tensor)": (
        *("crash", "exception"),
        "ranks 0 and 2: ZeroDivisionError",
    ),
    "raise NotImplementedError": ("not_started", "not_started", "average"),
    "if dist.get_rank() == 1: sys.exit(0)\ndist.all_reduce(tensor)": (
        *("crash", "exit"),
        *("rank 1:", "sys.exit(0)"),
    ),
    "if dist.get_rank() == 2: os._exit(0)\ndist.all_reduce(tensor)": (
        *("crash", "exit"),
        *("rank 2:", "os._exit(0)", "where: distributed_data_parallel.py:4"),
    ),
    "dist.all_reduce(tensor)\nif dist.get_rank() == 0: os._exit(0)": (
        *("crash", "exit"),
        *("rank 0:", "os._exit(0)"),
    ),
    "if dist.get_rank() == 1: os.abort()\ndist.all_reduce(tensor)": (
        *("crash", "segfault"),
        *("rank 1:", "SIGABRT"),
    ),
    "if dist.get_rank() == 0: dist.all_reduce(tensor)": (
        *("hang", "deadlock"),
        *("ranks 1 and 2", "rank 0"),
    ),
    "dist.recv(tensor, (dist.get_rank() + 1) % 3)": (
        *("hang", "deadlock"),
        "distributed_data_parallel.py:4",
    ),
    "dist.broadcast(tensor, dist.get_rank())": ("wrong", "mismatch", "from rank 2"),
    "dist.all_reduce(tensor.double() if dist.get_rank() else tensor)": (
        *("wrong", "mismatch"),
        "float64",
    ),
    "if dist.get_rank() == 1: dist.all_reduce(tensor, async_op=True)": (
        *("wrong", "mismatch"),
        "rank 1",
    ),
    "if dist.get_rank() == 0: dist.destroy_process_group()\nelse: dist.all_reduce(tensor)": (
        *("crash", "exception"),
        *("usually: ", "another rank"),
    ),
    "while dist.get_rank() == 1: pass\ndist.all_reduce(tensor)": (
        *("hang", "hang_busy"),
        "where: distributed_data_parallel.py:4 in average",
    ),
    "import threading; threading.Thread(target=threading.Event().wait).start()": (
        *("hang", "hang_blocked"),
        "average returned",
    ),
    "import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True)": (
        *("wrong", "processes_left"),
        "sleep",
    ),
    "for number in range(3, 64):\n"
    "    try: os.write(number, bytes(100))\n"
    "    except OSError: pass": ("crash", "foreign_bytes", "pipe"),
}


@pytest.mark.parametrize(
    "body",
    BAD,
    ids=lambda body: body[:60],
)
def test_a_bad_run_gets_its_verdict(run_ranks, server, body):
    status, message_id, *parts = BAD[body]
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    with pytest.raises(Refused) as refused:
        run_ranks(f"def average(tensor):\n{lines}\n", cpu=1.5, idle=1.0)
    assert (refused.value.status, refused.value.message_id) == (status, message_id)
    for part in parts:
        assert part in refused.value.message
    # Nothing but the server is left, if that.
    process = server.processes[0]
    wait_until(lambda: {p.pid for p in marked(process.mark)} <= {process.popen.pid})


@pytest.mark.parametrize(
    ("source", "status", "message_id"),
    [
        ("1 / 0", "crash", "import_error"),
        ("def average(tensor): ...\nif dist.get_rank(): 1 / 0", "crash", "import_error"),
        ("dist.recv(torch.ones(1), 1 - dist.get_rank())", "hang", "deadlock"),
        ("def average(tensor): ...\nif dist.get_rank(): os._exit(0)", "crash", "exit"),
        ("while True: pass", "hang", "hang_busy"),
        ("def other(): ...", "wrong", "missing_function"),
        ("def average(): ...", "wrong", "signature"),
        ("def average(tensor) ...", "crash", "syntax_error"),
    ],
)
def test_a_module_that_fails_at_import(run_ranks, source, status, message_id):
    with pytest.raises(Refused) as refused:
        run_ranks(source, world=2, cpu=1.5)
    assert (refused.value.status, refused.value.message_id) == (status, message_id)


def test_ranks_that_got_stuck_come_with_a_finding(run_ranks):
    source = "def average(tensor):\n    if dist.get_rank() != 2: dist.all_reduce(tensor)\n"
    with pytest.raises(Refused) as refused:
        run_ranks(source)
    finding = refused.value.finding
    assert (finding.kind, finding.ranks) == ("deadlock", (2,))
    with pytest.raises(Refused) as refused:
        run_ranks("def average(tensor): 1 / 0\n")
    assert refused.value.finding.kind == "exception"


def test_what_the_ranks_printed_is_shown_with_the_verdict(run_ranks):
    with pytest.raises(Refused) as refused:
        run_ranks("def average(tensor):\n    print('here'); input()\n", world=2)
    assert re.findall(r"(\d) \| here", refused.value.output) == ["0", "1"]
