"""Functions as they were written for torchrun, and ranks with virtual GPUs."""

import os
import pickle
import sys
import time
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d

from multigpu import RankError, run_ranks

VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)


def begins_and_ends(backend):
    dist.init_process_group(backend)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    dist.init_process_group(backend)
    return total.item(), [name for name in VARIABLES if name not in os.environ]


@pytest.mark.parametrize("backend", ["gloo", "GLOO", None, "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize("world", [1, 3])
def test_a_group_is_asked_for_as_under_torchrun(backend, world):
    assert run_ranks(begins_and_ends, world, backend, show=False) == [(world, [])] * world


def makes_its_own():
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("trace", [True, False])
def test_a_program_may_make_a_group_in_place_of_the_given_one(trace):
    assert run_ranks(makes_its_own, 2, trace=trace, show=False) == [2, 2]


def one_is_slow_to_join():
    """When this rank has joined, and when it has left."""
    rank, make = dist.get_rank(), c10d._new_process_group_helper
    dist.destroy_process_group()
    joined = []

    def slow(*given, **options):
        group = make(*given, **options)
        time.sleep(0.5 * rank)
        joined.append(time.monotonic())
        return group

    c10d._new_process_group_helper = slow
    dist.init_process_group("gloo")
    dist.destroy_process_group()
    return joined[0], time.monotonic()


def test_no_rank_leaves_while_another_still_joins():
    """Gloo fails in a rank that is still connecting to one that has left."""
    joined, left = zip(*run_ranks(one_is_slow_to_join, 2, show=False), strict=True)
    assert min(left) >= max(joined)


def groups_before_and_after():
    """Torch names the groups of a new world as it named those of the first."""
    rank, total = dist.get_rank(), torch.ones(1)
    first = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(total, group=first)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    second = dist.new_group([0, 1, 2])
    if rank < 3:
        dist.all_reduce(total, group=second)
        dist.broadcast(total, 0, group=second)
    dist.barrier()
    return total.item()


@pytest.mark.parametrize("trace", [True, False])
def test_so_do_its_subgroups(trace):
    assert run_ranks(groups_before_and_after, 4, trace=trace, show=False) == [5, 5, 5, 1]


def asks(options):
    dist.init_process_group(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "nccl"}, 'gpus="virtual"'),
        ({"world_size": 4}, "world_size=4"),
        ({"backend": "gloo", "rank": 7}, "rank=7"),
    ],
)
def test_another_group_than_the_one_of_the_run_is_refused(options, says):
    with pytest.raises(RankError, match="ValueError") as raised:
        run_ranks(asks, 2, options, show=False)
    assert says in str(raised.value)


def leaves(code):
    dist.barrier()
    sys.exit(code)


def test_exit_with_zero_is_an_end_like_any_other():
    assert run_ranks(leaves, 2, 0, show=False) == [None, None]
    assert run_ranks(leaves, 2, None, show=False) == [None, None]


@dataclass
class Row:
    number: int


def sends_a_class():
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, Row(dist.get_rank()))
    return [row.number for row in everyone], type(pickle.loads(pickle.dumps(Row(1)))) is Row


def test_classes_of_main_can_be_pickled_inside_a_rank(monkeypatch):
    for thing in (Row, sends_a_class):
        monkeypatch.setattr(thing, "__module__", "__main__")
    monkeypatch.setitem(globals(), "__name__", "__main__")
    assert run_ranks(sends_a_class, 2, show=False) == [([0, 1], True)] * 2


# --- virtual GPUs --------------------------------------------------------------------------------


def collectives():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert torch.cuda.current_device() == rank
    assert (dist.get_backend(), dist.is_nccl_available()) == ("nccl", True)
    total = torch.full((3,), float(rank), device="cuda")
    dist.all_reduce(total)
    parts = [torch.empty(3, device="cuda") for _ in range(world)]
    dist.all_gather(parts, total + rank)
    work = dist.broadcast(total, src=0, async_op=True)
    work.wait()
    dist.barrier()
    if rank == 0:
        dist.send(total, world - 1) if world > 1 else None
    elif rank == world - 1:
        dist.recv(total, 0)
    objects = [{"rank": rank}]
    dist.broadcast_object_list(objects, src=world - 1)
    group = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(total, group=group)
    places = {str(tensor.device) for tensor in (total, *parts)}
    return total.tolist(), [part.tolist() for part in parts], objects, places


@pytest.mark.parametrize("world", [1, 2, 4])
def test_nccl_works_on_virtual_gpus(world):
    results = run_ranks(collectives, world, gpus="virtual", show=False)
    total = float(sum(range(world)))
    parts = [[total + rank] * 3 for rank in range(world)]
    assert list(results) == [
        ([total] * 3, parts, [{"rank": world - 1}], {f"cuda:{rank}"}) for rank in range(world)
    ]
    assert str(results.backend) == f"nccl on {world} virtual GPU{'s' * (world > 1)}"


def asks_too_much():
    torch.empty(2**20, device="cuda")


def test_memory_is_that_of_each_gpu():
    with pytest.raises(RankError, match="OutOfMemoryError"):
        run_ranks(asks_too_much, 2, gpus="virtual", memory="1 MiB", show=False)
    assert run_ranks(asks_too_much, 2, gpus="virtual", show=False).memory == [2**22] * 2


def mixes():
    model = nn.Linear(3, 2).cuda()
    model(torch.ones(4, 3))


def test_an_error_names_the_caller_s_line():
    with pytest.raises(RankError) as raised:
        run_ranks(mixes, 2, gpus="virtual", show=False)
    assert "where: test_torchrun.py:" in str(raised.value)
    for layer in ("devices", "ranks"):
        assert os.path.join("src", "multigpu", layer) not in str(raised.value)


def one_leaves_a_call_out():
    if dist.get_rank():
        dist.all_reduce(torch.ones(2, device="cuda"))


def test_a_hang_on_virtual_gpus_is_proven():
    with pytest.raises(RankError) as raised:
        run_ranks(one_leaves_a_call_out, 2, gpus="virtual", show=False)
    assert raised.value.kind in ("deadlock", "mismatch")
    assert "test_torchrun.py:" in str(raised.value)
