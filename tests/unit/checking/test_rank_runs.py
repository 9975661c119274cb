"""What comes back from a run on ranks, and what may not disturb it."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from multigpu.checking.learner import WarmServer
from multigpu.checking.verdicts import Refused
from multigpu.checking.worker import BEHIND

RIGHT = """
def average(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()
"""


def assert_right(answer, world=3):
    mean = (world + 1) / 2
    assert [result.value.tolist() for result in answer.results] == [[mean, mean]] * world


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_rank_hands_back_its_result(run_ranks, world):
    answer = run_ranks(RIGHT, world=world)
    assert_right(answer, world)
    assert [call.op for call in answer.trace.calls] == ["all_reduce"] * world
    assert answer.trace.of(0)[0].place == "distributed_data_parallel.py:5"


def about_the_group(submission, rank, tensor):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    import os
    import sys

    return {
        "rank": dist.get_rank(),
        "world": dist.get_world_size(),
        "backend": dist.get_backend(),
        "environment": [os.environ[name] for name in names],
        "threads": torch.get_num_threads(),
        "compiler": "torch._dynamo.utils" in sys.modules,
    }


def test_ranks_see_what_torchrun_would_give_them(run_ranks):
    with WarmServer() as fresh:  # one that others have used imports what their answers did
        answer = run_ranks(RIGHT, about_the_group, world=2, on=fresh)
    assert answer.results[1] == {
        "rank": 1,
        "world": 2,
        "backend": "gloo",
        "environment": ["1", "1", "2", "2"],
        "threads": 1,
        "compiler": False,  # it would take a second of every run
    }


@pytest.mark.parametrize(
    "around",
    [
        "import sys; sys.stdout.close()",
        "dist.init_process_group = dist.destroy_process_group = None",
        "dist.get_rank = lambda: 0",
        "dist.barrier()",
    ],
)
def test_odd_but_harmless_things_at_import(run_ranks, around):
    assert_right_or_rank_0(run_ranks(f"{around}\n{RIGHT}"))


def assert_right_or_rank_0(answer):
    """With a patched get_rank the drive gives every rank the same tensor."""
    assert [r.value.tolist() for r in answer.results] in ([[2.0, 2.0]] * 3, [[1.0, 1.0]] * 3)


def test_what_a_drive_cannot_use_is_named(run_ranks):
    def drive(submission, rank, tensor):
        return submission.average(tensor) + 1

    with pytest.raises(Refused) as refused:
        run_ranks(RIGHT, drive)
    assert (refused.value.status, refused.value.message_id) == ("wrong", "unusable_result")


def test_where_only_messages_are_allowed_the_trace_finds_all_else(run_ranks):
    hidden = "def average(tensor):\n    getattr(dist, 'all_' + 'reduce')(tensor)\n"
    with pytest.raises(Refused) as refused:
        run_ranks(hidden, module="collectives")
    assert refused.value.message_id == "refused_name"
    assert "came: all_reduce" in refused.value.message
    assert "where: collectives.py:4" in refused.value.message
    method = "def average(tensor):\n    dist.group.WORLD.allreduce(tensor).wait()\n"
    with pytest.raises(Refused) as refused:
        run_ranks(method, module="collectives")
    assert refused.value.message_id == "refused_name"


HOLDS_MEMORY = """
def average(tensor):
    held = [torch.zeros(2**18) for _ in range(dist.get_rank() + 1)]  # 1 MiB each
"""


def test_a_rank_that_passes_its_limit_of_memory_is_named(run_ranks):
    with pytest.raises(Refused) as refused:
        run_ranks(HOLDS_MEMORY, memory="2.5 MiB")
    assert refused.value.status == "crash"
    assert "rank 2: OutOfMemoryError" in refused.value.message
    assert "distributed_data_parallel.py:5 in average" in refused.value.message


@pytest.mark.parametrize(
    "patch",
    [
        "dist.all_reduce = lambda *arguments, **named: None",
        "dist.distributed_c10d.all_reduce = dist.all_reduce = lambda tensor: tensor.fill_(6)",
    ],
)
def test_a_patched_collective_leaves_no_call_in_the_trace(run_ranks, patch):
    assert len(run_ranks(f"{patch}\n{RIGHT}").trace) == 0


def test_a_rank_may_communicate_in_a_thread(run_ranks):
    source = """
    import threading
    def average(tensor):
        thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
        thread.start()
        thread.join()
        tensor /= dist.get_world_size()
    """
    answer = run_ranks(source)
    assert_right(answer)
    assert len(answer.trace.collectives(rank=0)) == 1


def priorities(submission, rank, tensor):
    """The kernel's priority of this process's first thread, and of gloo's that looks for bytes."""
    folders = Path("/proc/self/task").iterdir()
    names = {int(folder.name): (folder / "comm").read_text().strip() for folder in folders}
    looking = [thread for thread, name in names.items() if name == "gloo_tcp_loop"]
    return [os.getpriority(os.PRIO_PROCESS, thread) for thread in (os.getpid(), *looking)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows threads")
@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="gloo's threads have no names")
def test_a_rank_that_computes_comes_before_the_thread_that_looks_for_messages(run_ranks):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    answer = run_ranks("def average(tensor): pass", drive=priorities, world=2)
    assert [list(each) for each in answer.results] == [[own, min(own + BEHIND, 19)]] * 2
