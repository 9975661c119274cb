"""Random numbers go on where they were, on every rank and on every GPU."""

import io
import random

import numpy
import pytest
import torch

from multigpu import virtual_gpus
from multigpu.training import randomness


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


@pytest.mark.parametrize("before", [0, 1])
def test_the_same_numbers_come_again(before):
    for _ in range(before):
        random.gauss(0, 1)  # an odd number of them leaves one for the next call
        numpy.random.randn()
    state = through_a_file(randomness.collect())
    numbers = draw()
    assert draw() != numbers
    randomness.restore(state)
    assert draw() == numbers


def test_a_state_of_gpus_is_restored_where_there_are_none():
    with virtual_gpus(2):
        state = randomness.collect([torch.device("cuda:0"), torch.device("cuda:1")])
        numbers = torch.rand(3).tolist()
    randomness.restore(state, devices=[torch.device("cpu")])
    assert torch.rand(3).tolist() == numbers
