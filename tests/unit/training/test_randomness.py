"""Random numbers go on where they were, on every rank and on every GPU."""

import io
import random

import numpy
import pytest
import torch
from torch import distributed as dist

from multigpu import run_ranks, virtual_gpus
from multigpu.training import randomness
from multigpu.training.distributed import all_gather_object


def draw(*devices: str) -> list[float]:
    """Numbers of every generator; twice from those that remember half of a pair."""
    numbers = [random.random(), random.gauss(0, 1), random.gauss(0, 1)]
    numbers += [*numpy.random.rand(2), *numpy.random.randn(3)]
    numbers += torch.rand(3).tolist() + torch.randn(17).tolist()
    for device in devices:
        numbers += torch.rand(3, device=device).cpu().tolist()
    return [float(number) for number in numbers]


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("before", range(4))
def test_the_same_numbers_come_again(before):
    for _ in range(before):
        random.gauss(0, 1)  # an odd number of them leaves one for the next call
        numpy.random.randn()
    state = through_a_file(randomness.collect())
    numbers = draw()
    assert draw() != numbers
    randomness.restore(state)
    assert draw() == numbers


def test_each_gpu_has_its_own():
    with virtual_gpus(3) as machine:
        devices = [torch.device("cuda", 2), torch.device("cuda", 0)]
        state = through_a_file(randomness.collect(devices))
        first = draw("cuda:0"), draw("cuda:2")
        randomness.restore(state, devices=devices)
        assert (draw("cuda:0"), draw("cuda:2")) == first
        assert machine.is_virtual


def test_a_state_of_gpus_is_restored_where_there_are_none():
    with virtual_gpus(2):
        state = randomness.collect([torch.device("cuda:0"), torch.device("cuda:1")])
        numbers = torch.rand(3).tolist()
    randomness.restore(state, devices=[torch.device("cpu")])
    assert torch.rand(3).tolist() == numbers


def test_every_rank_gets_its_own_back():
    def rank():
        torch.manual_seed(dist.get_rank())
        states = all_gather_object(randomness.collect())
        numbers = draw()
        randomness.restore(states[dist.get_rank()])
        neighbor = states[(dist.get_rank() + 1) % 3]
        return draw() == numbers, len(states), neighbor["torch"].sum().item()

    results = list(run_ranks(rank, 3, show=False))
    assert [result[:2] for result in results] == [(True, 3)] * 3
    assert len({result[2] for result in results}) == 3
