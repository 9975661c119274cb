"""Every way to make a tensor on a GPU."""

import numpy
import pytest
import torch

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1, CUDA_2 = torch.device("cuda", 1), torch.device("cuda", 2)
CPU = torch.device("cpu")

FACTORIES = {
    "arange": lambda **where: torch.arange(5, **where),
    "as_tensor": lambda **where: torch.as_tensor([1.0, 2.0], **where),
    "empty": lambda **where: torch.empty(2, **where),
    "eye": lambda **where: torch.eye(3, **where),
    "full": lambda **where: torch.full((2,), 1.0, **where),
    "randint": lambda **where: torch.randint(5, (2,), **where),
    "randperm": lambda **where: torch.randperm(5, **where),
    "scalar_tensor": lambda **where: torch.scalar_tensor(2.0, **where),
    "sparse_coo_tensor": lambda **where: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], **where),
    "tensor": lambda **where: torch.tensor([1.0, 2.0], **where),
    "tril_indices": lambda **where: torch.tril_indices(3, 3, **where),
}

LIKE = {
    "ones_like": torch.ones_like,
    "randint_like": lambda x, **where: torch.randint_like(x, 5, **where),
    "new_tensor": lambda x, **where: x.new_tensor([1, 2], **where),
    "new_zeros": lambda x, **where: x.new_zeros((2,), **where),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_its_tensor_where_it_is_asked_to(name):
    make = FACTORIES[name]
    assert make(device="cuda:1").device == CUDA_1
    assert make(device=2).device == CUDA_2
    assert make(device="cpu").device == make(device=None).device == CPU
    assert make(device="cuda:1").shape == make().shape
    assert make(device="cuda:1").dtype == make().dtype
    with torch.device("cuda:1"):
        assert make().device == CUDA_1
        assert make(device="cpu").device == CPU
    assert make().device == CPU


@pytest.mark.parametrize("name", LIKE)
def test_it_is_like_the_tensor_unless_a_device_is_named(name):
    make, on_cpu = LIKE[name], torch.ones(2, dtype=torch.float64)
    on_gpu = on_cpu.to("cuda:1")
    assert make(on_gpu).device == make(on_gpu, device=None).device == CUDA_1
    assert make(on_gpu).dtype == torch.float64
    assert make(on_gpu, device="cuda:2").device == make(on_cpu, device="cuda:2").device == CUDA_2
    assert make(on_gpu, device="cpu").device == make(on_cpu).device == CPU


def test_tensors_made_from_values_are_leaves_that_can_require_gradients():
    x = torch.tensor([1.0, 2.0], device="cuda:1", requires_grad=True)
    y = torch.zeros(2, device="cuda:1", requires_grad=True)
    (x * y).sum().backward()
    assert x.is_leaf
    assert x.grad.tolist() == [0, 0]
    assert y.grad.tolist() == [1, 2]


def test_tensors_from_numpy_and_from_tensors():
    array = numpy.ones(3)
    assert torch.as_tensor(array, device="cuda:1").device == CUDA_1
    assert torch.tensor(array, device="cuda:1").dtype == torch.float64
    assert torch.from_numpy(array).cuda(1).tolist() == [1, 1, 1]
    on_gpu = torch.ones(2, device="cuda:1")
    assert torch.as_tensor(on_gpu) is on_gpu
    assert torch.as_tensor(on_gpu, device="cuda:2").device == CUDA_2
    with pytest.warns(UserWarning, match="recommended to use"):
        copied = torch.ones(2).new_tensor(torch.ones(2))
    assert copied.device == CPU
    copied = torch.tensor(on_gpu)
    assert copied.device == CUDA_1
    assert copied.data_ptr() != on_gpu.data_ptr()


def test_tensors_may_stand_for_numbers_in_a_list():
    number = torch.tensor(2.0, dtype=torch.float64, device="cuda:1")
    made = torch.tensor([number, torch.tensor(3.0), 4])
    assert (made.device, made.tolist(), made.dtype) == (CPU, [2, 3, 4], torch.float64)
    assert torch.tensor([[number, number]], device="cuda:2").tolist() == [[2, 2]]


def test_torch_device_understands_a_bare_number():
    assert torch.device(1) == torch.device("cuda:1") == torch.device("cuda", 1)
    assert torch.device(type="cuda", index=1) == CUDA_1


def test_values_for_other_devices_are_not_touched():
    assert torch.tensor([1.0], device="meta").device.type == "meta"
    assert torch.as_tensor(data=[1, 2], device="cuda:1").device == CUDA_1
    assert torch.asarray(obj=[1, 2], device="cuda:1").device == CUDA_1
    assert torch.tensor(data=3, dtype=torch.int8, device="cuda:1").dtype == torch.int8
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta
        assert torch.zeros(2).is_meta
