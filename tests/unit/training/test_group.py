"""The backend that ranks agree on, the GPU of each, and how they leave."""

import sys

import pytest
import torch
from torch import distributed as dist

from multigpu import run_ranks
from multigpu.training import distributed
from multigpu.training.distributed import Launch, chosen_by_all, join_group, leave_unless_failed


def chosen(*gpus: str, asked: str | None = None) -> set[tuple[str, int]]:
    """The backends that ranks choose, and on how many GPUs of their own machine, a or b."""
    store, mine = dist.HashStore(), [tuple(gpu.split("/")) for gpu in gpus]
    for rank, (host, gpu) in enumerate(mine):  # as each rank does before it asks
        store.set(f"multigpu/gpu/{rank}", f"{host}\n{gpu}")
    backends = [
        chosen_by_all(store, rank, len(gpus), asked=asked, mine=(host, gpu), ranks=2)
        for rank, (host, gpu) in enumerate(mine)
    ]
    return {(backend.name, backend.gpus) for backend in backends}


def test_ranks_that_each_see_one_gpu_of_their_own_use_nccl() -> None:
    assert chosen("a/0", "a/1") == {("nccl", 2)}
    assert chosen("a/0", "a/1", "b/0", "b/1") == {("nccl", 2)}


def test_ranks_that_share_a_gpu_use_gloo() -> None:
    assert chosen("a/0", "a/0") == {("gloo", 1)}
    assert chosen("a/0", "a/1", "b/0", "b/0") == {("gloo", 2), ("gloo", 1)}


def test_a_machine_without_gpus_makes_all_use_gloo() -> None:
    assert chosen("a/0", "a/1", "b/", "b/") == {("gloo", 2), ("gloo", 0)}


def test_the_backend_that_is_asked_for_is_taken_where_it_can_be() -> None:
    assert chosen("a/0", "a/1", asked="nccl") == {("nccl", 2)}
    assert chosen("a/0", "a/1", asked="gloo") == {("gloo", 2)}
    with pytest.raises(ValueError, match=r"nccl.*\b2 ranks\b.*\b1\b"):
        chosen("a/0", "a/0", asked="nccl")


def test_each_rank_of_a_machine_has_the_gpu_of_its_local_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)  # mp.spawn and init_process_group set none
    numbers = [Launch(local_rank=local_rank).device.index for local_rank in range(4)]
    assert numbers == [0, 1, 0, 1]


def asks_for_another() -> str:
    with pytest.raises(ValueError, match="group of gloo") as found:
        join_group(Launch.here(), "nccl")
    return str(found.value)


def test_another_backend_than_the_groups_own_is_refused() -> None:
    said = run_ranks(asks_for_another, 1, backend="gloo", show=False)
    assert "backend=" in said[0]


def test_only_a_process_that_ends_well_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[str] = []
    monkeypatch.setattr(distributed, "leave_group", lambda: left.append("group"))
    monkeypatch.delattr(sys, "last_value", raising=False)
    leave_unless_failed()
    assert left == ["group"]
    monkeypatch.setattr(sys, "last_value", ValueError("a batch is broken"), raising=False)
    leave_unless_failed()
    assert left == ["group"]
