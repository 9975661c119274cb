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
from multigpu.ranks.process_tree import MARK, RUN
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


@pytest.mark.parametrize("world_size", [1, 4])
def test_results_come_in_rank_order(world_size):
    results = run_ranks(rank_and_world, world_size, show=False)
    assert results == [(rank, world_size) for rank in range(world_size)]


def test_the_ranks_talk_to_each_other():
    for result in run_ranks(summed, 3, torch.ones(2), show=False):
        assert result.tolist() == [6, 6]


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


def test_of_a_large_storage_only_the_part_that_a_result_shows_is_sent():
    large = torch.arange(1_000_000.0)
    small = [large[5:7], large.view(1000, 1000)[:2, ::500], torch.nn.Parameter(large[5:7])]
    assert len(pickled(small, what="a result", hint="")) < 5000
    (back,) = run_ranks(lambda: small, 1, show=False)
    torch.testing.assert_close(back, small)
    assert [(type(each), each.requires_grad) for each in back] == [
        (type(each), each.requires_grad) for each in small
    ]


def test_ranks_stand_where_the_caller_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_NAME_OF_THIS_TEST", "there")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module_of_this_test.py").write_text("NUMBER = 7\n")

    def look():
        import module_of_this_test

        return os.getcwd(), os.environ["A_NAME_OF_THIS_TEST"], module_of_this_test.NUMBER

    assert run_ranks(look, 1, show=False) == [(str(tmp_path), "there", 7)]


def test_threads_of_an_operator():
    assert run_ranks(torch.get_num_threads, 2, show=False) == [1, 1]
    assert run_ranks(torch.get_num_threads, 2, threads=2, show=False) == [2, 2]


def test_ranks_draw_different_random_numbers():
    assert len(set(run_ranks(lambda: random.random(), 3, show=False))) == 3


@pytest.mark.slow
def test_runs_side_by_side_do_not_disturb_each_other():
    def run(number):
        return [r[0].item() for r in run_ranks(summed, 2, torch.tensor([number]), show=False)]

    with ThreadPoolExecutor(2) as pool:  # each has a server, which first has to import torch
        assert list(pool.map(run, range(6))) == [[3 * number] * 2 for number in range(6)]


def test_the_trace_has_the_calls_of_every_rank_and_is_empty_where_none_was_asked_for():
    traced = run_ranks(summed, 2, torch.ones(3), show=False).trace
    for rank in range(2):
        (call,) = traced.collectives(rank)
        assert (call.op, call.bytes) == ("all_reduce", 12)
    plain = run_ranks(summed, 2, torch.ones(3), trace=False, show=False)
    assert plain[1].tolist() == [3, 3, 3]
    assert len(plain.trace) == 0


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
    ("arguments", "options", "said"),
    [
        ((rank_and_world, 0), {}, "world_size=0.*world_size=4"),
        ((rank_and_world, True), {}, "world_size=True.*world_size=4"),
        ((7, 4), {}, "fn=7.*function"),
        ((rank_and_world, 2, threading.Lock()), {}, r"fn='rank_and_world'.*_thread\.lock"),
        ((rank_and_world, 2), {"timeout": 0}, "timeout=0.*seconds"),
        ((rank_and_world, 2), {"threads": 0}, "threads=0.*threads=4"),
        ((rank_and_world, 2), {"memory": "1 XB"}, "memory='1 XB'.*GiB"),
        ((rank_and_world, 2), {"backend": "mpi"}, 'backend=\'mpi\'.*"gloo".*"nccl"'),
        ((rank_and_world, 2), {"gpus": "real"}, "gpus='real'.*virtual"),
    ],
)
def test_wrong_arguments_are_refused_with_the_value_and_what_to_do(arguments, options, said):
    with pytest.raises(ValueError, match=said):
        run_ranks(*arguments, **options)


def test_a_module_that_starts_ranks_when_it_is_imported_comes_to_an_end(monkeypatch):
    """Each rank imports it, and starts the next ones in a folder inside its own."""
    monkeypatch.setenv(MARK, 3 * f"/{RUN}")
    with pytest.raises(ValueError, match='__name__ == "__main__"'):
        run_ranks(rank_and_world, 1)
