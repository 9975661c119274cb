"""The notebook on measuring shows what its text says.  How fast it was is not asserted."""

import re

import pytest

NOTEBOOK = "scaling"
DRAWN = {"tiny": 3, "large": 2, "own": 2}  # bars


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


def test_all_modes_have_learnt_the_same(printed):
    losses = dict(re.findall(r"(tiny|large) .*loss ([\d.]+)", printed("same")))
    assert losses.keys() == {"tiny", "large"}
    gaps = re.findall(r"difference of the losses: (\S+)", printed("same"))
    assert len(gaps) == 2
    assert all(float(gap) < 1e-3 for gap in gaps)


def test_more_gpus_have_a_larger_share_of_communication(printed):
    shares = re.findall(r"2 GPUs: +(\d+)% +8 GPUs: +(\d+)%", printed("links"))
    assert len(shares) == 8
    assert all(int(two) < int(eight) for two, eight in shares)


def test_the_formula_stands_beside_the_measured_step(printed):
    assert "1,488,936 bytes" in printed("formula")
    assert re.search(r"predicted [\d.]+ ms\D*measured [\d.]+ ms", printed("formula"))
