"""A device has one color, and everything written on it or beside it can be read."""

import itertools

import pytest

from multigpu.pictures import palette


def test_a_gpu_and_a_rank_of_the_same_number_share_their_color():
    for name in ("cuda:2", "GPU 2", "rank 2", "cuda:2, peak"):
        assert palette.color_of(name) == palette.color(2)


def test_the_cpu_is_gray_and_no_gpu_is():
    assert palette.color_of("cpu") == palette.color_of("host") == palette.HOST
    assert palette.HOST not in palette.COLORS


def test_seven_devices_have_seven_colors():
    assert len({palette.color(i) for i in range(7)}) == 7


@pytest.mark.parametrize("fill", [*palette.COLORS, palette.HOST])
def test_names_on_a_color_can_be_read(fill):
    assert palette.contrast(palette.ink_on(fill), fill) >= 4.5


@pytest.mark.parametrize(
    ("sheet", "ground", "voice"),
    [*itertools.product((palette.LIGHT, palette.DARK), ("paper", "band"), ("ink", "muted"))],
)
def test_text_can_be_read_on_light_and_on_dark_paper(sheet, ground, voice):
    assert palette.contrast(sheet[voice], sheet[ground]) >= 4.5


def test_contrast_is_the_one_of_wcag():
    assert palette.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert palette.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
