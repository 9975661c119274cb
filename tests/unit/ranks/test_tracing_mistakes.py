"""Mistakes with messages that a backend answers badly, or not at all."""

import psutil
import pytest
import torch
import torch.distributed as dist

from multigpu.ranks import RankError, run_ranks


def drop_the_handle():
    own, received = torch.ones(3), torch.empty(3)
    dist.isend(own, 1 - dist.get_rank())
    dist.recv(received, 1 - dist.get_rank())
    return received.tolist()


def test_a_send_whose_handle_is_dropped_arrives_and_stays_open():
    results = run_ranks(drop_the_handle, 2, show=False)
    assert results == [[1.0, 1.0, 1.0]] * 2
    assert [call.is_open for call in results.trace.messages(0)] == [True, False]


@pytest.mark.slow
def test_sends_without_handles_arrive_however_many_there_are_and_however_late():
    def program():
        if dist.get_rank() == 0:
            for number in range(1500):
                dist.isend(torch.full((1,), float(number)), 1)
            dist.barrier()
            return None
        dist.barrier()  # all of them are under way
        received = torch.empty(1500)
        for number in range(1500):
            dist.recv(received[number : number + 1], 0)
        return received.tolist()

    assert run_ranks(program, 2, show=False, timeout=20)[1] == [*map(float, range(1500))]


def test_collectives_that_nobody_waits_for_hold_no_tensors():
    def program():
        most = []
        for _ in range(60):
            dist.all_reduce(torch.ones(1 << 20), async_op=True)  # 4 MiB
            dist.barrier()
            most.append(psutil.Process().memory_info().rss)
        return most[-1] - most[10]

    assert max(run_ranks(program, 2, show=False)) < 100 << 20


@pytest.mark.parametrize("peer", [2, -1])
def test_a_rank_that_the_group_does_not_have_is_an_error(peer):
    with pytest.raises(RankError, match=rf"no rank {peer}\b.*\b2\b") as caught:
        run_ranks(lambda: dist.recv(torch.empty(1), peer), 2, show=False)
    assert caught.value.kind == "exception"
