"""A limit for the memory of each rank, and the peak that was reached."""

import re
import threading
import time
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

from multigpu import RankError, run_ranks, virtual_gpus
from multigpu.devices.threads import around_new_threads
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


def test_virtual_gpus_inside_a_limited_rank_count_for_themselves():
    def on_a_gpu():
        with virtual_gpus(1, memory=8 * KIB) as machine:
            kept = torch.ones(KIB, device="cuda")
            allocated = machine.memory(0).allocated
            with pytest.raises(torch.OutOfMemoryError):
                torch.ones(2 * KIB, device="cuda")
        return allocated, kept.nbytes

    (result,) = run_ranks(on_a_gpu, 1, memory="1 MiB", show=False)
    assert result == (4 * KIB, 4 * KIB)


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


def test_a_storage_counts_with_the_size_that_it_has_now():
    def free_and_take_again():
        first = torch.ones(KIB, dtype=torch.uint8)
        first.untyped_storage().resize_(0)
        torch.ones(KIB, dtype=torch.uint8)
        freed = rank_memory().allocated
        first.untyped_storage().resize_(KIB)
        return freed, rank_memory().allocated, rank_memory().peak

    assert run_ranks(free_and_take_again, 1, memory="1 MiB", show=False) == [(0, KIB, KIB)]


def test_the_peak_counts_anew_where_it_is_asked_to():
    def twice():
        torch.ones(4 * KIB, dtype=torch.uint8)
        before = rank_memory(reset_peak=True).peak
        torch.ones(KIB, dtype=torch.uint8)
        return before, rank_memory().peak

    assert run_ranks(twice, 1, memory="1 MiB", show=False) == [(0, KIB)]


def test_without_a_limit_nobody_counts():
    with pytest.raises(RankError, match=r"RuntimeError: .*memory="):
        run_ranks(rank_memory, 1, show=False)


def test_a_sharded_model_holds_its_shards_and_for_a_moment_a_whole_layer():
    width, depth, ranks = 64, 8, 2
    layer = 4 * width**2
    whole, few = depth * layer, 8 * KIB  # activations of one row, and Adam's counters

    def train():
        from torch.distributed.fsdp import fully_shard

        layers = [torch.nn.Linear(width, width, bias=False) for _ in range(depth)]
        model = torch.nn.Sequential(*(fully_shard(layer) for layer in layers))
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
        seen = []

        def at_rest(most):
            """The bytes; the thread that has sent something may hold it for a moment longer."""
            deadline = time.monotonic() + 30
            while rank_memory().allocated > most + few and time.monotonic() < deadline:
                time.sleep(0.01)
            return rank_memory().allocated

        layers[-1].register_forward_hook(lambda *_: seen.append(rank_memory().allocated))
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(1, width)).sum()
            seen.append(at_rest(3 * whole / ranks))
            loss.backward()
            optimizer.step()
        return seen[-2], seen[-1], at_rest(4 * whole / ranks)

    for during, after, with_gradients in run_ranks(
        train, ranks, memory="1 MiB", backend="gloo", show=False
    ):
        assert layer <= during - after <= 2 * layer + few
        assert 0 <= after - 3 * whole / ranks <= few
        assert 0 <= with_gradients - 4 * whole / ranks <= few


def test_whoever_watches_threads_first_may_stop_first():
    """Several watch them: those who count memory, who record, and virtual GPUs."""
    seen, bootstrap = [], threading.Thread._bootstrap_inner
    first, second = (
        around_new_threads(lambda _, name=name: nullcontext(seen.append(name)))
        for name in ("a", "b")
    )
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    second.__exit__(None, None, None)
    assert seen == ["b"]
    assert threading.Thread._bootstrap_inner is bootstrap
