"""The notebook of lessons 6 and 7 shows what its text says."""

import re

from .conftest import numbers

NOTEBOOK = "ddp"
WEIGHT_BYTES = 4 * 6_090


def test_gradients_differ_without_ddp_and_are_one_with_it(printed):
    without, with_ddp = (numbers(line) for line in printed("surprise").splitlines())
    assert without[0] != without[1]
    assert with_ddp[0] == with_ddp[1]


def test_768_rows_on_5_ranks_are_padded_or_dropped(printed):
    padded, dropped = (line for line in printed("shards").splitlines() if "drop_last" in line)
    assert numbers(padded) == [154] * 5 + [770, 768]  # rows, and different ones
    assert numbers(dropped) == [153] * 5 + [765, 765]


def test_ddp_learns_at_least_95_percent_of_the_test_digits(printed):
    shown = re.search(r"2 ranks: ([\d.]+)% of the test digits", printed("train-ddp"))
    assert float(shown[1]) >= 95
    assert re.search(r"equal.*: True$", printed("train-ddp"), re.MULTILINE)


def test_weights_are_sent_once_and_gradients_once_a_step(printed):
    shown = printed("trace")
    steps = 12 * 12  # epochs, and batches of 128 in 1,438 rows
    assert re.search(rf"\b{steps} × all_reduce\D*{WEIGHT_BYTES:,} B", shown)
    assert re.search(rf"\b1 × broadcast\D*{WEIGHT_BYTES:,} B", shown)


def test_a_fast_rank_waits_in_backward(printed):
    part = dict(re.findall(r"rank 0, (\w+) *: +([\d.]+) ms", printed("slow-rank")))
    forward, backward, step = (float(part[name]) for name in ("forward", "backward", "step"))
    assert forward + backward > 150, "it may begin late, and then waits for less"
    assert backward > max(forward, step)


def test_the_script_was_run_by_torchrun(printed):
    shown = re.search(r"accuracy on the test images: ([\d.]+)%", printed("torchrun"))
    assert float(shown[1]) >= 90


def test_a_missing_gradient_counts_as_zero(printed):
    assert printed("average").splitlines()[-1] == "[2.0, 2.0, 2.0]"


def test_overlapping_starts_in_backward_and_buckets_are_fewer(printed):
    found = re.findall(
        r"(\w+) *: +(\d+) all-reduces, +(\d+) begun in backward, ([\d,]+) bytes",
        printed("counted"),
    )
    (_, many, late, bytes_1), (_, as_many, early, bytes_2), (_, few, buckets, bytes_3) = found
    assert (many, late) == ("12", "0")
    assert (as_many, early) == ("12", "12")
    assert (few, buckets) == ("3", "3")
    assert bytes_1 == bytes_2 == bytes_3


def test_all_wrappers_train_like_one_process(printed):
    assert float(re.search(r"moved\D+(\S+)", printed("proof"))[1]) > 0.01
    gaps = re.findall(r"(\w+): on all ranks the same as one process within (\S+)", printed("proof"))
    names = [name for name, _ in gaps]
    assert names == ["DistributedDataParallel", "NaiveDDP", "OverlappedDDP", "BucketedDDP"]
    assert all(float(gap) < 1e-10 for _, gap in gaps)


def test_the_weighted_mean_is_right_and_the_plain_one_is_not(printed):
    plain, weighted = re.findall(r"wrong by (\S+) of", printed("uneven"))
    assert float(plain) > 0.1
    assert float(weighted) < 1e-12


def test_training_goes_on_from_the_checkpoint(printed):
    assert len(re.findall(r"epoch 1\b.*: True$", printed("checkpoint"), re.MULTILINE)) == 2


def test_the_hang_names_the_rank_that_ran_out(printed):
    before, _, after = printed("hang").partition("with join():")
    assert "rank 0 returned" in before.lower()
    assert after.strip() == "['done', 'done']"
