"""A comparison made of made-up times: its statistics, CSV, table and picture; published numbers."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest

from multigpu.scaling import (
    Comparison,
    links,
    published_efficiencies,
    published_overlaps,
    published_pipelines,
    published_times,
    read_csv,
    write_csv,
)
from multigpu.scaling.comparison import Candidate, Machine, Row, Settings, published_picture

MACHINE = Machine("AMD, so to speak; 1", 2, ("NVIDIA A", "NVIDIA B"), "Linux", "3.11", "2.13.0")
SETTINGS = Settings("flights", "2026-11-21", 128, steps=20, warmup=5, seed=7, threads=1, load=0.5)


def row(mode, gpus, rounds, *, loss=1.0, **more):
    figures = {"loss": loss, "recall@10": 0.78}
    return Row(Candidate(mode, gpus), "two tin cans", rounds, figures, **more)


SINGLE = row("single", 1, (0.010, 0.030, 0.010), first=0.2, peak_bytes=(100,))
DDP = row("ddp", 2, (0.005, 0.015, 0.020), communication=0.25, traffic=77, peak_bytes=(60, 61))
BOTH = Comparison(SETTINGS, MACHINE, (SINGLE, DDP))


def test_the_speed_up_is_the_median_of_the_rounds_ratios():
    assert BOTH.speed_up(DDP) == pytest.approx(2.0)  # 2, 2 and 0.5; the medians would give 0.67
    assert BOTH.efficiency(DDP) == pytest.approx(1.0)
    assert BOTH.speed_up(SINGLE) == 1.0
    assert DDP.step_seconds == 0.015


def test_without_single_there_is_no_speed_up():
    alone = Comparison(SETTINGS, MACHINE, (DDP,))
    assert alone.single is None
    assert alone.speed_up(DDP) is None
    assert alone.efficiency(DDP) is None
    assert "–" in alone.table().text()
    assert alone.picture().text()


def test_a_row_is_found_by_mode_and_gpus_and_a_missing_one_is_named():
    assert BOTH.row("ddp", 2) is DDP
    with pytest.raises(KeyError, match=r"dp on 4\b.*\bsingle, ddp on 2\b"):
        BOTH.row("dp", 4)


def test_rows_that_trained_something_else_are_called_out():
    assert BOTH.trained_alike
    assert "same loss" in BOTH.agreement
    other = Comparison(SETTINGS, MACHINE, (SINGLE, row("ddp", 2, (0.01,) * 3, loss=1.1)))
    assert not other.trained_alike
    assert other.largest_difference == pytest.approx(0.1)
    assert "10.0%" in other.agreement
    assert "do not compare" in other.agreement


def test_a_comparison_survives_its_csv(tmp_path):
    write_csv(BOTH, tmp_path / "kept.csv")
    back = read_csv(tmp_path / "kept.csv")
    assert back.settings == SETTINGS
    assert back.machine == MACHINE
    for mine, theirs in zip(BOTH.rows, back.rows, strict=True):
        assert theirs.rounds == pytest.approx(mine.rounds)
        assert dataclasses.replace(theirs, rounds=(), figures={}) == dataclasses.replace(
            mine, rounds=(), figures={}
        )
        assert theirs.figures == pytest.approx(mine.figures)


@pytest.mark.parametrize(("content", "said"), [("", "measurements"), ("a,b\n1,2\n", "column")])
def test_another_file_is_refused_by_name(tmp_path, content, said):
    path = tmp_path / "other.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"other\.csv\b.*\b{said}"):
        read_csv(path)


def test_the_table_has_the_metric_beside_the_time():
    assert "recall@10" in BOTH.table().columns
    assert "ran on" not in BOTH.table().columns
    shown = BOTH.table(full=True)
    assert "recall@10" in shown.columns
    cells = dict(zip(shown.columns, shown.rows[1], strict=True))
    assert (cells["step"], cells["speed-up"], cells["efficiency"]) == ("15.0 ms", "2.00", "100%")
    assert (cells["recall@10"], cells["memory"]) == ("0.7800", "61 B")
    assert cells["all-reduce"] == "25%"
    assert cells["spread"] == "5.00–20.0 ms"


def test_the_picture_itself_says_on_what_it_ran():
    picture = BOTH.picture()
    words = [node.text for node in ElementTree.fromstring(picture.svg()).iter() if node.text]
    assert words.count("two tin cans") == 2
    assert any("2 cores" in word for word in words)
    assert any("Published" in word for word in words)
    assert "two tin cans" in picture.text()
    assert "Published" not in BOTH.picture(published=False).text()


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


def test_pipelines_of_equal_layers_are_as_fast_as_their_bubble_says_within_5_percent():
    rows = {row.work: row for row in published_pipelines()}
    unequal = rows.pop("AmoebaNet")
    for row in rows.values():
        assert row.gains == pytest.approx(row.predicted_gains, rel=0.05), row.work
    assert unequal.gains[1] < 0.85 * unequal.predicted_gains[1]
