"""Deadlocks: each kind is proven, explained and pinned on the right rank; what only looks like one
is left alone."""

import pytest
from said import numbers_in

HELPER = 7  # a thread besides the main one


def test_a_rank_that_leaves_the_loop_early_is_named_with_its_count(play):
    run = play(4)
    for _ in range(4):
        run.all("all_reduce", line=41)
    for rank in (0, 1, 3):
        run.call(rank, "all_reduce", line=41)
    run.returned(2)
    found = run.look()
    assert (found.kind, found.ranks) == ("deadlock", (2,))
    headline, waiting, left = found.message.splitlines()
    assert numbers_in(headline) == [2, 0, 1, 3]
    assert numbers_in(waiting) == [0, 1, 3, 5, 41]  # the 5th, in line 41
    assert all(part in waiting for part in ("wait", "all_reduce", "train.py:41"))
    assert numbers_in(left) == [2, 4]
    assert "all_reduce" in left
    assert all(part in found.usually for part in ("rank 2", "batches"))


def test_it_is_found_between_half_a_second_and_one_and_a_half_after_the_last_word(play):
    for op, root in (("all_reduce", None), ("broadcast", 0)):
        run = play(2)
        run.call(0, op, root=root)
        run.returned(1)
        began = run.now
        assert run.look().kind == "deadlock"
        first = 0.5 if root is None else 1.0  # the data may still be on its way to some
        assert first <= run.now - began <= 1.5


def test_of_two_ranks_both_are_named_because_either_may_be_wrong(play):
    run = play(2)
    run.call(0, "all_reduce")
    run.returned(1)
    found = run.look()
    assert found.ranks == (0, 1)
    last = found.message.splitlines()[-1]
    assert numbers_in(last) == [1]  # and no count
    assert all(part in last for part in ("returned", "all_reduce"))


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("op", ["send", "recv"])
def test_a_ring_in_which_all_do_the_same_first(play, op, step):
    run = play(3)
    for rank in run.world:
        run.call(rank, op, peer=(rank + step) % 3, line=12)
    found = run.look()
    assert found.ranks == (0, 1, 2)
    assert f"{'sends' if op == 'send' else 'receives'} first" in found.usually
    assert found.message.count("train.py:12") == 3


def test_a_message_from_the_wrong_rank(play):
    run = play(3)
    run.call(0, "send", peer=1, line=7)
    run.call(1, "recv", peer=2, line=9)
    run.returned(2)
    found = run.look()
    assert 1 in found.ranks
    assert 0 not in found.ranks
    assert "another rank" in found.usually
    assert [1, 2, 9] in map(numbers_in, found.message.splitlines())


def test_all_send_on_whatever_lines(play):
    run = play(2)
    run.call(0, "send", peer=1, line=9)
    run.call(1, "send", peer=0, line=12)
    assert "a send waits until it is received" in run.look().usually


def test_a_message_with_another_tag(play):
    run = play(2)
    run.call(0, "send", peer=1, tag=3)
    run.call(1, "recv", peer=0, tag=4)
    found = run.look()
    assert found.ranks == (0, 1)
    assert "another tag" in found.usually
    sends, receives = found.message.splitlines()[1:]
    assert "tag 3" in sends
    assert "tag 4" in receives


def test_a_send_that_nobody_receives(play):
    run = play(3)
    run.call(0, "send", peer=1, via="isend", is_async=True)
    run.call(1, "barrier")
    run.call(2, "barrier")
    found = run.look()
    assert {0, 1} <= set(found.ranks)
    (sent,) = (line for line in found.message.splitlines() if "isend" in line)
    assert numbers_in(sent) == [0, 1, 3, 10]
    assert "float32" in sent


def test_groups_used_in_another_order(play):
    run = play(3)
    for rank in (0, 2):
        run.call(rank, "all_reduce", group="1", line=5)
    run.call(1, "all_reduce", group="2", line=6)
    found = run.look()
    assert found.ranks == (1,)
    assert all(word in found.usually for word in ("groups", "order"))
    assert "group '2'" in found.message


def test_a_group_of_some_ranks_is_named_by_its_members(play):
    run = play(4)
    run.call(1, "all_reduce", group="1", members=(1, 3))
    run.call(3, "recv", peer=1)
    run.returned(0, 2)
    found = run.look()
    assert found.ranks == (1, 3)
    (waiting,) = (line for line in found.message.splitlines() if "group" in line)
    assert numbers_in(waiting) == [1, 1, 1, 3, 10]  # its 1st of the group of ranks 1 and 3
    assert "all_reduce" in waiting


def test_a_rank_that_is_still_before_the_collective_is_on_the_side_of_those_who_wait(play):
    """As in DistributedDataParallel, where one rank is done with the broadcast of the buffers."""
    run = play(3)
    run.all("broadcast", root=0, ranks=(0, 2), members=(0, 1, 2))
    run.nth[1, "0"] = 1
    run.call(0, "broadcast", root=0)
    run.done(2, run.call(2, "broadcast", root=0))
    run.call(2, "all_reduce")
    run.returned(1)
    assert run.look().ranks == (1,)


def test_those_who_wait_for_stuck_ranks_are_not_blamed(play):
    run = play(4)
    run.call(0, "recv", peer=1)
    run.call(1, "recv", peer=2)
    run.call(2, "recv", peer=3)
    run.call(3, "recv", peer=2)
    assert run.look().ranks == (2, 3)


def test_the_details_say_what_each_rank_waits_for(play):
    run = play(3)
    run.all("all_reduce")
    run.call(0, "all_reduce", line=31)
    run.call(1, "recv", peer=2)
    run.returned(2)
    details = run.look().details
    first, second, third = details["ranks"]
    assert first["state"] == second["state"] == "waiting"
    assert (first["waits"][0]["op"], first["waits"][0]["nth"]) == ("all_reduce", 1)
    assert first["waits"][0]["place"] == "train.py:31"
    assert second["waits"][0]["peer"] == 2
    assert third["state"] == "returned"


def test_a_main_thread_that_joins_a_blocked_thread_is_blocked(play):
    run = play(2)
    run.call(0, "recv", peer=1, thread=HELPER)
    run.say(0, phase="joining", thread=1, on=HELPER)
    run.returned(1)
    assert run.look().kind == "deadlock"


def test_a_thread_that_sleeps_on_a_lock_or_is_gone_is_blocked(play):
    run = play(2)
    run.all("barrier", thread=HELPER)
    run.call(0, "recv", peer=1)
    run.returned(1)
    assert run.look() is None
    run.threads.blocked |= {(0, HELPER), (1, HELPER)}
    assert run.look().kind == "deadlock"


def test_waiting_for_the_second_of_two_receives_when_only_one_was_sent(play):
    run = play(2)
    run.start(0, "recv", peer=1)
    run.call(0, "recv", peer=1, is_async=True)
    run.call(1, "send", peer=0, is_async=True)
    run.done(1, 2)
    run.returned(1)
    assert run.look().kind == "deadlock"


def kept(run):
    return sum(len(state.calls) for state in run.watch._states)


def test_a_run_of_any_length_fits_into_memory_and_is_judged_alike(play):
    run = play(2)
    most = 0
    for _ in range(200):
        run.all("all_reduce", line=5)
        for rank in run.world:
            run.done(rank, run.call(rank, "send" if rank == 0 else "recv", peer=1 - rank, line=6))
        most = max(most, kept(run))
    assert most < 10  # of 800
    number = run.call(0, "all_reduce", line=5)
    run.returned(1)
    found = run.look()
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))
    waiting, left = found.message.splitlines()[1:]
    assert numbers_in(waiting) == [0, 201, 5]
    assert numbers_in(left) == [1, 200]
    assert "batches" in found.usually
    run.done(0, number)
    assert run.watch.final().kind == "mismatch"


# What must never be called a deadlock.


def test_a_wait_with_a_time_limit(play):
    run = play(2)
    number = run.start(0, "all_reduce")
    run.say(0, phase="wait", id=number, thread=1, limit=2.0)
    run.returned(1)
    assert run.look(10.0) is None
    run.say(0, phase="failed", id=number, text="Operation timed out!")
    run.returned(0)
    assert run.watch.final() is None


@pytest.mark.parametrize(("stirs", "kind"), [(2.0, None), (0.1, "deadlock")])
def test_what_counts_is_when_a_time_limit_ends_and_not_how_long_it_is(play, stirs, kind):
    """The run would be given up 3.2 s after the last progress, which is that of rank 1."""
    run = play(2, timeout=3.2)
    number = run.start(0, "all_reduce")
    run.say(0, phase="wait", id=number, thread=1, limit=4.0)
    assert run.look(stirs) is None
    run.returned(1)
    found = run.look(3.9 - stirs)
    assert (found and found.kind) == kind


def test_ranks_that_compute_or_sleep(play):
    run = play(3)
    run.call(0, "all_reduce")
    run.call(1, "recv", peer=2)
    assert run.look(50.0) is None


def test_a_collective_that_all_have_begun(play):
    run = play(3)
    for rank in run.world:
        run.call(rank, "all_reduce", numel=10**9)
    assert run.look(50.0) is None


def test_an_async_collective_that_a_returned_rank_has_begun(play):
    run = play(3)
    run.start(2, "all_reduce")
    run.returned(2)
    run.call(0, "all_reduce")
    run.call(1, "all_reduce")
    assert run.look(50.0) is None


def test_a_collective_in_flight_that_nobody_waits_for_yet(play):
    """Something may be called when it is over."""
    run = play(2)
    numbers = [run.start(rank, "all_reduce") for rank in run.world]
    for rank in run.world:
        run.call(rank, "recv", peer=1 - rank)
    assert run.look(50.0) is None
    for rank in run.world:
        run.say(rank, phase="completed", id=numbers[rank])
    assert run.look().kind == "deadlock"


def test_a_message_to_a_receive_that_was_started_earlier(play):
    run = play(2)
    run.start(1, "recv", peer=0)
    run.returned(1)
    run.call(0, "send", peer=1)
    assert run.look(50.0) is None


def test_a_message_that_was_received_before_its_sender_noticed(play):
    run = play(2)
    run.call(0, "send", peer=1)
    run.done(1, run.call(1, "recv", peer=0))
    run.returned(1)
    assert run.look(50.0) is None


@pytest.mark.parametrize("sender", [1, 2])
def test_a_receive_from_any_rank(play, sender):
    run = play(3)
    run.call(0, "recv", peer=None)
    run.call(sender, "send", peer=0)
    run.returned(3 - sender)
    assert run.look(50.0) is None


def test_receives_from_any_rank_that_are_all_used_up(play):
    run = play(3)
    number = run.call(0, "recv", peer=None)
    run.done(1, run.call(1, "send", peer=0))
    run.done(0, number, source=1)
    run.call(0, "recv", peer=None)
    run.call(1, "recv", peer=2)
    run.returned(2)
    found = run.look()
    assert found.kind == "deadlock"
    (waiting,) = (line for line in found.message.splitlines() if "any rank" in line)
    assert numbers_in(waiting) == [0, 10]


def test_a_send_after_receives_from_any_rank(play):
    run = play(3)
    number = run.call(0, "recv", peer=None)
    run.done(1, run.call(1, "send", peer=0))
    run.done(0, number, source=1)
    run.call(0, "recv", peer=2)
    run.call(2, "send", peer=0)
    run.returned(1)
    assert run.look(50.0) is None


def test_another_thread_that_communicates_and_is_busy(play):
    run = play(2)
    run.all("barrier", thread=HELPER)
    run.call(0, "recv", peer=1)
    run.call(1, "recv", peer=0)
    assert run.look(50.0) is None


def test_a_lock_that_a_thread_may_open_on_its_way_into_a_call(play):
    run = play(2)
    run.all("barrier", thread=HELPER)
    run.call(0, "recv", peer=1)
    run.call(1, "recv", peer=0)
    run.threads.blocked |= {(0, HELPER), (1, HELPER)}
    run.threads.working.add((1, 1))
    assert run.look(50.0) is None


def test_another_thread_that_has_not_communicated_yet_but_works(play):
    run = play(2)
    run.call(0, "recv", peer=1)
    run.call(1, "recv", peer=0)
    run.threads.working.add((1, HELPER))
    assert run.look(50.0) is None


def test_a_thread_that_is_joined_and_computes(play):
    run = play(2)
    run.call(0, "recv", peer=1)
    run.say(1, phase="joining", thread=1, on=HELPER)
    assert run.look(50.0) is None


def test_a_returned_rank_whose_other_thread_goes_on(play):
    run = play(2)
    run.all("barrier", thread=HELPER)
    run.call(0, "recv", peer=1)
    run.returned(1)
    run.threads.blocked.add((0, HELPER))
    assert run.look(50.0) is None


def test_a_wait_that_ends_after_the_first_thread_saw_the_end(play):
    """Two threads wait for one handle; the second says so late."""
    run = play(2)
    numbers = [run.start(rank, "all_reduce") for rank in run.world]
    for rank in run.world:
        run.wait(rank, numbers[rank], thread=HELPER)
        run.done(rank, numbers[rank])
        run.wait(rank, numbers[rank])
    assert run.look(50.0) is None
