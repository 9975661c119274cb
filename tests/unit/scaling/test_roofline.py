"""The roofline: what operators do is counted, and predicted seconds follow from it."""

import time

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from multigpu.ranks import run_ranks
from multigpu.scaling.roofline import (
    Operation,
    Roofline,
    operations,
    seconds_of_each,
)
from multigpu.training.models import SmallCNN, SmallGPT

COMPUTES = Operation("aten.mm", flops=2000, bytes=100)
MOVES = Operation("aten.add", flops=0, bytes=600)
HERE = Roofline(flops_per_second=1000, bytes_per_second=100, start_seconds=0.5)


def training_step(model, rows, targets):
    def step():
        model.zero_grad()
        F.cross_entropy(model(rows).flatten(0, -2), targets.flatten()).backward()

    return step


def cnn_step():
    return training_step(SmallCNN(), torch.randn(3, 1, 8, 8), torch.randint(0, 10, (3,)))


def gpt_step(rows=3, length=12, **sizes):
    numbers = torch.randint(0, 256, (rows, length))
    return training_step(SmallGPT(block=length, **sizes), numbers, numbers)


def test_an_operator_takes_as_long_as_the_slower_of_computing_and_moving():
    assert HERE.seconds([COMPUTES]) == 2
    assert HERE.seconds([MOVES]) == 6
    assert HERE.seconds([Operation("aten.relu", 0, 1)]) == 0.5
    assert HERE.seconds([COMPUTES, MOVES, MOVES]) == 14
    assert HERE.seconds([]) == 0


def test_a_fitted_roofline_predicts_what_it_was_fitted_on_and_keeps_the_rest():
    fitted = HERE.fitted([COMPUTES, MOVES, MOVES], 8.0)
    assert fitted.seconds([COMPUTES, MOVES, MOVES]) == pytest.approx(8)
    assert fitted.bytes_per_second == pytest.approx(200)
    assert fitted.flops_per_second == 1000


def test_a_time_that_arithmetic_alone_exceeds_is_refused():
    with pytest.raises(ValueError, match=r"0\.1 s is less than .* 2 s"):
        HERE.fitted([COMPUTES], 0.1)


def test_flops_are_those_of_pytorchs_counter():
    step = cnn_step()
    with FlopCounterMode(display=False) as counter:
        step()
    assert sum(each.flops for each in operations(step)) == counter.get_total_flops() > 0


def test_attention_counts_on_the_cpu_too():
    rows, length, width, depth = 3, 12, 16, 2
    step = gpt_step(rows, length, width=width, depth=depth, heads=2)
    with FlopCounterMode(display=False) as counter:
        step()
    product = 2 * rows * length * length * width
    counted = sum(each.flops for each in operations(step))
    # Two products in forward, and five in backward, which computes the scores again.
    assert counted - counter.get_total_flops() == 7 * product * depth


def test_a_matrix_product_reads_both_matrices_and_writes_one():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    (only,) = operations(lambda: a @ b)
    assert only.flops == 2 * 3 * 5 * 7
    assert only.bytes == 4 * (15 + 35 + 21)


def test_bytes_count_the_type_and_what_is_written_in_place():
    half, whole = torch.ones(10, dtype=torch.bfloat16), torch.ones(10)
    assert [each.bytes for each in operations(lambda: half + 1)] == [40]
    assert [each.bytes for each in operations(lambda: whole.add_(whole))] == [120]
    assert [each.bytes for each in operations(lambda: torch._foreach_add_([whole, whole], 1))] == [
        160
    ]
    assert [each.bytes for each in operations(lambda: torch.neg(half, out=half))] == [60]


def test_views_and_unwritten_memory_are_not_operations():
    x = torch.ones(4, 6)
    assert operations(lambda: x.view(6, 4).t()[1:].unsqueeze(0).detach()) == []
    assert operations(lambda: torch.empty(100)) == []


def test_backward_and_the_optimizer_are_counted():
    layer = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    rows = torch.ones(5, 4)

    def step():
        layer(rows).sum().backward()
        optimizer.step()

    names = [each.name for each in operations(step)]
    assert names.count("aten.mm") == 1  # rows need no gradient
    assert sum(each.flops for each in operations(step)) == 2 * 2 * 5 * 4 * 8
    assert any("add_" in name for name in names)


def test_ranks_begin_each_timed_call_together(monkeypatch):
    def timed():
        rank, begun = dist.get_rank(), []

        def step():
            begun.append(time.monotonic())
            time.sleep(0.05 * rank)

        return seconds_of_each(step, calls=3, warmup=2), begun

    ranks = run_ranks(timed, 2, show=False)
    for (seconds, begun), least in zip(ranks, (0, 0.05), strict=True):
        assert (len(seconds), len(begun)) == (3, 5)
        assert min(seconds) >= least
    (_, first), (_, second) = ranks
    assert first[-1] > second[-2] + 0.05  # rank 0 has waited for rank 1
    monkeypatch.setenv("MULTIGPU_TIMES", "rough")
    assert [len(seconds) for seconds, _ in run_ranks(timed, 2, show=False)] == [1, 1]


@pytest.mark.gpu
def test_a_gpu_is_measured():
    here = Roofline.measure("cuda", torch.bfloat16)
    assert here.flops_per_second > 1e12
    assert here.bytes_per_second > 1e11
