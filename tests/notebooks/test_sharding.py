"""The notebook on sharding shows what its text says.  How fast it was is not asserted."""

import re

from .conftest import numbers

NOTEBOOK = "sharding"


def test_adam_holds_16_bytes_for_each_parameter(printed):
    found = {line.partition(":")[0]: numbers(line) for line in printed("fills").splitlines()}
    assert found == {"SGD": [4, 4], "SGD with momentum": [4, 4, 4], "Adam": [4, 4, 8]}


def test_the_optimizer_is_what_does_not_fit(printed):
    assert "OutOfMemoryError" in printed("full")
    assert "optimizer.step()" in printed("full")


def test_every_stage_trains_like_one_process(printed):
    assert float(re.search(r"moved\D+(\S+)", printed("by-hand"))[1]) > 0.01
    gaps = re.findall(r"ZeRO-(\d): .* within (\S+)", printed("by-hand"))
    assert [stage for stage, _ in gaps] == ["1", "2", "3"]
    assert all(float(gap) < 1e-10 for _, gap in gaps)


def test_what_is_left_on_a_rank_is_what_the_formula_says(printed):
    rows = re.findall(r"([\d.]+) MiB; the formula ([\d.]+) MiB", printed("stages"))
    assert [float(expected) for _, expected in rows] == [8.0, 5.0, 3.5, 2.0]
    measured = [float(held) for held, _ in rows]
    assert measured[0] == 8.0
    assert measured == sorted(measured, reverse=True)
    assert measured[3] == 2.0


def test_stage_3_sends_half_as_much_again(printed):
    sent = re.findall(r"formula ([\d.]+), measured ([\d.]+)", printed("traffic"))
    assert [float(expected) for expected, _ in sent] == [1.5, 1.5, 1.5, 2.25]
    assert [float(measured) for _, measured in sent][::3] == [1.5, 2.25]


def test_64_gpus_do_not_help_ddp(printed):
    totals = re.findall(r"(\d+) GB\n", printed("large"))
    assert totals[0] == totals[4 + 1] == "480"


def test_each_group_is_gathered_twice_and_reduced_once(printed):
    assert "{'all_gather': 17, 'reduce_scatter': 9}" in printed("fsdp")


def test_what_did_not_fit_fits_with_sharding(printed):
    peaks = [float(peak) for peak in re.findall(r"up to (\d+) MiB", printed("fits"))]
    assert len(peaks) == 2
    assert all(160 < peak < 256 for peak in peaks)


def test_sharding_makes_room_for_more_rows(printed):
    rows = [int(each) for each in re.findall(r"(\d+) rows fit", printed("batch"))]
    assert len(rows) == 3
    assert rows[0] < rows[1] <= rows[2]


def test_all_modes_train_the_same(printed):
    found = dict(re.findall(r"(\w+) +test loss ([\d.]+)", printed("trainer")))
    assert list(found) == ["single", "ddp", "zero2", "zero3"]
    losses = [float(loss) for loss in found.values()]
    assert max(losses) - min(losses) < 1e-3


def test_a_run_goes_on_with_another_number_of_ranks(printed):
    shown = printed("checkpoint")
    assert "'__0_0.distcp', '__1_0.distcp'" in shown
    straight, resumed = (float(loss) for loss in re.findall(r"test loss ([\d.]+)", shown))
    assert abs(straight - resumed) < 1e-3
