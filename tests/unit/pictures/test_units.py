"""Bytes and seconds are written the same everywhere."""

import pytest

from multigpu.pictures.units import exact_bytes, human_bytes, human_count, human_seconds


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (0, "0 B"),
        (1234, "1,234 B"),
        (10 * 1024 - 1, "10,239 B"),
        (10 * 1024, "10.0 KiB"),
        (1_258_291, "1.2 MiB"),
        (2**20 - 1, "1.0 MiB"),
        (8 * 2**30, "8.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_bytes_are_exact_below_10_kib_and_rounded_above(count, written):
    assert human_bytes(count) == written


def test_the_exact_form_keeps_every_byte():
    assert exact_bytes(24_360) == "24,360 B (23.8 KiB)"
    assert exact_bytes(640) == "640 B"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0 s"),
        (4.56, "4.56 s"),
        (123.4, "123 s"),
        (0.0123, "12.3 ms"),
        (0.005, "5.00 ms"),
        (0.0001, "100 µs"),
        (0.9999, "1.00 s"),
    ],
)
def test_seconds_are_written_with_three_figures(seconds, written):
    assert human_seconds(seconds) == written


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (999, "999"),
        (1000, "1 k"),
        (78_240_000_000, "78.2 G"),
        (999_700, "1 M"),
        (3.14e23, "3.14e+05 E"),
    ],
)
def test_large_numbers_have_three_figures_and_a_prefix(count, written):
    assert human_count(count) == written


def test_a_unit_follows_the_prefix():
    assert human_count(312e12, "FLOP/s") == "312 TFLOP/s"
    assert human_count(5, "B/s") == "5 B/s"
