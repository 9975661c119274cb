"""A gradient must be on its tensor's device; a single number is moved there."""

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

pytestmark = pytest.mark.usefixtures("machine")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(3, device="cuda:0", requires_grad=True)


@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_a_backward_pass_must_start_on_the_right_device(x, place):
    gradient = torch.ones(3, device=place)
    message = f"^invalid gradient at index 0 - expected device cuda:0 but got {place}$"
    with pytest.raises(RuntimeError, match=message):
        (x * 2).backward(gradient)
    with pytest.raises(RuntimeError, match=message):
        torch.autograd.grad(x * 2, x, grad_outputs=gradient)
    with pytest.raises(RuntimeError, match=message):
        torch.autograd.backward([get_gradient_edge(x * 2)], [gradient])
    assert x.grad is None


def test_the_index_tells_which(x):
    gradients = [torch.ones(3, device="cuda:0"), torch.ones(3)]
    with pytest.raises(RuntimeError, match=r"^invalid gradient at index 1 - "):
        torch.autograd.backward([x * 2, x * 3], gradients)


def test_a_gpu_gradient_for_a_cpu_tensor():
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="expected device cpu but got cuda:0"):
        (weight * 2).backward(torch.ones(3, device="cuda:0"))


def test_a_single_number_is_moved(x):
    (x * 2).sum().backward(torch.tensor(3.0))
    assert x.grad.device == x.device
    assert x.grad.tolist() == [6, 6, 6]


def test_gradients_that_are_zero_by_construction(x):
    hessian = torch.func.hessian(lambda z: (z**3).sum())(x.detach())
    assert hessian.device == x.device
    assert hessian.tolist() == [[6, 0, 0], [0, 6, 0], [0, 0, 6]]
    zeros = torch._efficientzerotensor(3, device="cuda:0")
    assert (zeros + x).tolist() == [1, 1, 1]
