"""Probes: what no returned value shows, said of the calls that ranks made."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from multigpu.checking.declaration import case, exercise
from multigpu.checking.probes import handles_are_waited_for, spoken
from multigpu.ranks.calls import Call

SENT = Call.of(
    1,
    {
        "id": 0,
        "op": "send",
        "via": "isend",
        "group": "world",
        "members": [0, 1, 2],
        "peer": 2,
        "is_async": True,
        "thread": 1,
        "file": "/course/collectives.py",
        "line": 41,
        "function": "shift",
        "time": 1.0,
    },
)
RECEIVED = replace(SENT, op="recv", via="irecv", end=2.0)


@pytest.fixture
def broken():
    """``broken(call)``: the properties that a run breaks in which rank 1 made this call."""
    shift = exercise("collectives.shift", expects="the numbers of the rank before")
    handles_are_waited_for(shift)

    def broken(call):
        run = SimpleNamespace(calls=lambda case, rank: [call] if rank == 1 else [])
        found = {p.id: p.examine(run, case("3 ranks", world=3)) for p in shift.properties}
        return {name: came[1] for name, came in found.items() if came}

    return broken


def test_messages_that_were_waited_for_are_right(broken):
    assert broken(replace(SENT, end=2.0)) == broken(RECEIVED) == {}


@pytest.mark.parametrize(
    ("call", "mistake"),
    [
        (SENT, "not_waited"),
        (replace(SENT, end=2.0, changed=True), "changed_while_sending"),
        (replace(RECEIVED, changed=True), "changed_while_receiving"),
    ],
)
def test_each_mistake_has_its_name_and_its_line(call, mistake, broken):
    assert broken(call) == {f"shift.{mistake}": "collectives.py:41"}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (SENT, ["1", "isend", "2"]),
        (replace(RECEIVED, peer=None), ["1", "irecv"]),
        (replace(SENT, op="all_reduce", via="all_reduce"), ["1", "all_reduce"]),
    ],
)
def test_a_call_in_words_names_its_rank_its_function_and_its_peer(call, named):
    assert re.findall(r"\d|isend|irecv|all_reduce", spoken(call)) == named
