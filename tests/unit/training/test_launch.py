"""How a process finds out whether it is alone or a rank, and what it refuses to guess."""

import os
import re
from itertools import combinations
from typing import Any

import pytest

from multigpu import run_ranks
from multigpu.training.distributed import NEEDED, Launch

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


def test_one_rank_alone_under_torchrun_is_distributed_all_the_same() -> None:
    alone = TORCHRUN | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert Launch.here(alone).is_distributed


def test_every_half_set_of_variables_is_refused_with_what_is_missing() -> None:
    for count in range(1, len(NEEDED)):
        for names in combinations(NEEDED, count):
            with pytest.raises(ValueError, match="torchrun --nproc_per_node") as found:
                Launch.here({name: TORCHRUN[name] for name in names})
            said = str(found.value)
            missing = [name for name in NEEDED if name not in names]
            assert re.findall(r"[A-Z_]{4,}", said)[: len(NEEDED)] == [*names, *missing]
            assert f"`unset {' '.join(names)}`" in said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "one"}, "RANK='one'"),
        ({"LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE=''"),
        ({"RANK": "8"}, r"RANK=8\b.*WORLD_SIZE=8"),
        ({"RANK": "-1"}, r"RANK=-1\b"),
        ({"LOCAL_RANK": "4"}, r"LOCAL_RANK=4\b.*LOCAL_WORLD_SIZE=4"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9"),
    ],
)
def test_variables_that_cannot_be_torchruns_are_refused(
    changed: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Launch.here(TORCHRUN | changed)


def test_a_process_group_that_is_there_counts_whatever_the_variables_say() -> None:
    def look() -> tuple[Any, ...]:
        from multigpu.training.distributed import Launch

        for name in ("MASTER_ADDR", "MASTER_PORT"):  # run_ranks meets in a file
            assert name not in os.environ
        launch = Launch.here({"RANK": "nonsense"})
        return launch.rank, launch.world_size, launch.started_by, launch.is_main

    found = run_ranks(look, 3, show=False)
    assert list(found) == [(rank, 3, "a process group", rank == 0) for rank in range(3)]
