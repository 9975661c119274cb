"""The trace: what the frames add up to, bytes, and the figures."""

import re
import xml.etree.ElementTree as ElementTree

from said import numbers_in

from multigpu.ranks import state

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture.svg()).iter(f"{SVG}text")]


def spans(picture):
    """`(lane, op, kind, duration)` of what a timeline describes."""
    return re.findall(r"(rank \d): (\w+)[^(]*\((\w+)\), (\S+ \w+)", picture.description)


def test_a_call_has_its_times_from_start_to_end(play):
    run = play(2)
    number = run.start(1, "all_reduce", numel=5, via="DistributedDataParallel")
    run.wait(1, number)
    run.say(1, phase="completed", id=number)
    run.done(1, number, changed=True)
    (call,) = run.watch.trace.of(1)
    assert (call.rank, call.op, call.via) == (1, "all_reduce", "DistributedDataParallel")
    assert (call.bytes, call.shapes, call.members) == (20, ((5,),), (0, 1))
    assert call.time < call.waited < call.completed < call.end
    assert call.changed
    assert call.is_async
    assert not call.is_open
    assert call.place == "train.py:10"


def test_of_a_rank_that_communicates_for_long_the_newest_calls_are_kept(play, monkeypatch):
    monkeypatch.setattr(state, "KEPT", 10)
    run = play(1)
    late = run.start(0, "all_reduce", line=5)
    for _ in range(100):
        run.all("barrier")
        run.say(0, phase="span", label="forward", start=run.now, end=run.now, thread=1)
    run.done(0, late)
    trace = run.watch.trace
    assert [call.id for call in trace.calls] == list(range(91, 101))
    assert len(trace.spans) == 10
    run.returned(0)
    assert run.watch.final() is None  # the first call has its end, although no trace shows it


def test_bytes_of_messages_and_of_calls_with_a_root(play):
    run = play(3)
    run.start(0, "send", peer=1, numel=10)
    run.start(1, "recv", peer=0, numel=10)
    run.all("broadcast", root=2, numel=100)
    run.all("reduce", root=2, numel=1000)
    run.all("all_reduce", numel=7)
    trace = run.watch.trace
    assert [trace.sent_bytes(rank) for rank in run.world] == [4040, 4000, 800]
    assert [trace.received_bytes(rank) for rank in run.world] == [400, 440, 8000]


def test_a_part_has_what_began_in_it(play):
    run = play(2)
    run.all("all_reduce")
    start = run.now
    run.all("broadcast")
    end = run.now + 1
    run.say(1, phase="span", label="backward", start=end - 0.5, end=end + 2, thread=1)
    run.say(1, phase="span", label="optimizer", start=end, end=end + 2, thread=1)
    part = run.watch.trace.since(start, until=end)
    assert [call.op for call in part.calls] == ["broadcast", "broadcast"]
    assert [span.label for span in part.spans] == ["backward"]
    assert part.world_size == 2


def test_a_timeline_says_who_was_waited_for_and_which_bytes_then_moved(play):
    run = play(2)
    first = run.call(0, "all_reduce", numel=10)
    run.now += 0.09
    second = run.call(1, "all_reduce", numel=10)
    run.now += 0.01
    run.done(0, first)
    run.done(1, second)
    parts = [
        (group.get("data-lane"), group.get("data-of"), group[0].text)
        for group in ElementTree.fromstring(run.watch.trace.timeline().svg()).iter(f"{SVG}g")
        if group.get("data-lane")
    ]
    assert [lane for lane, *_ in parts] == ["rank 0", "rank 0", "rank 1"]
    assert len({of for _, of, _ in parts}) == 1  # one all-reduce
    waits, moves, other = (said for *_, said in parts)
    assert all(part in waits for part in (" 0 s", "90.2 ms", "rank 1", "40 B", "float32"))
    assert all(part in moves for part in ("40 B", "float32", "sum", "0, 1", "train.py"))
    assert "rank 1" not in moves
    assert "rank 0" not in other
    assert other.count("rank 1") == 1  # its lane


def test_the_timeline_shows_a_call_that_never_ended_as_waiting(play):
    run = play(2)
    run.call(0, "recv", peer=1)
    run.say(1, phase="span", label="sleep", start=run.now, end=run.now + 1.0, thread=1)
    slept, waits = spans(run.watch.trace.timeline())
    assert slept[:3] == ("rank 1", "sleep", "compute")
    assert waits == ("rank 0", "recv", "waiting", "1.08 s")


def test_the_timeline_of_a_message_begins_when_both_sides_are_there(play):
    run = play(2)
    send = run.call(0, "send", peer=1)
    run.now += 0.05
    receive = run.call(1, "recv", peer=0)
    run.done(0, send)
    run.done(1, receive)
    said = spans(run.watch.trace.timeline())
    assert ("rank 0", "send", "waiting", "50.2 ms") in said
    assert ("rank 1", "recv", "waiting") not in [span[:3] for span in said]


def test_the_traffic_draws_arrows_only_where_somebody_is_the_sender(play):
    run = play(3)
    run.start(0, "send", peer=1, numel=10)
    run.start(1, "recv", peer=0, numel=10)
    run.all("gather", root=1, numel=100)
    run.all("all_reduce", numel=7)
    run.all("all_reduce", numel=7)
    run.all("barrier", numel=0)
    picture = run.watch.trace.traffic()
    said = texts(picture)
    arrows = list(ElementTree.fromstring(picture.svg()).iter(f"{SVG}path"))
    assert len(arrows) == 3  # one message, two ranks that gather to rank 1
    assert said.index("messages") < said.index("gather") < said.index("all_reduce")
    assert said.count("2 × 28 B") == 3
    assert said.count("once") == 3
    message = picture.description.split(". ")[0]
    assert numbers_in(message) == [0, 1, 40, 1]  # from rank 0 to rank 1, 40 B, one copy
    assert "40 B" in message


def test_the_table_has_a_row_for_every_call(play):
    run = play(2)
    run.all("all_reduce", line=41)
    run.call(0, "send", peer=1, via="isend")
    lines = run.watch.trace.table().text().splitlines()[4:]
    assert len(lines) == 3
    assert all(part in lines[0] for part in ("all_reduce", "12 B", "float32", "sum", "train.py:41"))
    assert "send (isend)" in lines[2]
    assert "to rank 1" in lines[2]
    assert "never ended" in lines[2]
    assert len(run.watch.trace.table(1).rows) == 1
