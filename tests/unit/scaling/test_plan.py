"""What is run, in which order, and what is left out or refused."""

import pytest

from multigpu.scaling.machine import Machine
from multigpu.scaling.plan import Candidate, in_turn, plan_of


def names(plan):
    return [str(candidate) for candidate in plan.candidates]


def test_single_comes_first_and_once_whatever_the_numbers_of_gpus():
    plan = plan_of(["ddp", "single"], [4, 2], batch_size=8)
    assert names(plan) == ["single", "ddp on 2", "ddp on 4"]


def test_dp_on_one_gpu_is_left_out_with_its_reason():
    plan = plan_of(["dp", "ddp"], [1, 2], batch_size=8)
    assert names(plan) == ["dp on 2", "ddp on 1", "ddp on 2"]
    assert [str(left) for left in plan.left_out] == [
        "dp on 1: nn.DataParallel with one GPU calls the model directly, as single does"
    ]


def test_a_pipeline_of_one_stage_is_left_out_and_any_batch_will_do_for_more():
    plan = plan_of(["pipeline", "single"], [1, 3], batch_size=8)
    assert names(plan) == ["single", "pipeline on 3"]
    assert "one stage is single" in str(plan.left_out[0])


def test_when_nothing_is_left_the_reason_is_given():
    with pytest.raises(ValueError, match="calls the model directly"):
        plan_of(["dp"], [1], batch_size=8)


@pytest.mark.parametrize(
    ("modes", "gpus", "batch_size", "said"),
    [
        (["dpp"], [2], 8, "'dpp' cannot be compared.*Did you mean 'dp'"),
        (["fsdp"], [2], 8, "choose from single, dp, ddp"),
        (["single"], [0], 8, "0 GPUs: give numbers from 1 to 64"),
        (["ddp"], [-1], 8, "-1 GPUs"),
        (["ddp"], [2000], 8, "2000 GPUs"),
        (["ddp"], [3], 128, "128 rows.*by 3 GPUs.*126 or 129"),
        (["dp"], [4], 2, "2 rows.*nearest that can: 4"),
        ([], [2], 8, "at least one mode"),
        (["ddp"], [], 8, "one number of GPUs"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_next_thing_to_try(
    modes, gpus, batch_size, said
):
    with pytest.raises(ValueError, match=said):
        plan_of(modes, gpus, batch_size=batch_size)


def test_candidates_take_turns_and_each_begins_a_round():
    three = [Candidate("single", 1), Candidate("dp", 2), Candidate("ddp", 2)]
    turns = list(in_turn(three, 3))
    assert [number for number, _ in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for number in range(3):
        assert {each for at, each in turns if at == number} == set(three)
    assert [turns[3 * number][1] for number in range(3)] == three


CPU = Machine("some CPU", 2, (), "Linux", "3.11", "2.13")
ONE_GPU = Machine("some CPU", 8, ("NVIDIA H200",), "Linux", "3.11", "2.13")
FOUR_GPUS = Machine("some CPU", 64, ("NVIDIA A100",) * 4, "Linux", "3.11", "2.13")


@pytest.mark.parametrize(
    ("machine", "mode", "gpus", "said"),
    [
        (CPU, "single", 1, "one process on the CPU (2 cores)"),
        (CPU, "dp", 4, "4 virtual GPUs (one CPU, 2 cores)"),
        (CPU, "ddp", 1, "1 gloo process on the CPU (2 cores)"),
        (CPU, "ddp", 4, "4 gloo processes on the CPU (2 cores)"),
        (ONE_GPU, "single", 1, "1 × NVIDIA H200"),
        (ONE_GPU, "dp", 2, "2 virtual GPUs (1 × NVIDIA H200)"),
        (ONE_GPU, "ddp", 1, "1 × NVIDIA H200 (nccl)"),
        (ONE_GPU, "ddp", 2, "2 gloo processes share 1 × NVIDIA H200"),
        (FOUR_GPUS, "dp", 2, "2 × NVIDIA A100"),
        (FOUR_GPUS, "ddp", 4, "4 × NVIDIA A100 (nccl)"),
    ],
)
def test_it_is_said_on_what_a_candidate_runs(machine, mode, gpus, said):
    assert machine.where(Candidate(mode, gpus)) == said


def test_this_machine_has_a_processor_cores_and_versions():
    here = Machine.here()
    assert here.cores >= 1
    assert all([here.processor, here.system, here.python, here.torch])
