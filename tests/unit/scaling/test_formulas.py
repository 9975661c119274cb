"""Formulas of speed, traffic and memory: against numbers worked out by hand, published or held."""

import pytest
import torch
from torch import nn

from multigpu import run_ranks
from multigpu.scaling.formulas import (
    MemoryByUse,
    all_reduce_bytes,
    all_reduce_seconds,
    amdahl,
    communication_share,
    held_by,
    memory_per_gpu,
    step_seconds,
    traffic_per_step,
)


def test_amdahl_has_a_ceiling_of_one_by_the_serial_share():
    assert amdahl(0.0, 8) == 8
    assert amdahl(1.0, 8) == 1
    assert amdahl(0.1, 2) == pytest.approx(1 / 0.55)
    assert amdahl(0.1, 10**9) == pytest.approx(10)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_each_rank_of_a_ring_sends_less_than_twice_the_gradients(ranks, factor):
    assert all_reduce_bytes(ranks, 1000) == 1000 * factor


def test_a_ring_of_four_ranks_waits_for_six_messages():
    alone = all_reduce_seconds(4, 4e9, bandwidth=12.5e9)
    assert alone == pytest.approx(0.48)
    assert all_reduce_seconds(4, 4e9, bandwidth=12.5e9, latency=1e-3) == pytest.approx(alone + 6e-3)


def test_a_step_divides_the_computing_and_not_the_bytes():
    link = {"gradients": 8.0, "bandwidth": 8.0}  # an all-reduce of 2 ranks takes 1 s
    assert step_seconds(4.0, 1, **link) == 4.0
    assert step_seconds(4.0, 2, **link) == 3.0
    assert communication_share(4.0, 2, **link) == pytest.approx(1 / 3)
    assert step_seconds(1.0, 2, **link) > 1.0, "more GPUs must be able to be slower"
    assert step_seconds(4.0, 2, **link, overlap=0.25) == 2.5
    assert step_seconds(4.0, 2, **link, overlap=1.0) == 2.0


def test_a_percentage_is_not_a_share():
    with pytest.raises(ValueError, match="serial_share=5"):
        amdahl(5, 8)


@pytest.mark.parametrize(("stage", "gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_7_5_billion_parameters_on_64_gpus_need_what_the_paper_says(stage, gb):
    total = memory_per_gpu(7_500_000_000, stage=stage, gpus=64).total / 1e9
    assert total == pytest.approx(gb, abs=0.05)


@pytest.mark.parametrize(
    ("optimizer", "precision", "expected"),
    [
        ("sgd", "float32", MemoryByUse(400, 400, 0)),
        ("momentum", "float32", MemoryByUse(400, 400, 400)),
        ("adam", "float32", MemoryByUse(400, 400, 800)),
        ("momentum", "mixed", MemoryByUse(200, 200, 800)),  # with a float32 copy
    ],
)
def test_what_an_optimizer_keeps_depends_on_it_and_on_the_precision(optimizer, precision, expected):
    how = {"optimizer": optimizer, "precision": precision}
    assert memory_per_gpu(100, stage=0, gpus=4, **how) == expected
    gathered = memory_per_gpu(100, stage=0, gpus=4, **how, gathered=30).total
    assert gathered == expected.total + 30 * expected.parameters / 100, (
        "gathered layers come on top"
    )


def test_the_first_gpu_has_one_more_where_parts_are_unequal():
    assert memory_per_gpu(10, stage=3, gpus=4, precision="float32") == MemoryByUse(12, 12, 24)


def test_stage_3_sends_half_as_much_again():
    assert [traffic_per_step(100, stage=stage) for stage in range(4)] == [200, 200, 200, 300]
    assert traffic_per_step(100, stage=3, gpus=4, bytes_per_element=4) == 3 * 300
    assert traffic_per_step(100, stage=1, gpus=1) == 0


@pytest.mark.parametrize("wrong", [{"stage": 4}, {"optimizer": "lion"}, {"precision": "half"}])
def test_what_the_formula_does_not_know_is_refused(wrong):
    (value,) = wrong.values()
    with pytest.raises(ValueError, match=str(value)):
        memory_per_gpu(100, **{"stage": 0, "gpus": 4} | wrong)


def test_what_is_held_is_counted_once_for_all_its_views():
    model = nn.Linear(8, 8, bias=False)
    model.tied = model.weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    held = held_by(model, optimizer)
    counter = 4  # Adam's count of its steps
    assert held == MemoryByUse(256, 256, 2 * 256 + counter)


def test_a_rank_holds_its_part_of_a_sharded_model():
    def train():
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(nn.Linear(8, 8, bias=False))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        return held_by(model, optimizer)

    formula = memory_per_gpu(64, stage=3, gpus=2, precision="float32")
    for held in run_ranks(train, 2, backend="gloo", show=False):
        assert (held.parameters, held.gradients) == (formula.parameters, formula.gradients)
        assert 0 <= held.optimizer - formula.optimizer <= 8
