"""Every way to name a GPU and to move a tensor there and back."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("machine")

CUDA_0, CUDA_1, CUDA_2 = (torch.device("cuda", index) for index in range(3))
CPU = torch.device("cpu")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("cuda:1", CUDA_1),
        (2, CUDA_2),
        (torch.device("cuda"), CUDA_0),
        ("cpu:0", CPU),
    ],
)
def test_to_takes_every_name_of_a_device(x, name, device):
    assert x.to(name).device == device
    assert x.to(device=name).device == device
    assert torch.equal(x.to(name).cpu(), x)


def test_to_takes_dtype_and_options_by_position_and_by_name(x):
    by_position = x.to("cuda:1", torch.float64, True, True)
    by_name = x.to(
        device="cuda:1",
        dtype=torch.float16,
        non_blocking=True,
        copy=True,
        memory_format=torch.preserve_format,
    )
    assert (by_position.device, by_position.dtype) == (CUDA_1, torch.float64)
    assert (by_name.device, by_name.dtype) == (CUDA_1, torch.float16)


def test_to_another_tensor_takes_its_device_and_dtype(x):
    y = x.to("cuda:1", torch.float64)
    assert (x.to(y).device, x.to(y).dtype) == (CUDA_1, torch.float64)
    assert (y.to(x).device, y.to(x).dtype) == (CPU, torch.float32)
    assert x.type_as(y).device == CUDA_1


def test_to_the_same_device_is_the_same_tensor_unless_a_copy_is_asked_for(x):
    y = x.to("cuda:1")
    assert y.to("cuda:1") is y
    copied = y.to("cuda:1", copy=True)
    assert copied is not y
    assert copied.data_ptr() != y.data_ptr()


def test_memory_format_is_kept_and_changed():
    images = torch.randn(2, 3, 4, 5).to("cuda:1", memory_format=torch.channels_last)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.cpu().is_contiguous(memory_format=torch.channels_last)
    again = images.to(memory_format=torch.contiguous_format)
    assert again.is_contiguous()
    assert again.device == CUDA_1


def test_cuda_takes_an_index_a_device_or_the_current_gpu(x):
    assert x.cuda(1).device == x.cuda(CUDA_1, True).device == CUDA_1
    assert x.cuda(device="cuda:2", non_blocking=True).device == CUDA_2
    with torch.cuda.device(1):
        assert x.cuda().device == x.to("cuda").device == CUDA_1
        assert torch.zeros(1, device="cuda").device == CUDA_1
        with torch.cuda.device("cuda:2"):
            assert x.cuda().device == CUDA_2
    assert x.cuda().device == CUDA_0
    with torch.cuda.device_of(x.cuda(1)):
        assert torch.cuda.current_device() == 1


@pytest.mark.parametrize("old", ["torch.cuda.HalfTensor", torch.cuda.HalfTensor])
def test_old_types_are_refused(x, old):
    for tensor in (x, x.cpu()):
        with pytest.raises(TypeError, match="Write the device and the dtype instead"):
            tensor.type(old)


def test_old_type_names(x):
    assert x.type() == "torch.FloatTensor"
    assert x.cuda(1).type() == "torch.cuda.FloatTensor"
    assert x.cuda(1).type(torch.int64).device == CUDA_1
    assert x.cuda(1).new(2, 2).device == CUDA_1
    assert x.cuda(1).new([1.0, 2.0]).tolist() == [1.0, 2.0]


def test_where_a_tensor_says_it_is(x):
    y = x.cuda(1)
    assert (y.is_cuda, y.is_cpu, y.get_device(), y.device.index) == (True, False, 1, 1)
    assert (x.is_cuda, x.is_cpu, x.device.type) == (False, True, "cpu")
    assert type(y).__name__ == "Tensor"


def test_it_is_printed_as_on_a_real_gpu():
    assert repr(torch.zeros(0, device="cuda:1")) == "tensor([], device='cuda:1')"
    leaf = torch.ones(1, dtype=torch.float64, device="cuda:1", requires_grad=True)
    assert repr(leaf) == ("tensor([1.], device='cuda:1', dtype=torch.float64, requires_grad=True)")
    assert repr(leaf * 2) == (
        "tensor([2.], device='cuda:1', dtype=torch.float64, grad_fn=<MulBackward0>)"
    )
    parameter = torch.nn.Parameter(torch.ones(1, device="cuda:1"))
    assert repr(parameter) == (
        "Parameter containing:\ntensor([1.], device='cuda:1', requires_grad=True)"
    )
    loss = torch.tensor(0.123456, device="cuda:1", requires_grad=True) * 1
    assert f"{loss:.3f}" == "0.123"


def test_python_values_come_out(x):
    y = x.cuda(1)
    assert y.tolist() == x.tolist()
    assert y.sum().item() == float(y.sum()) == 15.0
    assert [10, 11, 12][torch.tensor(2, device="cuda:1")] == 12
    assert bool((y >= 0).all())
    assert y.numpy(force=True).tolist() == x.tolist()


def test_pinned_memory(x):
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    assert pinned.pin_memory() is pinned
    assert torch.empty(2, pin_memory=True).is_pinned()
