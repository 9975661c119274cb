"""The published numbers: each has a source, and the computed speed-ups are those of the figures."""

import pytest

from multigpu.scaling import (
    links,
    published_efficiencies,
    published_overlaps,
    published_pipelines,
    published_times,
)
from multigpu.scaling.comparison import published_picture

SPEED_UPS = {  # two decimals
    ("Transformers4Rec", "GPT-2"): (1.21, 1.49),
    ("Transformers4Rec", "BERT"): (1.20, 1.47),
    ("Transformers4Rec", "XLNet-PLM"): (1.36, 1.66),
    ("Transformers4Rec", "XLNet-MLM"): (0.80, 0.89),
    ("Transformers4Rec", "XLNet-all"): (1.21, 1.36),
    ("Hugging Face Transformers", "GPT-2, NVLink"): (1.0, 1.09),
    ("Hugging Face Transformers", "GPT-2, no NVLink"): (1.0, 0.84),
}


def test_speed_ups_are_computed_from_the_printed_seconds():
    found = {
        (row.suite, row.work): (round(row.speed_up("dp"), 2), round(row.speed_up("ddp"), 2))
        for row in published_times()
    }
    assert found == SPEED_UPS


def test_every_number_has_a_source_that_can_be_looked_up():
    kinds = published_times(), published_efficiencies(), published_overlaps(), published_pipelines()
    for rows in kinds:
        assert rows
        assert all(row.source and row.url.startswith("https://") for row in rows)


def test_what_is_not_like_for_like_is_said_beside_it():
    unlike = [row for row in published_times() if not row.like_for_like]
    drawn = " ".join(published_picture().text().split())
    assert unlike
    for row in unlike:
        assert row.suite in drawn
        assert row.remark
        assert row.remark in drawn


def test_links_go_from_slow_to_fast():
    speeds = [link.bytes_per_second for link in links()]
    assert speeds == sorted(speeds)
    assert {link.name: link.bytes_per_second for link in links()}["NVLink, H100"] == 450e9


@pytest.mark.parametrize("row", published_efficiencies(), ids=lambda row: f"{row.work} {row.gpus}")
def test_an_efficiency_is_a_share(row):
    assert 0 < row.efficiency < 1


def test_pipelines_of_equal_layers_are_as_fast_as_their_bubble_says_within_5_percent():
    rows = {row.work: row for row in published_pipelines()}
    unequal = rows.pop("AmoebaNet")
    for row in rows.values():
        assert row.gains == pytest.approx(row.predicted_gains, rel=0.05), row.work
    assert unequal.gains[1] < 0.85 * unequal.predicted_gains[1]
