"""What comes back from ranks that do their work, and what goes to them."""

import importlib
import os
import random
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.ranks.rank import pickled


class Point:
    """A class that no rank can import by name: this file is no module of a package."""

    def __init__(self, x):
        self.x = x


def rank_and_world():
    return dist.get_rank(), dist.get_world_size()


def summed(tensor):
    tensor = tensor * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    return tensor


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_results_come_in_rank_order(world_size):
    results = run_ranks(rank_and_world, world_size, show=False)
    assert results == [(rank, world_size) for rank in range(world_size)]
    assert len(results) == world_size
    assert results[-1] == (world_size - 1, world_size)
    assert list(results[:1]) == [(0, world_size)]


def test_the_ranks_talk_to_each_other():
    for result in run_ranks(summed, 3, torch.ones(2), show=False):
        assert result.tolist() == [6, 6]


def test_a_function_that_never_communicates():
    assert run_ranks(lambda: 5, 2, show=False) == [5, 5]


def test_objects_of_the_callers_own_classes_go_there_and_come_back():
    (point,) = run_ranks(lambda p: Point(p.x + 1), 1, Point(1), show=False)
    assert type(point) is Point
    assert point.x == 2


def config():
    """cloudpickle takes the name for that of a module of torch.distributed, too."""


def test_a_function_of_that_name_may_be_used_beside_torch_distributed():
    def on_a_rank():
        return dist.get_rank(), config()

    assert "torch.distributed.config" in sys.modules
    assert run_ranks(on_a_rank, 2, show=False) == [(0, None), (1, None)]


def test_a_parameter_comes_back_as_one():
    (weight,) = run_ranks(lambda: torch.nn.Linear(2, 2).weight, 1, show=False)
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.requires_grad


def test_what_ranks_had_to_import_the_next_ones_find():
    def found_it():
        found = "torch.distributed.fsdp" in sys.modules
        importlib.import_module("torch.distributed.fsdp")
        return found, psutil.Process().parent().num_threads()

    run_ranks(found_it, 1, show=False)
    assert run_ranks(found_it, 2, show=False) == [(True, 1)] * 2, "and the server can still fork"


def test_a_large_result():
    results = run_ranks(lambda: torch.full((4_000_000,), float(dist.get_rank())), 2, show=False)
    assert [result.sum().item() for result in results] == [0, 4e6]


@pytest.mark.parametrize(
    "small",
    [
        torch.arange(1_000_000.0)[5:7],
        torch.arange(1_000_000.0).view(1000, 1000)[:2, ::500],
        torch.nn.Parameter(torch.arange(1_000_000.0)[5:7]),
        {"weights": list(torch.arange(1_000_000.0).split(10)[:3])},
    ],
    ids=["slice", "strided", "parameter", "in a list"],
)
def test_of_a_large_storage_only_the_part_that_a_result_shows_is_sent(small):
    assert len(pickled(small, what="a result", hint="")) < 5000
    (back,) = run_ranks(lambda: small, 1, show=False)
    torch.testing.assert_close(back, small)
    assert type(back) is type(small)
    assert getattr(back, "requires_grad", None) == getattr(small, "requires_grad", None)


def test_ranks_stand_where_the_caller_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_NAME_OF_THIS_TEST", "there")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module_of_this_test.py").write_text("NUMBER = 7\n")

    def look():
        import module_of_this_test

        return os.getcwd(), os.environ["A_NAME_OF_THIS_TEST"], module_of_this_test.NUMBER

    assert run_ranks(look, 1, show=False) == [(str(tmp_path), "there", 7)]


def test_ranks_know_what_torchrun_tells_them_too():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    results = run_ranks(lambda: [os.environ[name] for name in names], 2, show=False)
    assert results == [["0", "0", "2", "2"], ["1", "1", "2", "2"]]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_an_operator(threads):
    assert run_ranks(torch.get_num_threads, 2, threads=threads, show=False) == [threads] * 2


def test_ranks_draw_different_random_numbers():
    assert len(set(run_ranks(lambda: random.random(), 3, show=False))) == 3


@pytest.mark.slow
def test_runs_side_by_side_do_not_disturb_each_other():
    def run(number):
        return [r[0].item() for r in run_ranks(summed, 2, torch.tensor([number]), show=False)]

    with ThreadPoolExecutor(3) as pool:  # each run has a server, which first has to import torch
        assert list(pool.map(run, range(9))) == [[3 * number] * 2 for number in range(9)]


def test_the_trace_has_the_calls_of_every_rank_and_is_empty_where_none_was_asked_for():
    traced = run_ranks(summed, 2, torch.ones(3), show=False).trace
    for rank in range(2):
        (call,) = traced.collectives(rank)
        assert (call.op, call.bytes) == ("all_reduce", 12)
    plain = run_ranks(summed, 2, torch.ones(3), trace=False, show=False)
    assert plain[1].tolist() == [3, 3, 3]
    assert len(plain.trace) == 0


@pytest.mark.slow
def test_the_caller_may_have_forked():
    run_ranks(rank_and_world, 1, show=False)
    code = """
        import os
        from multigpu import run_ranks
        assert run_ranks(lambda: 1, 1, show=False) == [1]
        pid = os.fork()
        assert run_ranks(lambda: 2, 1, show=False) == [2]
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert run_ranks(lambda: 3, 1, show=False) == [3]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


def test_importing_the_package_does_not_import_torch():
    code = "import multigpu, sys; multigpu.run_ranks; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_windows_is_told_about_wsl2():
    code = """
        import multigpu.devices.meters, psutil, subprocess, sys, tempfile
        import multiprocessing.connection
        sys.platform = "win32"
        sys.modules["resource"] = sys.modules["fcntl"] = None  # Windows has neither
        from multigpu import run_ranks
        try:
            run_ranks(print, 2)
        except RuntimeError as error:
            assert "WSL2" in str(error)
        else:
            raise AssertionError
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((rank_and_world, 0), "world_size=0.*world_size=4"),
        ((rank_and_world, "4"), "world_size='4'.*world_size=4"),
        ((rank_and_world, True), "world_size=True.*world_size=4"),
        ((7, 4), "fn=7.*function"),
        ((rank_and_world, 2, threading.Lock()), r"fn='rank_and_world'.*argument.*_thread\.lock"),
    ],
)
def test_wrong_arguments_are_refused_with_the_value_and_what_to_do(arguments, said):
    with pytest.raises(ValueError, match=said):
        run_ranks(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "timeout=0.*seconds"),
        ({"threads": 0}, "threads=0.*threads=4"),
        ({"memory": "1 XB"}, "memory='1 XB'.*GiB"),
        ({"backend": "mpi"}, 'backend=\'mpi\'.*"gloo".*"nccl"'),
    ],
)
def test_wrong_options_are_refused_with_the_value_and_what_to_do(options, said):
    with pytest.raises(ValueError, match=said):
        run_ranks(rank_and_world, 2, **options)


@pytest.mark.slow
def test_ranks_without_a_seed_draw_other_numbers_as_under_torchrun():
    assert len(set(run_ranks(lambda: torch.rand(1).item(), 3, show=False))) == 3


@pytest.mark.slow
def test_a_module_that_starts_ranks_when_it_is_imported_comes_to_an_end(tmp_path):
    (tmp_path / "job.py").write_text("""
from multigpu import run_ranks

def work():
    return 1

run_ranks(work, 1, show=False)
""")
    command = [sys.executable, "-c", "import job"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert '__name__ == "__main__"' in done.stderr
