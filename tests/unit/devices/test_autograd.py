"""Gradients on GPUs and across them."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1, CUDA_2 = torch.device("cuda", 1), torch.device("cuda", 2)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device="cuda:1", requires_grad=True)


def test_gradcheck_across_devices(x):
    assert torch.autograd.gradcheck(lambda t: t.sin().to("cuda:0") * t.cpu().cuda(0), x)
    assert torch.autograd.gradgradcheck(lambda t: t.sin().cuda(2) ** 2, x)


def test_the_gradient_of_a_copy_goes_back_where_the_tensor_is():
    weight = torch.ones(3, requires_grad=True)
    on_2 = torch.full((3,), 3.0, device="cuda:2", requires_grad=True)
    (weight.cuda(1) * on_2.to("cuda:1")).sum().backward()
    assert weight.grad.device.type == "cpu"
    assert weight.grad.tolist() == [3, 3, 3]
    assert on_2.grad.device == CUDA_2
    target = torch.zeros(3, device="cuda:0")
    target.copy_(on_2 * 2)
    target.sum().backward()
    assert on_2.grad.tolist() == [3, 3, 3]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad + torch.zeros(3, device=grad.device).to(grad)


@pytest.mark.parametrize(
    "apply",
    [Square.apply, lambda x: checkpoint(Square.apply, x, use_reentrant=True)],
    ids=["", "in a backward pass inside another"],
)
def test_custom_functions_make_and_move_tensors_in_backward(x, apply):
    apply(x * 1).sum().backward()
    assert torch.allclose(x.grad, 2 * x)


class Strays(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad.to("cuda:0"), None


def test_a_custom_gradient_on_the_wrong_gpu_is_refused(x):
    message = (
        "Function StraysBackward returned an invalid gradient at index 0 - expected device "
        "cuda:1 but got cuda:0"
    )
    with pytest.raises(RuntimeError, match=message):
        Strays.apply(x, 2).sum().backward()
    assert x.grad is None


def test_hooks_see_gradients_on_their_gpu(x):
    seen = []
    x.register_hook(lambda grad: seen.append(grad.device) or grad * 2)
    layer = nn.Linear(3, 2, dtype=torch.float64, device="cuda:1")
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.device))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(inputs[0].device))
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device))
    layer(x).sum().backward()
    assert seen == [CUDA_1] * 4
    assert torch.allclose(x.grad, 2 * layer.weight.sum(0))


def test_checkpointing_repeats_the_same_dropout(x):
    torch.manual_seed(0)
    output = checkpoint(lambda t: functional.dropout(t * t), x, use_reentrant=False)
    output.sum().backward()
    kept = output.detach() != 0
    assert torch.allclose(x.grad, torch.where(kept, 4 * x, 0.0))


def test_functional_transforms(x):
    plain = x.detach()
    assert torch.func.vmap(lambda t: t * 2)(plain).device == CUDA_1
    assert torch.autograd.functional.jacobian(lambda t: t**2, x).device == CUDA_1
    hessian = torch.func.hessian(lambda t: (t**3).sum())(plain)  # with zeros by construction
    assert hessian.device == CUDA_1
    assert hessian.tolist() == [[3, 0, 0], [0, 6, 0], [0, 0, 12]]
    output, gradients_of = torch.func.vjp(
        lambda t: t * torch.rand(t.shape, device=CUDA_1).round(), plain
    )
    assert gradients_of(torch.ones_like(output))[0].device == CUDA_1


def test_sparse_gradients_of_an_embedding():
    embedding = nn.Embedding(5, 3, sparse=True).cuda(1)
    embedding(torch.tensor([1, 1, 2], device="cuda:1")).sum().backward()
    grad = embedding.weight.grad
    assert (grad.is_sparse, grad.device) == (True, CUDA_1)
    assert grad.to_dense()[:, 0].tolist() == [0, 2, 1, 0, 0]
    torch.optim.SparseAdam(list(embedding.parameters()), lr=0.1).step()
    torch.optim.SGD(embedding.parameters(), lr=0.1).step()


def test_assigning_a_gradient_of_another_device_is_refused():
    parameter = nn.Parameter(torch.ones(2, device="cuda:1"))
    parameter.grad = torch.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="device type 'cpu' to a tensor with device type 'cuda'"):
        parameter.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="located on device with index '2'"):
        parameter.grad = torch.ones(2, device="cuda:2")
    assert parameter.grad.tolist() == [1, 1]


def test_saved_tensors_can_wait_on_the_cpu(x, machine):
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.exp() * x).sum()
    machine.traffic.clear()
    y.backward()
    assert torch.allclose(x.grad, (x + 1) * x.exp())
    assert ("cpu", "cuda:1") in machine.traffic.by_link()


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_a_backward_pass_must_start_on_the_right_device(x, place):
    gradient, y = torch.ones(3, device=place), x * 2
    message = "^invalid gradient at index {} - expected device cuda:1 but got " + place
    with pytest.raises(RuntimeError, match=message.format(0)):
        y.backward(gradient)
    with pytest.raises(RuntimeError, match=message.format(1)):
        torch.autograd.grad([y, y], x, grad_outputs=[torch.ones_like(x), gradient])
    with pytest.raises(RuntimeError, match=message.format(0)):
        torch.autograd.backward([get_gradient_edge(y)], [gradient])
    assert x.grad is None


def test_a_single_number_is_moved(x):
    (x * 2).sum().backward(torch.tensor(3.0))
    assert x.grad.device == x.device
    assert x.grad.tolist() == [6, 6, 6]
