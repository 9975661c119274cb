"""A limit for the memory of each rank, and the peak that was reached."""

import re
import threading

import pytest
import torch
import torch.distributed as dist

from multigpu import RankError, run_ranks
from multigpu.ranks import rank_memory

KIB = 1024

# With a GPU PyTorch's own allocator counts, which rounds up.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts storages on the CPU")


def peak_of(function, *arguments):
    (peak,) = run_ranks(function, 1, *arguments, memory="1 MiB", show=False).memory
    return peak


def test_every_rank_has_its_own_peak():
    def allocate():
        torch.ones(KIB * (dist.get_rank() + 1), dtype=torch.uint8)

    assert run_ranks(allocate, 3, memory=8 * KIB, show=False).memory == [KIB, 2 * KIB, 3 * KIB]


def test_views_cost_nothing_and_keep_all_of_their_storage():
    def views():
        small = torch.ones(KIB, dtype=torch.uint8).view(32, 32)[0, :1]
        other = torch.ones(KIB, dtype=torch.uint8)
        return small.item() + other[0].item()

    assert peak_of(views) == 2 * KIB


def test_arguments_count_and_so_do_the_tensors_of_other_threads():
    def in_a_thread(tensor):
        kept = []
        thread = threading.Thread(target=lambda: kept.append(tensor.clone()))
        thread.start()
        thread.join()

    assert peak_of(in_a_thread, torch.ones(KIB, dtype=torch.uint8)) == 2 * KIB


def test_what_the_trace_keeps_of_an_async_call_does_not_count():
    def add():
        dist.all_reduce(torch.ones(KIB), async_op=True).wait()

    assert run_ranks(add, 2, memory="1 MiB", show=False).memory == [4 * KIB, 4 * KIB]


@pytest.mark.parametrize("trace", [True, False])
def test_the_rank_that_passes_its_limit_gets_an_out_of_memory_error(trace):
    def pile_up():
        pile = []
        dist.barrier()
        for _ in range(8 * dist.get_rank()):
            pile.append(torch.ones(256 * KIB, dtype=torch.uint8))
        dist.barrier()

    with pytest.raises(RankError, match=r"OutOfMemoryError: .*Tried to allocate 256") as caught:
        run_ranks(pile_up, 2, memory="1 MiB", trace=trace, timeout=10, show=False)
    assert (caught.value.kind, caught.value.ranks) == ("exception", (1,))
    where = re.findall("where: (.*)", str(caught.value))
    assert len(where) == 1
    assert "test_memory_limit.py" in where[0]
    assert "pile_up" in where[0]


def test_the_peak_counts_anew_where_it_is_asked_to():
    def twice():
        torch.ones(4 * KIB, dtype=torch.uint8)
        before = rank_memory(reset_peak=True).peak
        kept = torch.ones(KIB, dtype=torch.uint8)
        torch.ones(KIB, dtype=torch.uint8)
        return before, rank_memory().peak, rank_memory().allocated, len(kept)

    assert run_ranks(twice, 1, memory="1 MiB", show=False) == [(0, 2 * KIB, KIB, KIB)]


def test_without_a_limit_nobody_counts():
    with pytest.raises(RankError, match=r"RuntimeError: .*memory="):
        run_ranks(rank_memory, 1, show=False)
