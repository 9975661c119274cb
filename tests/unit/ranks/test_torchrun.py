"""Functions as they were written for torchrun, and ranks with virtual GPUs."""

import importlib
import os
import pickle
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from multigpu import RankError, run_ranks
from multigpu.ranks import torchrun

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


def one_is_slow_to_join(joins):
    """When this rank has joined, and when it has left."""
    rank, connect = dist.get_rank(), dist.ProcessGroupGloo
    joined = []

    def slowly(*given):
        group = connect(*given)
        time.sleep(0.5 * rank)
        joined.append(time.monotonic())
        return group

    dist.ProcessGroupGloo = slowly
    if joins == "a world":
        dist.destroy_process_group()
        dist.init_process_group("gloo")
    else:
        group = dist.new_group([0, 1])
    dist.destroy_process_group(group if joins == "a subgroup" else None)
    return joined[0], time.monotonic()


@pytest.mark.parametrize("joins", ["a world", "a subgroup", "a subgroup, and leaves all"])
def test_no_rank_leaves_while_another_still_joins(joins):
    """Gloo fails in a rank that is still connecting to one that has left."""
    joined, left = zip(*run_ranks(one_is_slow_to_join, 2, joins, show=False), strict=True)
    assert min(left) >= max(joined)


def joins_when_the_other_has_left(sign):
    """With this backend, as with NCCL, no rank waits for others in order to join."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    torchrun.SLOWEST = timedelta(seconds=0.1)
    rank = dist.get_rank()
    dist.destroy_process_group()
    while rank == 1 and not sign.exists():
        time.sleep(0.01)
    dist.init_process_group("fake")
    dist.destroy_process_group()
    sign.touch()


def test_a_rank_may_leave_before_another_joins(tmp_path):
    assert run_ranks(joins_when_the_other_has_left, 2, tmp_path / "left", show=False) == [None] * 2


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


def makes_a_mesh():
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (2,))
    return distribute_tensor(torch.ones(2), mesh, [Shard(0)]).full_tensor().tolist()


@pytest.mark.parametrize("trace", [True, False])
def test_a_mesh_may_be_made_of_a_group_in_place_of_the_given_one(trace):
    assert run_ranks(makes_a_mesh, 2, trace=trace, show=False) == [[1, 1]] * 2


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


@pytest.mark.parametrize(("world", "trace"), [(1, True), (2, True), (4, True), (2, False)])
def test_nccl_works_on_virtual_gpus(world, trace):
    results = run_ranks(collectives, world, gpus="virtual", trace=trace, show=False)
    total = float(sum(range(world)))
    parts = [[total + rank] * 3 for rank in range(world)]
    assert list(results) == [
        ([total] * 3, parts, [{"rank": world - 1}], {f"cuda:{rank}"}) for rank in range(world)
    ]
    assert str(results.backend) == f"nccl on {world} virtual GPU{'s' * (world > 1)}"


def makes_it_again(backend):
    dist.destroy_process_group()
    dist.init_process_group(backend)
    return [dist.get_backend_config(group) for group in (None, dist.new_group([0, 1]))]


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("backend", ["nccl", None])
def test_a_group_made_again_has_nccl_for_virtual_gpus_as_the_given_one(backend, trace):
    results = run_ranks(makes_it_again, 2, backend, gpus="virtual", trace=trace, show=False)
    assert results == [["cuda:nccl"] * 2] * 2


def sends_from_the_cpu():
    dist.destroy_process_group()
    dist.init_process_group()
    dist.all_reduce(torch.ones(1))


def test_the_default_group_on_gpus_takes_nothing_from_the_cpu():
    """As PyTorch's, which has a backend for GPUs only where there are some."""
    with pytest.raises(RankError, match="No backend type associated with device type cpu"):
        run_ranks(sends_from_the_cpu, 2, gpus="virtual", show=False)


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
