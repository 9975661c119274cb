"""Arrows between devices, read back from their SVG: traffic, steps, a star."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest

from multigpu.pictures import Step, palette, star, steps, traffic

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Copy:
    source: str
    target: str
    bytes: int


FAN = [Copy("cpu", f"cuda:{i}", 100 * (i + 1)) for i in range(4)]


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture.svg()).iter(f"{SVG}text")]


def arrowheads(picture):
    """The color and the x of each arrow's tip."""
    paths = ElementTree.fromstring(picture.svg()).iter(f"{SVG}path")
    return [(path.get("fill"), float(path.get("d")[1:].split()[0])) for path in paths]


def test_copies_on_one_link_are_added():
    picture = traffic([Copy("cuda:0", "cuda:1", 24_000), Copy("cuda:0", "cuda:1", 360)])
    assert "23.8 KiB" in texts(picture)
    assert re.search(r"cuda:0\D*cuda:1\D*24,360 B\b.*2 copies", picture.description)
    assert re.search(r"\b23\.8 KiB\D*2 copies", picture.text())


def test_an_arrow_has_the_senders_color_and_ends_at_the_receiver():
    towards_1, back = arrowheads(
        traffic([Copy("cuda:0", "cuda:1", 8), Copy("cuda:1", "cuda:0", 8)])
    )
    assert towards_1[0] == palette.color(0)
    assert back[0] == palette.color(1)
    assert towards_1[1] > back[1]  # cuda:1 stands right of cuda:0


@pytest.mark.parametrize(
    ("options", "order"), [({}, (2, 9, 10)), ({"devices": ["cuda:9", "cuda:10"]}, (9, 10, 2))]
)
def test_columns_are_the_cpu_and_then_the_devices_by_number_or_in_the_order_given(options, order):
    columns = texts(traffic([Copy(f"cuda:{i}", "cpu", 1) for i in (10, 9, 2)], **options))
    assert columns[1:5] == ["cpu", *(f"cuda:{i}" for i in order)]


def test_names_are_text_and_a_copy_inside_one_device_is_no_traffic():
    picture = traffic([Copy("a&b", "a&b", 8)], devices=["a&b"], title='<b>"bold"</b>')
    assert "a&b" in texts(picture)
    assert "<b>" not in picture.svg()
    assert "nothing" in picture.text()


def test_a_step_shows_its_movements_in_order_with_their_bytes_and_their_work():
    movements = [
        Step("1 split", FAN),
        Step("2 forward", work={"cuda:0": "4 rows", "cuda:1": "3 rows"}),
        Step("3 gather", [Copy("cuda:1", "cuda:0", 120)]),
    ]
    said = texts(steps(movements))
    order = [said.index(name) for name in ("1 split", "2 forward", "3 gather")]
    assert order == sorted(order)
    assert said[order[0] + 1] == "1,000 B"  # all that moved in it
    assert "nothing" in said[order[1] + 1]
    assert said[order[1] + 2 : order[1] + 4] == ["4 rows", "3 rows"]
    assert "120 B" in said


def test_a_movement_without_a_sender_says_what_each_rank_brings():
    step = Step("all_reduce", work={"rank 0": "12 B", "rank 1": "12 B"}, note="every rank brings")
    picture = steps([step])
    assert "every rank brings" in texts(picture)
    assert not any("nothing" in words for words in texts(picture))
    assert "compute" not in texts(picture)
    assert not arrowheads(picture)  # no arrow
    assert "every rank brings" in picture.text()
    assert "works" not in picture.description


SERVED = [
    Copy("rank 2", "rank 0", 100),
    Copy("rank 0", "rank 2", 300),
    Copy("rank 1", "rank 0", 100),
    Copy("rank 1", "rank 0", 20),
]


def test_it_sums_by_link_and_says_what_the_centre_carries():
    picture = star(SERVED, "rank 0", notes={"rank 0": ["server"], "rank 1": ["8 rows"]})
    assert re.search(r"\b520 B\b", picture.svg())
    assert [" ".join(line.split()) for line in picture.lines] == [
        "rank 0 server",
        "rank 1 8 rows",
        "to rank 0",
        "rank 1 ──▶ rank 0 120 B in 2 calls",
        "rank 2 ──▶ rank 0 100 B",
        "from rank 0",
        "rank 0 ──▶ rank 2 300 B",
        "through the link of rank 0: 520 B",
    ]
    assert "8 rows" in picture.svg()
    assert re.search(r"rank 1\D*rank 0\D*120 B\D*2\b", picture.description)


def test_a_copy_that_passes_the_centre_by_is_refused():
    with pytest.raises(ValueError, match=r"rank 1\D*rank 2\b.*rank 0"):
        star([*SERVED, Copy("rank 1", "rank 2", 5)], "rank 0")


def test_a_device_that_moves_nothing_has_a_column_for_its_notes():
    said = star(SERVED, "rank 0", notes={"rank 3": ["no rows"]})
    assert "no rows" in said.svg()
    assert "server" in star([], "rank 0", notes={"rank 0": ["server"]}).svg()
