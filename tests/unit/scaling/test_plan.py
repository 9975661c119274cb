"""What is run, in which order, and what is left out or refused."""

import re

import pytest

from multigpu.scaling.comparison import Candidate, Machine
from multigpu.scaling.measuring import in_turn, plan_of


def test_single_comes_first_and_once_whatever_the_numbers_of_gpus():
    candidates, _ = plan_of(["ddp", "single"], [4, 2], batch_size=8)
    assert list(map(str, candidates)) == ["single", "ddp on 2", "ddp on 4"]


def test_dp_on_one_gpu_is_left_out_with_its_reason():
    candidates, left_out = plan_of(["dp", "ddp"], [1, 2], batch_size=8)
    assert list(map(str, candidates)) == ["dp on 2", "ddp on 1", "ddp on 2"]
    assert [(left.mode, left.gpus) for left in left_out] == [("dp", 1)]
    assert "single" in left_out[0].reason


def test_a_pipeline_of_one_stage_is_left_out_and_any_batch_will_do_for_more():
    candidates, left_out = plan_of(["pipeline", "single"], [1, 3], batch_size=8)
    assert list(map(str, candidates)) == ["single", "pipeline on 3"]
    assert [(left.mode, left.gpus) for left in left_out] == [("pipeline", 1)]
    assert "single" in left_out[0].reason


def test_when_nothing_is_left_the_reason_is_given():
    with pytest.raises(ValueError, match=r"dp on 1\b.*single"):
        plan_of(["dp"], [1], batch_size=8)


@pytest.mark.parametrize(
    ("modes", "gpus", "batch_size", "said"),
    [
        (["dpp"], [2], 8, "'dpp'.*'dp'"),
        (["fsdp"], [2], 8, "'fsdp'.*single, dp, ddp"),
        (["single"], [0], 8, r"\b0 GPUs\b.*\b1 to 64\b"),
        (["ddp"], [-1], 8, "-1 GPUs"),
        (["ddp"], [2000], 8, "2000 GPUs"),
        (["ddp"], [3], 128, r"\b128 rows\b.*\b3 GPUs\b.*\b126 or 129\b"),
        (["dp"], [4], 2, r"\b2 rows\b.*\b4 GPUs\b.*\b4\b"),
        ([], [2], 8, "mode"),
        (["ddp"], [], 8, "GPUs"),
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
        (CPU, "single", 1, r"\D*CPU\D*2 cores\W*"),
        (CPU, "dp", 4, r"4 virtual\D*CPU\D*2 cores\W*"),
        (CPU, "ddp", 1, r"1 gloo\D*CPU\D*2 cores\W*"),
        (CPU, "ddp", 4, r"4 gloo\D*CPU\D*2 cores\W*"),
        (ONE_GPU, "single", 1, "1 × NVIDIA H200"),
        (ONE_GPU, "dp", 2, r"2 virtual\D*1 × NVIDIA H200\W*"),
        (ONE_GPU, "ddp", 1, r"1 × NVIDIA H200\W*nccl\W*"),
        (ONE_GPU, "ddp", 2, r"2 gloo\D*1 × NVIDIA H200\W*"),
        (FOUR_GPUS, "dp", 2, "2 × NVIDIA A100"),
        (FOUR_GPUS, "ddp", 4, r"4 × NVIDIA A100\W*nccl\W*"),
    ],
)
def test_it_is_said_on_what_a_candidate_runs(machine, mode, gpus, said):
    assert re.fullmatch(said, machine.where(Candidate(mode, gpus)))


def test_this_machine_has_a_processor_cores_and_versions():
    here = Machine.here()
    assert here.cores >= 1
    assert all([here.processor, here.system, here.python, here.torch])
