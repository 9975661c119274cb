"""Calls that meet and do not fit, and runs that end with something left over."""

import re

import pytest
from said import numbers_in


def disagree(play, *, odd=1, **details):
    """Three ranks in one collective, of which rank `odd` calls another one."""
    run = play(3)
    run.all("barrier")
    usual = {"op": "all_reduce", "line": 5}
    for rank in run.world:
        run.call(rank, **(usual | details if rank == odd else usual))
    return run.look()


@pytest.mark.parametrize(
    ("details", "says"),
    [
        ({"op": "broadcast", "root": 0, "reduce": None}, ("broadcast", "3 float32", "rank 0")),
        ({"reduce": "max"}, ("all_reduce", "max", "3 float32")),
        ({"numel": 4}, ("all_reduce", "sum", "4 float32")),
        ({"dtype": "float64"}, ("all_reduce", "sum", "3 float64")),
    ],
    ids=["operation", "reduction", "size", "dtype"],
)
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_odd_one_out_is_named(play, odd, details, says):
    found = disagree(play, odd=odd, **{"line": 6, **details})
    others = [rank for rank in range(3) if rank != odd]
    assert (found.kind, found.ranks) == ("mismatch", (odd,))
    headline, usual, other = found.message.splitlines()
    assert numbers_in(headline) == [2]  # the 2nd collective
    assert numbers_in(usual) == [*others, 3, 5]
    assert all(part in usual for part in ("all_reduce", "sum", "3 float32", "train.py:5"))
    assert numbers_in(other)[0] == odd
    assert all(part in other for part in (*says, "train.py:6"))


def test_a_rank_that_is_behind_a_loop_in_which_others_go_on_is_named_with_its_count(play):
    run = play(3)
    for _ in range(2):
        run.all("all_reduce", line=41)
    run.call(1, "barrier", line=50)
    for rank in (0, 2):
        run.call(rank, "all_reduce", line=41)
    found = run.look()
    assert (found.kind, found.ranks) == ("mismatch", (1,))
    # Rank 1 made 2 calls at line 41, rank 0 made 3. If that is a loop, rank 1 left it.
    assert numbers_in(found.usually) == [1, 2, 41, 0, 3, 1]
    parts = ("fewer batches", "drop_last", "join()", "skipped a collective")
    assert all(part in found.usually for part in parts)


def test_calls_of_another_group_on_the_same_line_are_not_counted(play):
    run = play(3)
    run.all("all_reduce", line=5)
    for rank in (0, 1):
        run.call(rank, "all_reduce", line=5, group="1", members=[0, 1])
    run.call(2, "barrier", line=9)
    for rank in (0, 1):
        run.call(rank, "all_reduce", line=5)
    assert numbers_in(run.look().usually)[:5] == [2, 1, 5, 0, 2]


def test_a_rank_that_makes_an_extra_call_has_not_left_a_loop(play):
    run = play(2)
    for _ in range(2):
        run.all("all_reduce", line=41)
        run.all("barrier", line=50)
    run.call(0, "all_reduce", line=41)
    run.call(1, "barrier", line=50)
    assert "order" in run.look().usually


def test_another_root(play):
    run = play(3)
    for rank in run.world:
        run.call(rank, "broadcast", root=rank, numel=2)
    found = run.look()
    assert found.ranks == (0, 1, 2)
    assert found.details["difference"] == "root"
    assert "own rank" in found.usually


def test_groups_of_other_ranks(play):
    run = play(3)
    for rank, wanted in enumerate([(0, 1), (0, 1), (0, 2)]):
        run.call(rank, "new_group", wanted=wanted, numel=0)
    found = run.look()
    assert found.ranks == (2,)
    assert found.details["difference"] == "wanted"
    other = found.message.splitlines()[-1]
    assert numbers_in(other) == [2, 0, 2, 10]  # rank 2: ranks 0 and 2
    assert all(part in other for part in ("new_group", "train.py:10"))
    assert "new_group" in found.usually


def test_a_group_that_only_its_members_make(play):
    run = play(3)
    for rank in (0, 2):
        run.done(rank, run.call(rank, "new_group"))
    run.returned(*run.world)
    found = run.watch.final()
    assert found.ranks == (1,)
    assert "new_group" in found.message


def test_late_members_may_vote(play):
    run = play(3)
    run.call(0, "all_reduce", numel=4)
    run.call(1, "all_reduce", numel=3)
    assert run.look(0.1) is None
    run.call(2, "all_reduce", numel=3)
    assert run.look(0.1).ranks == (0,)


def test_a_crash_inside_the_call_is_put_down_to_the_mismatch(play):
    run = play(2)
    number = run.call(0, "all_reduce", numel=4)
    run.call(1, "all_reduce", numel=3)
    run.fails(0, number, "[enforce fail at algorithm.cc] op.preamble.length <= op.nbytes. 4 vs 3")
    run.watch.ended(1, -6)
    assert run.look().kind == "mismatch"


def test_a_message_of_another_size(play):
    run = play(2)
    run.call(0, "send", peer=1, numel=4, line=3)
    run.call(1, "recv", peer=0, numel=3, line=8)
    found = run.look()
    assert (found.kind, found.ranks) == ("mismatch", (0, 1))
    assert numbers_in(found.message) == [0, 4, 1, 3, 1, 3, 8]
    both = r"sends.*float32.*train\.py:3\b.*receives.*float32.*train\.py:8\b"
    assert re.search(both, found.message)


def test_a_run_that_ends_with_fewer_collectives_on_one_rank(play):
    run = play(3)
    run.all("all_reduce")
    run.start(0, "all_reduce", line=8)
    run.start(2, "all_reduce", line=8)
    run.returned(*run.world)
    found = run.watch.final()
    assert (found.kind, found.ranks) == ("mismatch", (1,))
    assert found.details["difference"] == "count"
    headline, only = found.message.splitlines()
    assert numbers_in(headline) == [1, 1, 0, 2, 2]  # rank 1 made 1, ranks 0 and 2 made 2
    assert numbers_in(only) == [0, 2, 3, 8]
    assert all(part in only for part in ("all_reduce", "sum", "3 float32", "train.py:8"))
    assert numbers_in(found.usually) == [0, 2]
    assert "waited" in found.usually


@pytest.mark.parametrize(("op", "says"), [("send", "never received"), ("recv", "sent nothing")])
def test_a_run_that_ends_with_a_message_left_over(play, op, says):
    run = play(3)
    run.start(0, op, peer=1, via=f"i{op}", line=9)
    run.returned(*run.world)
    found = run.watch.final()
    assert (found.kind, found.ranks) == ("mismatch", (0, 1))
    assert says in found.message
    assert "train.py:9" in found.message


# What fits.


def test_the_same_collective_from_other_lines_and_in_other_shapes(play):
    run = play(2)
    numbers = [
        run.call(0, "all_reduce", numel=6, shapes=[[6]], line=5),
        run.call(1, "all_reduce", numel=6, shapes=[[2, 3]], line=9, via="DistributedDataParallel"),
    ]
    for rank in run.world:
        run.done(rank, numbers[rank])
    run.returned(*run.world)
    assert run.look() is None
    assert run.watch.final() is None


def test_parts_of_all_to_all_and_barriers_have_no_common_size(play):
    run = play(2)
    for rank in run.world:
        run.done(rank, run.call(rank, "all_to_all", numel=3 + rank))
    for rank in run.world:
        run.done(rank, run.call(rank, "barrier", numel=rank, dtype=str(rank)))
    run.returned(*run.world)
    assert run.look() is None
    assert run.watch.final() is None


def test_messages_pair_by_sender_tag_and_group_in_order(play):
    run = play(3)
    sends = [
        run.start(0, "send", peer=2, numel=1),
        run.start(0, "send", peer=2, numel=2),
        run.start(0, "send", peer=2, numel=3, tag=1),
        run.start(1, "send", peer=2, numel=4),
        run.start(0, "send", peer=2, numel=5, group="1"),
    ]
    receives = [
        run.start(2, "recv", peer=1, numel=4),
        run.start(2, "recv", peer=0, numel=5, group="1"),
        run.start(2, "recv", peer=0, numel=3, tag=1),
        run.start(2, "recv", peer=0, numel=1),
        run.start(2, "recv", peer=0, numel=2),
    ]
    for number in receives:
        run.done(2, number)
    for rank, number in zip((0, 0, 0, 1, 0), sends, strict=True):
        run.done(rank, number)
    run.returned(*run.world)
    assert run.look() is None
    assert run.watch.final() is None
