"""Pictures of ranks: time with waiting and overlap, values before and after, tables."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from multigpu.pictures import Step, Table, holdings, palette, steps, timeline

SVG = "{http://www.w3.org/2000/svg}"


def nodes(picture, tag):
    return list(ElementTree.fromstring(picture.svg()).iter(f"{SVG}{tag}"))


def texts(picture):
    return [node.text for node in nodes(picture, "text")]


def fills(picture):
    return [node.get("fill") for node in nodes(picture, "rect")]


WAITS = [
    ("rank 0", "all_reduce waits", 0.0, 0.6, "waiting"),
    ("rank 0", "all_reduce", 0.6, 1.0, "communication"),
    ("rank 1", "forward", 0.0, 0.6, "compute"),
    ("rank 1", "all_reduce", 0.6, 1.0, "communication"),
]
OVERLAP = [
    ("rank 0", "backward", 0.0, 1.0, "compute"),
    ("rank 0", "first", 0.2, 0.7, "communication"),
    ("rank 0", "second", 0.4, 0.9, "communication"),
    ("rank 0", "third", 0.7, 1.0, "communication"),
]


def test_waiting_is_a_thin_line_and_has_its_entry_in_the_legend():
    picture = timeline(WAITS)
    assert "waiting" in texts(picture)
    thin = [n for n in nodes(picture, "line") if n.get("stroke") == palette.color(0)]
    assert "2.5" in {node.get("stroke-width") for node in thin}
    assert "──" in picture.text()
    assert "waiting" in picture.text()
    assert "waiting" not in timeline(WAITS[2:]).text()


def test_what_happens_at_the_same_time_is_drawn_in_tracks():
    first, second, third, axis = timeline(OVERLAP).text().splitlines()[2:]
    assert "█" in first
    assert "▒" not in first
    assert "▒" in second
    assert "▒" in third
    assert re.search(r"\b0\D*1\.00 s\b", axis)
    assert timeline(OVERLAP).height > timeline(OVERLAP[:1]).height


def test_neighbors_in_time_share_a_track():
    assert timeline(WAITS).height == timeline(WAITS[1:3]).height


def test_waiting_and_what_it_was_for_share_a_track():
    compute = ("rank 0", "backward", 0.0, 0.5, "compute")
    waiting = ("rank 0", "all_reduce waits", 0.4, 0.6, "waiting")
    talking = ("rank 0", "all_reduce", 0.6, 1.0, "communication")
    first, second = timeline([compute, waiting, talking]).text().splitlines()[2:4]
    assert "▒" not in first
    assert "─▒" in second


def test_more_than_fits_is_drawn_as_one_bar_with_its_number():
    crowd = [("rank 0", "all_reduce", 0.1 * i, 2.0, "communication") for i in range(10)]
    picture = timeline(crowd)
    assert "7 × all_reduce" in texts(picture)
    assert texts(picture).count("all_reduce") == 3
    assert len(picture.text().splitlines()) == 2 + 4 + 1


def test_a_picture_of_very_many_spans_stays_small():
    many = [
        ("rank 0", "all_reduce", i * 0.001, i * 0.001 + 0.0009, "communication")
        for i in range(5000)
    ]
    many += [("rank 0", "backward", 10.0, 12.0, "compute")]
    picture = timeline(many)
    assert len(picture.svg()) < 20_000
    assert "5000 × all_reduce" in texts(picture)
    assert "backward" in texts(picture)


def test_lanes_can_be_named_so_that_an_idle_one_is_seen():
    rows = timeline(WAITS[2:], ["rank 0", "rank 1", "rank 2"]).text().splitlines()[2:5]
    assert [row.split()[0] + row.split()[1] for row in rows] == ["rank0", "rank1", "rank2"]
    assert set(rows[2].split()[2]) == {"·"}


def test_a_sum_has_the_colors_of_all_whose_values_are_in_it():
    picture = holdings([[0], [1], [2]], [[{0, 2}], [1], [None]])
    assert "0+2" in texts(picture)
    assert fills(picture).count(palette.color(0)) == 3  # chip, before, sum
    assert fills(picture).count(palette.color(1)) == 3  # chip, before, after
    after = picture.description.partition("After")[2]
    assert re.search(r"rank 0\D*0\+2\b", after)
    assert re.search(r"rank 2\D*nothing", after)


def test_values_can_have_names():
    picture = holdings([[("w", 0)], []], [[("w", 0)], [("w", 0)]], title="broadcast")
    assert texts(picture).count("w") == 3
    assert "before  [w]     -" in picture.text()
    assert "after   [w]     [w]" in picture.text()


def test_before_and_after_speak_of_the_same_ranks():
    with pytest.raises(ValueError, match=r"before\D*2 ranks\b.*after\D*3\b"):
        holdings([[0], [1]], [[0], [1], [2]])


@pytest.mark.parametrize("value", ["rank 0", 1.5, object()])
def test_a_value_must_say_whose_it_is(value):
    with pytest.raises(ValueError, match=re.escape(repr(value))):
        holdings([[value]], [[0]])


def test_a_movement_without_a_sender_says_what_each_rank_brings():
    step = Step("all_reduce", work={"rank 0": "12 B", "rank 1": "12 B"}, note="every rank brings")
    picture = steps([step])
    assert "every rank brings" in texts(picture)
    assert not any("nothing" in words for words in texts(picture))
    assert "compute" not in texts(picture)
    assert not nodes(picture, "path")  # no arrow
    assert "every rank brings" in picture.text()
    assert "works" not in picture.description


def test_a_table_is_html_in_a_notebook_and_letters_in_a_terminal():
    table = Table("T", ("call", "took"), (("<send>", "1 ms"),), numbers=frozenset({"took"}))
    assert table._repr_html_() == table.html()
    root = ElementTree.fromstring(table.html())
    assert [cell.text for cell in root.iter("td")] == ["<send>", "1 ms"]
    assert str(table).splitlines() == ["T", "", "call    took", "──────  ────", "<send>  1 ms"]
