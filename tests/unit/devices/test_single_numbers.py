"""0-dim tensors on another device: where one stands for a number, and where CUDA refuses it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("machine")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda:0")


@pytest.mark.parametrize(
    "mix",
    [
        lambda: nn.Embedding(3, 3).cuda()(torch.tensor(1)),
        lambda: functional.cross_entropy(ones(3), torch.tensor(1)),
        lambda: torch.stack([ones(), torch.tensor(1.0)]),
        lambda: torch.index_select(ones(3), 0, torch.tensor(1)),
        lambda: torch.gather(ones(3), 0, torch.tensor(1)),
        lambda: torch.take(ones(3), torch.tensor(1)),
        lambda: torch.addmm(torch.tensor(1.0), ones(2, 2), ones(2, 2)),
        lambda: ones(3).scatter_(0, torch.tensor(1), 1.0),
    ],
)
def test_an_index_or_a_row_is_not_a_number(mix):
    with pytest.raises(RuntimeError, match=r"on the same device, but got \w+ is on \S+, different"):
        mix()


@pytest.mark.parametrize(
    "compute",
    [
        lambda number: ones(2) + number,
        lambda number: number * ones(2),
        lambda number: torch.where(ones(2) > 5, ones(2), number),
        lambda number: ones(2).mul_(number),
        lambda number: torch.addcmul(number, ones(2), ones(2)) - 1,
    ],
)
def test_element_by_element_it_is(compute):
    result = compute(torch.tensor(1.0))
    assert result.device == torch.device("cuda", 0)
    assert result.tolist() in ([1, 1], [2, 2])


@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_filling_fetches_the_number(machine, place):
    number = torch.tensor(5.0, device="cuda:0")
    machine.traffic.clear()
    target = torch.zeros(3, device=place)
    assert target.fill_(number).device == torch.device(place)
    assert target.tolist() == [5, 5, 5]
    target[torch.tensor([True, False, True], device=place)] = number + 1
    target[torch.tensor([1], device=place)] = number + 2
    assert target.tolist() == [6, 7, 6]
    assert machine.traffic.by_link()["cuda:0", place] == 3 * 4


def test_filling_refuses_more_than_a_number():
    target = torch.zeros(3)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        target[torch.tensor([0, 1])] = ones(2)
    assert target.tolist() == [0, 0, 0]
