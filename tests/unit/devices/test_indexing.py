"""Views, indexing, in-place operators and joining, on a GPU."""

import io

import pytest
import torch

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1 = torch.device("cuda", 1)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(12.0, device="cuda:1").reshape(3, 4)


def test_a_view_writes_through_to_its_base(x):
    x.view(-1)[0] = 5
    x.t()[3].mul_(10)
    x[1].copy_(torch.ones(4))
    assert x.tolist() == [[5, 1, 2, 30], [1, 1, 1, 1], [8, 9, 10, 110]]


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
def test_indices_may_be_on_the_cpu_or_on_the_same_gpu(x, where):
    rows = torch.tensor([0, 2], device=where)
    mask = torch.tensor([True, False, True], device=where)
    assert x[rows].device == x[mask].device == CUDA_1
    assert torch.equal(x[rows].cpu(), x.cpu()[[0, 2]])
    assert torch.equal(x[mask], x[rows])
    x[rows, 1] = 0.0
    x[mask] += 1
    assert x[:, 1].tolist() == [1, 5, 1]


def test_assignment_by_slice_mask_and_scalar(x):
    x[0] = 7
    x[1, 1:3] = torch.tensor([8.0, 9.0], device="cuda:1")
    x[2] = torch.zeros(4)
    x[x > 8] = -1.0
    assert x.tolist() == [[7, 7, 7, 7], [4, 8, -1, 7], [0, 0, 0, 0]]


def test_operators_that_change_their_own_shape():
    x = torch.ones(1, 3, device="cuda:1")
    assert x.squeeze_().shape == (3,)
    assert x.unsqueeze_(1).shape == (3, 1)
    assert x.t_().shape == (1, 3)
    x.resize_(4, 5)
    assert x.shape == (4, 5)
    assert x.fill_(1).sum().item() == 20
    x.set_(torch.zeros(2, device="cuda:1"))
    assert x.tolist() == [0, 0]
    out = torch.empty(4, device="cuda:1")
    torch.add(x, 1, out=out.resize_(2))
    assert out.tolist() == [1, 1]


def test_joining_and_choosing(x):
    assert torch.cat([x, x]).shape == (6, 4)
    assert torch.stack([x, x]).device == CUDA_1
    assert torch.where(x > 5, x, torch.tensor(0.0)).device == CUDA_1
    assert torch.where(x > 5, x, 0.0).sum().item() == sum(range(6, 12))
    assert [part.device for part in x.split(2)] == [CUDA_1, CUDA_1]
    values, indices = x.max(dim=0)
    assert (values.device, indices.device, indices.dtype) == (CUDA_1, CUDA_1, torch.int64)


def test_python_operators_in_both_orders(x):
    results = [1 - x, 2 / (x + 1), 2**x, x @ x.t(), -x, x % 3, 7 // (x + 1), x == x, ~(x > 1)]
    assert all(result.device == CUDA_1 for result in results)
    on_cpu = x.cpu()
    assert torch.equal((1 - x).cpu(), 1 - on_cpu)
    assert torch.equal((2 / (x + 1)).cpu(), 2 / (on_cpu + 1))
    x += 1
    x *= 2
    x **= 2
    assert torch.equal(x.cpu(), (2 * (on_cpu + 1)) ** 2)


def test_a_zero_dimensional_cpu_tensor_stands_for_a_number(x):
    assert torch.equal((x * torch.tensor(2.0)).cpu(), x.cpu() * 2)
    assert torch.equal(x.add(torch.tensor(1.0)).cpu(), x.cpu() + 1)


def saved_and_loaded(tensor: torch.Tensor) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    return torch.load(buffer)


def test_complex_views_see_conjugation():
    on_cpu = torch.randn(3, dtype=torch.complex64)
    z = on_cpu.to("cuda:1")
    assert torch.equal(z.conj().imag.cpu(), -on_cpu.imag)
    assert torch.equal((z.conj() * z).real.cpu(), (on_cpu.conj() * on_cpu).real)
    assert torch.equal(torch.view_as_real(z.conj().resolve_conj()).cpu()[:, 1], -on_cpu.imag)
    assert z.conj().is_conj()
    assert torch.equal(saved_and_loaded(z.conj()).cpu(), on_cpu.conj())
    assert torch.equal(saved_and_loaded(z.conj().imag).cpu(), -on_cpu.imag)


def test_gradients_flow_through_views_and_assignments():
    x = torch.zeros(3, device="cuda:1", requires_grad=True)
    y = x * 1
    y[0] = 4
    y[1:].mul_(3)
    y.view(3, 1).add_(1)
    y.sum().backward()
    assert x.grad.tolist() == [0, 3, 3]


def test_sparse_tensors_go_there_and_back():
    sparse = torch.eye(3).to_sparse()
    on_gpu = sparse.to("cuda:1")
    assert on_gpu.is_sparse
    assert on_gpu.device == on_gpu.to_dense().device == CUDA_1
    assert torch.equal((on_gpu @ torch.ones(3, 2, device="cuda:1")).cpu(), torch.ones(3, 2))
    assert torch.equal(on_gpu.cpu().to_dense(), torch.eye(3))
    with pytest.raises(NotImplementedError, match=r"not torch\.sparse_csr"):
        on_gpu.to_sparse_csr()
