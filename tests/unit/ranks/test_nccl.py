"""What gloo lets through and NCCL would not."""

import pytest
import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.ranks.nccl import differences


def found(function, world=2, **options):
    results = run_ranks(function, world, show=False, **options)
    return list(differences(results.trace))


def other():
    return 1 - dist.get_rank()


def both_send_first():
    sent = dist.isend(torch.ones(2), other())
    dist.recv(torch.ones(2), other())
    sent.wait()


def one_receives_first():
    calls = [dist.send, dist.recv] if dist.get_rank() else [dist.recv, dist.send]
    for call in calls:
        call(torch.ones(2), other())


def both_at_once():
    operations = [dist.P2POp(dist.isend, torch.ones(2), other())]
    operations.append(dist.P2POp(dist.irecv, torch.ones(2), other()))
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def test_messages_that_cross_are_told_with_both_lines():
    (sentence,) = found(both_send_first)
    assert "ranks 0 and 1" in sentence
    assert sentence.count("test_nccl.py:") == 2


def two_receives_into_one_buffer():
    """As PyTorch's pipelines do to make their connections: no number of it is used."""
    buffer = torch.zeros(1, device="cuda")
    kind, peer = (dist.isend, dist.irecv)[dist.get_rank()], other()
    works = dist.batch_isend_irecv([dist.P2POp(kind, buffer, peer) for _ in range(2)])
    for work in works:
        work.wait()


def test_what_the_tracing_copies_is_no_use_of_it():
    assert not found(two_receives_into_one_buffer, gpus="virtual")


def each_way_in_a_group_of_its_own():
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    rank = dist.get_rank()
    sent = dist.isend(torch.ones(2), other(), group=groups[rank])
    dist.recv(torch.ones(2), other(), group=groups[1 - rank])
    sent.wait()


@pytest.mark.parametrize(
    "function", [one_receives_first, both_at_once, each_way_in_a_group_of_its_own]
)
def test_messages_in_order_and_grouped_ones_are_fine(function):
    assert not found(function)


def adds_before_the_wait(waits):
    total = torch.ones(2, device="cuda")
    work = dist.all_reduce(total, async_op=True)
    if waits:
        work.wait()
    total.view(-1)
    doubled = total + total
    work.wait()
    return doubled.tolist()


def test_a_result_that_is_used_before_the_wait_is_told():
    results = run_ranks(adds_before_the_wait, 2, False, gpus="virtual", show=False)
    assert list(results) == [[2.0, 2.0]] * 2  # what was there before, in every run
    (sentence,) = differences(results.trace)
    assert sentence.startswith("test_nccl.py:")
    assert "all_reduce (test_nccl.py:" in sentence
    results = run_ranks(adds_before_the_wait, 2, True, gpus="virtual", show=False)
    assert list(results) == [[4.0, 4.0]] * 2
    assert not list(differences(results.trace))


def broadcasts_before_the_wait():
    total = torch.ones(2, device="cuda")
    work = dist.all_reduce(total, async_op=True)
    dist.broadcast(total, src=0)
    work.wait()


def test_a_collective_can_take_a_result_too_early_as_well():
    (sentence,) = found(broadcasts_before_the_wait, gpus="virtual")
    assert "all_reduce (test_nccl.py:" in sentence


def reduces_in_chunks():
    total = torch.ones(4, device="cuda")
    works = [dist.all_reduce(chunk, async_op=True) for chunk in total[:2].chunk(2)]
    total[2:] += 1
    for work in works:
        work.wait()
    return total.tolist()


def test_other_data_can_be_used_before_the_wait():
    assert not found(reduces_in_chunks, gpus="virtual")


def two_groups(in_order):
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    order = groups if in_order or dist.get_rank() else groups[::-1]
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in order]
    for work in works:
        work.wait()


def test_groups_in_another_order_are_told():
    results = run_ranks(two_groups, 2, False, show=False)
    (sentence,) = differences(results.trace)
    assert "rank 0 calls all_reduce of one group (test_nccl.py:" in sentence
    assert not list(differences(run_ranks(two_groups, 2, True, show=False).trace))
