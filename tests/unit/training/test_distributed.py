"""How a process was started, the backend and GPU of each rank, and how they leave."""

import sys
from typing import Any

import pytest
import torch
from torch import distributed as dist

from multigpu import run_ranks
from multigpu.training import distributed
from multigpu.training.distributed import (
    Launch,
    agree_on_backend,
    join_group,
    leave_unless_failed,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host-a",
    "MASTER_PORT": "29500",
}


def test_without_torchruns_variables_a_process_is_alone_and_the_main_one() -> None:
    launch = Launch.here({"PATH": "/bin", "SLURM_PROCID": "3"})
    assert launch == Launch(rank=0, local_rank=0, world_size=1, local_world_size=1)
    assert launch.is_main
    assert not launch.is_distributed


def test_torchruns_variables_say_which_rank_of_which_machine_this_is() -> None:
    launch = Launch.here(TORCHRUN)
    assert (launch.rank, launch.world_size) == (5, 8)
    assert (launch.local_rank, launch.local_world_size) == (1, 4)
    assert launch.started_by == "torchrun"
    assert launch.is_distributed
    assert not launch.is_main


def test_a_process_group_that_is_there_counts_whatever_the_variables_say() -> None:
    def look() -> tuple[Any, ...]:
        from multigpu.training.distributed import Launch

        launch = Launch.here({"RANK": "nonsense"})
        return launch.rank, launch.world_size, launch.started_by, launch.is_main

    found = run_ranks(look, 3, show=False)
    assert list(found) == [(rank, 3, "a process group", rank == 0) for rank in range(3)]


def chosen(*gpus: str, asked: str | None = None) -> set[tuple[str, int]]:
    """The backends that ranks choose, and on how many GPUs of their own machine, a or b."""
    store, mine = dist.HashStore(), [tuple(gpu.split("/")) for gpu in gpus]
    for rank, (host, gpu) in enumerate(mine):  # as each rank does before it asks
        store.set(f"multigpu/gpu/{rank}", f"{host}\n{gpu}")
    backends = [
        agree_on_backend(store, rank, len(gpus), asked=asked, mine=(host, gpu), ranks=2)
        for rank, (host, gpu) in enumerate(mine)
    ]
    return {(backend.name, backend.gpus) for backend in backends}


@pytest.mark.parametrize(
    ("gpus", "backends"),
    [
        (["a/0", "a/1"], {("nccl", 2)}),
        (["a/0", "a/1", "b/0", "b/1"], {("nccl", 2)}),
        (["a/0", "a/0"], {("gloo", 1)}),  # a shared GPU
        (["a/0", "a/1", "b/0", "b/0"], {("gloo", 2), ("gloo", 1)}),
        (["a/0", "a/1", "b/", "b/"], {("gloo", 2), ("gloo", 0)}),  # b has none
    ],
)
def test_ranks_use_nccl_where_each_has_a_gpu_of_its_own(
    gpus: list[str], backends: set[tuple[str, int]]
) -> None:
    assert chosen(*gpus) == backends


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


@pytest.mark.parametrize("made_of", [None, "cpu:gloo"])
def test_the_backend_of_a_group_is_that_for_the_ranks_device(made_of: str | None) -> None:
    """PyTorch's default has one for each type of device, and its name is "undefined"."""

    def on_a_rank() -> tuple[str, str]:
        dist.destroy_process_group()
        dist.init_process_group(made_of)
        launch = Launch.here()
        return str(join_group(launch, None)), join_group(launch, "gloo").name

    found = run_ranks(on_a_rank, 2, backend="gloo", show=False, trace=False)
    assert set(found) == {("gloo on the CPU", "gloo")}


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
