"""The notebook of lessons 2 and 3 shows what its text says."""

import re

import pytest

from .conftest import links

NOTEBOOK = "multi_GPU"
WEIGHT_BYTES = 4 * 6_090


def test_dataparallel_learns_at_least_95_percent_of_the_test_digits(printed):
    shown = re.search(r"\d GPUs: ([\d.]+)% of the test digits", printed("train-dp"))
    assert float(shown[1]) >= 95


def test_the_three_ways_to_train_give_the_same_weights(printed):
    assert float(re.search(r"moved\D+(\S+)", printed("proof"))[1]) > 0.01
    gaps = re.findall(r"(\S+): 6,090 weights, the same as one GPU within (\S+)", printed("proof"))
    assert [way for way, _ in gaps] == ["DataParallel", "hand"]
    assert all(float(gap) < 1e-10 for _, gap in gaps)


def test_ten_rows_leave_the_cpu_as_3_3_3_and_1(printed):
    row = 8 * 8 * 4
    assert links(printed("split")) == {
        ("cpu", "cuda:0"): f"{3 * row} B",
        ("cpu", "cuda:1"): f"{3 * row} B",
        ("cpu", "cuda:2"): f"{3 * row} B",
        ("cpu", "cuda:3"): f"{row} B",
    }


@pytest.mark.parametrize("cell", ["replicate", "broadcast"])
def test_weights_go_from_gpu_0_to_each_other_gpu(printed, cell):
    amount = f"{WEIGHT_BYTES / 1024:.1f} KiB"
    assert links(printed(cell)) == {("cuda:0", f"cuda:{i}"): amount for i in (1, 2, 3)}


def test_gradients_come_back_to_gpu_0(printed):
    amount = f"{WEIGHT_BYTES / 1024:.1f} KiB"
    assert links(printed("sum")) == {(f"cuda:{i}", "cuda:0"): amount for i in (1, 2, 3)}


def test_scores_are_gathered_and_their_gradients_go_back(printed):
    row = 10 * 4
    there = {
        ("cuda:1", "cuda:0"): 3 * row,
        ("cuda:2", "cuda:0"): 3 * row,
        ("cuda:3", "cuda:0"): row,
    }
    assert links(printed("gather")) == {link: f"{size} B" for link, size in there.items()}
    assert links(printed("backward")) == {
        (target, source): f"{size} B" for (source, target), size in there.items()
    }


def test_the_replicas_are_stale_until_broadcast(printed):
    before, after = re.findall(r"up to date .*: +(\[.*\])", printed("broadcast"))
    assert before == "[False, False, False]"
    assert after == "[True, True, True]"


def test_gpu_0_holds_four_times_the_weights_between_steps_and_the_others_none(printed):
    between = re.findall(r"cuda:(\d): ([\d.]+) W between steps", printed("memory"))
    assert [index for index, _ in between] == ["0", "1", "2", "3"]
    first, *others = (float(share) for _, share in between)
    assert 4.0 <= first < 4.2
    assert max(others) < 0.2


@pytest.mark.multi_gpu
def test_where_there_are_several_gpus_the_training_used_them(printed):
    assert "virtual" not in printed("gpus")
