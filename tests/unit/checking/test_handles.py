"""Messages under way: which of them a check refuses, and what it says of them."""

import re
from dataclasses import replace

import pytest

from multigpu.checking.comparing import examine_handles, spoken
from multigpu.checking.verdicts import Wrong
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


def wrong(mistake, came, usually, *, where):
    return Wrong(f"shift.{mistake}", expected="", came=came, usually=usually, where=where)


def test_messages_that_were_waited_for_are_right():
    examine_handles([replace(SENT, end=2.0), RECEIVED], wrong)


@pytest.mark.parametrize(
    ("call", "mistake"),
    [
        (SENT, "not_waited"),
        (replace(SENT, end=2.0, changed=True), "changed_while_sending"),
        (replace(RECEIVED, changed=True), "changed_while_receiving"),
    ],
)
def test_each_mistake_has_its_name_and_its_line(call, mistake):
    with pytest.raises(Wrong) as caught:
        examine_handles([call], wrong)
    assert caught.value.message_id == f"shift.{mistake}"
    assert "where: collectives.py:41" in caught.value.message


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
