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


def test_sparse_tensors_go_there_and_back():
    sparse = torch.eye(3).to_sparse()
    on_gpu = sparse.to("cuda:1")
    assert on_gpu.is_sparse
    assert on_gpu.device == on_gpu.to_dense().device == CUDA_1
    assert torch.equal((on_gpu @ torch.ones(3, 2, device="cuda:1")).cpu(), torch.ones(3, 2))
    assert torch.equal(on_gpu.cpu().to_dense(), torch.eye(3))


# 0-dim tensors on another device: where one stands for a number, and where CUDA refuses it


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda:0")


@pytest.mark.parametrize(
    "mix",
    [
        lambda: torch.stack([ones(), torch.tensor(1.0)]),
        lambda: torch.gather(ones(3), 0, torch.tensor(1)),
        lambda: torch.addmm(torch.tensor(1.0), ones(2, 2), ones(2, 2)),
    ],
)
def test_an_index_or_a_row_is_not_a_number(mix):
    with pytest.raises(RuntimeError, match=r"on the same device, but got \w+ is on \S+, different"):
        mix()


@pytest.mark.parametrize(
    "compute",
    [
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
