"""The notebook on measuring shows what its text says.  How fast it was is not asserted."""

import re

import pytest

NOTEBOOK = "scaling"
DRAWN = {"tiny": 3, "large": 2, "own": 2}  # bars


def test_the_machine_is_named_with_cores_and_versions(printed):
    for part in (r"\d cores?\b", r"Python 3\.\d", r"torch \d"):
        assert re.search(part, printed("machine"))


def test_the_first_step_takes_longest(printed):
    times = re.search(r"first step ([\d.]+) ms, later ([\d.]+) ms", printed("first"))
    assert float(times[1]) > float(times[2])


def test_the_spread_has_its_median_in_it(printed):
    low, high, middle = map(
        float,
        re.search(r"from ([\d.]+) to ([\d.]+) ms, median ([\d.]+) ms", printed("spread")).groups(),
    )
    assert low <= middle <= high


@pytest.mark.parametrize(("cell", "bars"), DRAWN.items())
def test_figures_say_on_what_they_ran(cells, printed, cell, bars):
    drawings = [o.data["text/html"] for o in cells[cell].outputs if "data" in o]
    assert any("<svg" in drawing for drawing in drawings)
    shown = printed(cell)
    ran_on = re.findall(r"^ +(?:.*CPU.*cores?\)|\d × .*|\d gloo .*)$", shown, re.MULTILINE)
    assert len(ran_on) == bars, shown


def test_221_parameters_are_slower_on_two_gpus(printed):
    speed_ups = re.findall(r"([\d.]+) ×", printed("tiny"))
    assert len(speed_ups) == 2
    assert all(float(each) < 1 for each in speed_ups)


def test_the_table_has_the_metric_beside_the_time(printed):
    for name in ("step", "speed-up", "accuracy", "memory", "all-reduce"):
        assert name in printed("table")


def test_all_modes_have_learnt_the_same(printed):
    losses = dict(re.findall(r"(tiny|large) .*loss ([\d.]+)", printed("same")))
    assert losses.keys() == {"tiny", "large"}
    gaps = re.findall(r"differ by (\S+) of", printed("same"))
    assert len(gaps) == 2
    assert all(float(gap) < 1e-3 for gap in gaps)


def test_the_sweep_has_a_line_for_each_width(printed):
    assert re.findall(r"width +(\d+): .*speed-up\D+\d", printed("sweep")) == ["16", "256", "1024"]


def test_both_batches_are_measured_and_their_loss_is_shown(printed):
    lines = re.findall(r"batch (\d+): +[\d,]+ rows a second, .*, loss after", printed("batch"))
    assert lines == ["128", "512"]


def test_more_gpus_have_a_larger_share_of_communication(printed):
    shares = re.findall(r"2 GPUs: +(\d+)% +8 GPUs: +(\d+)%", printed("links"))
    assert len(shares) == 8
    assert all(int(two) < int(eight) for two, eight in shares)


def test_the_formula_stands_beside_the_measured_step(printed):
    assert "1,488,936 bytes" in printed("formula")
    assert re.search(r"predicted [\d.]+ ms\D*measured [\d.]+ ms", printed("formula"))


def test_published_numbers_stand_with_their_remark(printed):
    assert "like for like" in printed("published")
    assert "XLNet-MLM: dp" in printed("published")


def test_a_comparison_is_read_back_as_it_was(printed):
    assert "work='width 128'" in printed("keep")
    assert re.search(r"\b2 rows\D*[\d.]+$", printed("keep").strip())
