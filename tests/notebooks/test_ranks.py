"""The notebook of lessons 4 and 5 shows what its text says."""

import re

import pytest

from .conftest import links

NOTEBOOK = "ranks"
W = 4 * 6_090


def test_sending_first_is_a_deadlock_of_all_ranks(printed):
    assert "send" in printed("hang")
    assert all(
        f"rank {rank}" in printed("hang") or "0, 1 and 2" in printed("hang") for rank in (0, 1, 2)
    )


def test_after_the_broadcast_all_ranks_hold_what_rank_0_held(printed):
    rows = re.findall(r"was (\S+), is (\S+)", printed("broadcast"))
    assert len({before for before, _ in rows}) == 3
    assert {after for _, after in rows} == {rows[0][0]}


@pytest.mark.parametrize(("cell", "steps"), [("film-4", 6), ("film-3", 4)])
def test_the_film_of_the_ring_has_all_its_steps_and_needs_no_script(cells, printed, cell, steps):
    names = re.findall(r"^(start|(?:add|copy) \d)$", printed(cell), re.MULTILINE)
    half = steps // 2
    expected = [
        "start",
        *(f"add {i + 1}" for i in range(half)),
        *(f"copy {i + 1}" for i in range(half)),
    ]
    assert names == expected
    (html,) = (o.data["text/html"] for o in cells[cell].outputs if "data" in o)
    assert html.count('type="radio"') == steps + 1
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


def test_each_rank_of_the_ring_sends_one_and_a_half_times_the_gradient(printed):
    sent = re.findall(r"rank \d sent ([\d,]+) bytes, ([\d.]+) W", printed("gradient"))
    assert len(sent) == 4
    assert sum(int(count.replace(",", "")) for count, _ in sent) == 2 * 3 * W
    assert {share for _, share in sent} == {"1.50"}
    assert set(links(printed("gradient"))) == {
        (f"rank {r}", f"rank {(r + 1) % 4}") for r in range(4)
    }


def test_the_servers_link_carries_two_n_w(printed):
    for rank in (1, 2, 3):
        assert f"rank {rank} ──▶ rank 0    23.8 KiB" in printed("server")
        assert f"rank 0 ──▶ rank {rank}    23.8 KiB" in printed("server")


def test_server_ring_and_one_process_train_the_same_weights(printed):
    assert float(re.search(r"moved\D+(\S+)", printed("proof"))[1]) > 0.01
    gaps = re.findall(r"(\w+): the same weights on every rank within (\S+)", printed("proof"))
    assert [way for way, _ in gaps] == ["server", "ring"]
    assert all(float(gap) <= 1e-4 for _, gap in gaps)  # the cell itself compares


def test_the_counted_bytes_are_those_of_the_formulas(printed):
    rows = re.findall(
        r"^ +(\d) +([\d.]+) W +([\d.]+) W +([\d.]+) W +([\d.]+) W$", printed("count"), re.M
    )
    assert [row[0] for row in rows] == ["2", "3", "4"]
    for n, *shares in [[float(number) for number in row] for row in rows]:
        assert shares == pytest.approx([2 * n, 2 * (n - 1), 2 * n, 4 * (n - 1) / n], abs=0.01)
