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
    "asarray": lambda **where: torch.asarray([1.0, 2.0], **where),
    "bartlett_window": lambda **where: torch.bartlett_window(4, **where),
    "empty": lambda **where: torch.empty(2, **where),
    "empty_permuted": lambda **where: torch.empty_permuted((2, 3), (1, 0), **where),
    "empty_strided": lambda **where: torch.empty_strided((2, 3), (3, 1), **where),
    "eye": lambda **where: torch.eye(3, **where),
    "fftfreq": lambda **where: torch.fft.fftfreq(4, **where),
    "full": lambda **where: torch.full((2,), 1.0, **where),
    "hann_window": lambda **where: torch.hann_window(4, **where),
    "kaiser_window": lambda **where: torch.kaiser_window(4, **where),
    "linspace": lambda **where: torch.linspace(0, 1, 5, **where),
    "logspace": lambda **where: torch.logspace(0, 1, 5, **where),
    "ones": lambda **where: torch.ones(2, 3, **where),
    "rand": lambda **where: torch.rand(2, 3, **where),
    "randint": lambda **where: torch.randint(5, (2,), **where),
    "randint from": lambda **where: torch.randint(1, 5, (2,), **where),
    "randn": lambda **where: torch.randn(2, **where),
    "randperm": lambda **where: torch.randperm(5, **where),
    "scalar_tensor": lambda **where: torch.scalar_tensor(2.0, **where),
    "sparse_coo_tensor": lambda **where: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], **where),
    "tensor": lambda **where: torch.tensor([1.0, 2.0], **where),
    "tril_indices": lambda **where: torch.tril_indices(3, 3, **where),
    "triu_indices": lambda **where: torch.triu_indices(3, 3, **where),
    "windows.hann": lambda **where: torch.signal.windows.hann(4, **where),
    "zeros": lambda **where: torch.zeros(2, **where),
}

LIKE = {
    "empty_like": torch.empty_like,
    "full_like": lambda x, **where: torch.full_like(x, 2, **where),
    "ones_like": torch.ones_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x, **where: torch.randint_like(x, 5, **where),
    "randn_like": torch.randn_like,
    "zeros_like": torch.zeros_like,
}

NEW = {
    "new_empty": lambda x, **where: x.new_empty((2,), **where),
    "new_empty_strided": lambda x, **where: x.new_empty_strided((2,), (1,), **where),
    "new_full": lambda x, **where: x.new_full((2,), 1, **where),
    "new_ones": lambda x, **where: x.new_ones((2,), **where),
    "new_tensor": lambda x, **where: x.new_tensor([1, 2], **where),
    "new_zeros": lambda x, **where: x.new_zeros((2,), **where),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_its_tensor_on_the_named_gpu(name):
    make = FACTORIES[name]
    assert make(device="cuda:1").device == CUDA_1
    assert make(device=2).device == CUDA_2
    assert make(device="cpu").device == CPU
    assert make(device=None).device == CPU
    expected = make()
    assert make(device="cuda:1").shape == expected.shape
    assert make(device="cuda:1").dtype == expected.dtype


@pytest.mark.parametrize("name", [name for name in FACTORIES if name != "scalar_tensor"])
def test_a_factory_follows_the_device_context_and_the_default_device(name):
    make = FACTORIES[name]
    with torch.device("cuda:1"):
        assert make().device == CUDA_1
        assert make(device="cpu").device == CPU
    torch.set_default_device("cuda:2")
    try:
        assert make().device == CUDA_2
        assert torch.get_default_device() == CUDA_2
    finally:
        torch.set_default_device(None)
    assert make().device == CPU


@pytest.mark.parametrize("name", LIKE)
def test_like_functions_follow_the_tensor_unless_a_device_is_named(name):
    make, on_cpu, on_gpu = LIKE[name], torch.ones(2), torch.ones(2, device="cuda:1")
    assert make(on_gpu).device == make(on_gpu, device=None).device == CUDA_1
    assert make(on_gpu, device="cuda:2").device == CUDA_2
    assert make(on_gpu, device="cpu").device == CPU
    assert make(on_cpu).device == CPU
    assert make(on_cpu, device="cuda:2").device == CUDA_2


@pytest.mark.parametrize("name", NEW)
def test_new_methods_follow_the_tensor_unless_a_device_is_named(name):
    make, on_gpu = NEW[name], torch.ones(2, dtype=torch.float64, device="cuda:1")
    assert make(on_gpu).device == CUDA_1
    assert make(on_gpu).dtype == torch.float64
    assert make(on_gpu, device="cuda:2").device == CUDA_2
    assert make(on_gpu, device="cpu").device == CPU
    assert make(torch.ones(2), device="cuda:2").device == CUDA_2


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


def test_python_functions_of_torch_that_make_tensors_inside():
    x = torch.randn(4, 4, device="cuda:1")
    images = torch.randn(1, 1, 6, 6, device="cuda:1")
    assert torch.svd_lowrank(x, q=2)[0].device == CUDA_1
    assert torch.nn.functional.fractional_max_pool2d(images, 2, output_size=3).device == CUDA_1
    assert torch.nn.functional.gumbel_softmax(x, hard=True).device == CUDA_1


def test_values_for_other_devices_are_not_touched():
    assert torch.tensor([1.0], device="meta").device.type == "meta"
    assert torch.as_tensor(data=[1, 2], device="cuda:1").device == CUDA_1
    assert torch.tensor(data=3, dtype=torch.int8, device="cuda:1").dtype == torch.int8
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta
        assert torch.zeros(2).is_meta
