"""Mistakes fail as on CUDA: the same exception, the same words."""

import re

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("machine")

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, {}"
ELSEWHERE = (
    "Expected all tensors to be on the same device, but got {} is on {}, different from other "
    "tensors on {} (when checking argument in method wrapper_CUDA_{})"
)
NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
    "host memory first."
)
INDICES = "indices should be either on cpu or on the same device as the indexed tensor ({})"


def on(device: str, *shape: int) -> torch.Tensor:
    return torch.ones(shape or (2, 2), device=device)


MIXTURES = {
    "add": (lambda: on("cuda:0") + on("cuda:1"), TWO_DEVICES.format("cuda:0 and cuda:1!")),
    "add cpu": (lambda: on("cuda:0") + on("cpu"), TWO_DEVICES.format("cuda:0 and cpu!")),
    "cpu add": (lambda: on("cpu") * on("cuda:1"), TWO_DEVICES.format("cuda:1 and cpu!")),
    "in place": (lambda: on("cuda:0").add_(on("cpu")), TWO_DEVICES.format("cuda:0 and cpu!")),
    "into a cpu number": (
        lambda: torch.ones(()).add_(on("cuda:0")[0, 0]),
        TWO_DEVICES.format("cuda:0 and cpu!"),
    ),
    "where": (
        lambda: torch.where(on("cuda:0") > 0, on("cuda:0"), on("cuda:2")),
        TWO_DEVICES.format("cuda:0 and cuda:2!"),
    ),
    "out": (
        lambda: torch.add(on("cuda:0"), 1, out=on("cuda:1")),
        TWO_DEVICES.format("cuda:0 and cuda:1!"),
    ),
    "mse_loss": (
        lambda: functional.mse_loss(on("cuda:0"), on("cpu")),
        TWO_DEVICES.format("cuda:0 and cpu!"),
    ),
    "binary_cross_entropy": (
        lambda: functional.binary_cross_entropy(on("cuda:0"), on("cpu")),
        TWO_DEVICES.format("cuda:0 and cpu!"),
    ),
    "binary_cross_entropy_with_logits": (
        lambda: functional.binary_cross_entropy_with_logits(on("cuda:0"), on("cpu")),
        TWO_DEVICES.format("cuda:0 and cpu!"),
    ),
    "index_fill": (
        lambda: on("cuda:0").index_fill_(0, torch.tensor([0]), 1.0),
        TWO_DEVICES.format("cuda:0 and cpu!"),
    ),
    "rows from the CPU": (
        lambda: on("cuda:0").__setitem__(torch.tensor([0, 1], device="cuda:0"), on("cpu")),
        TWO_DEVICES.format("cuda:0 and cpu!"),
    ),
    "mm": (lambda: on("cuda:0") @ on("cuda:1"), ELSEWHERE.format("mat2", "cuda:1", "cuda:0", "mm")),
    "bmm": (
        lambda: torch.bmm(on("cuda:0", 1, 2, 2), on("cpu", 1, 2, 2)),
        ELSEWHERE.format("mat2", "cpu", "cuda:0", "bmm"),
    ),
    "model on the CPU": (
        lambda: nn.Linear(2, 2)(on("cuda:0")),
        ELSEWHERE.format("mat1", "cuda:0", "cpu", "addmm"),
    ),
    "batch on the CPU": (
        lambda: nn.Linear(2, 2).cuda(1)(on("cpu")),
        ELSEWHERE.format("mat1", "cpu", "cuda:1", "addmm"),
    ),
    "cat": (
        lambda: torch.cat([on("cuda:0"), on("cuda:1")]),
        ELSEWHERE.format("tensors", "cuda:1", "cuda:0", "cat"),
    ),
    "stack": (
        lambda: torch.stack([on("cuda:0"), on("cpu")]),
        ELSEWHERE.format("tensors", "cpu", "cuda:0", "cat"),
    ),
    "labels on the CPU": (
        lambda: functional.cross_entropy(on("cuda:0"), torch.tensor([0, 1])),
        ELSEWHERE.format("target", "cpu", "cuda:0", "nll_loss_forward"),
    ),
    "words on the CPU": (
        lambda: functional.embedding(torch.tensor([0]), on("cuda:0")),
        ELSEWHERE.format("index", "cpu", "cuda:0", "_index_select"),
    ),
    "images on the CPU": (
        lambda: nn.Conv2d(1, 1, 1).cuda()(on("cpu", 1, 1, 2, 2)),
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same or input should be a MKLDNN tensor and weight is a dense tensor",
    ),
    "filters on the CPU": (
        lambda: nn.Conv2d(1, 1, 1)(on("cuda:0", 1, 1, 2, 2)),
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the "
        "same",
    ),
    "filters on another GPU": (
        lambda: nn.Conv2d(1, 1, 1).cuda(1)(on("cuda:0", 1, 1, 2, 2)),
        ELSEWHERE.format("weight", "cuda:1", "cuda:0", "convolution"),
    ),
    "sequence on the CPU": (
        lambda: nn.LSTM(2, 2).cuda(1)(on("cpu", 1, 1, 2)),
        "Input and parameter tensors are not at the same device, found input tensor at cpu and "
        "parameter tensor at cuda:1",
    ),
    "indices elsewhere": (
        lambda: on("cuda:0")[torch.tensor([0], device="cuda:1")],
        INDICES.format("cuda:0"),
    ),
    "indices on a GPU": (
        lambda: on("cpu")[torch.tensor([0], device="cuda:1")],
        INDICES.format("cpu"),
    ),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixing_devices_raises_cudas_error(name):
    mix, message = MIXTURES[name]
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        mix()


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.zeros(1, device="cuda:3"),
        lambda: torch.ones(1).to("cuda:7"),
        lambda: torch.ones(1).cuda(3),
        lambda: nn.Linear(1, 1).to(3),
        lambda: torch.cuda.set_device(5),
        lambda: torch.ones(1, device="cuda:1").to("cuda:3"),
    ],
)
def test_a_gpu_that_is_not_there(use):
    with pytest.raises(torch.AcceleratorError) as caught:
        use()
    assert str(caught.value).startswith(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n"
    )


def test_an_unknown_gpu_has_no_properties():
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(3)
    with pytest.raises(AssertionError, match="Invalid device id"):
        nn.DataParallel(nn.Linear(2, 2).cuda(), [0, 9])


def test_numpy_cannot_see_a_gpu():
    x = on("cuda:0")
    for convert in (x.numpy, lambda: numpy.asarray(x), lambda: numpy.array(x)):
        with pytest.raises(TypeError, match=f"^{re.escape(NO_NUMPY)}$"):
            convert()
    with pytest.raises(TypeError, match="apply_ is only implemented on CPU tensors"):
        x.apply_(abs)
    for export in (torch.utils.dlpack.to_dlpack, torch.from_dlpack):
        with pytest.raises(BufferError, match=r"\.cpu\(\)"):
            export(x)


@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_data_parallel_with_the_model_elsewhere(place):
    message = (
        "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found "
        f"one of them on device: {place}"
    )
    model = nn.DataParallel(nn.Linear(2, 2).to(place))
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        model(on("cpu"))


def test_an_error_in_a_replica_names_it():
    layer = nn.Linear(2, 2).cuda(0)
    with pytest.raises(RuntimeError, match="Caught RuntimeError in replica 1 on device 1"):
        nn.parallel.parallel_apply([layer, layer], [on("cuda:0"), on("cuda:1")], devices=[0, 1])


def test_compiling_is_refused_in_clear_words():
    with pytest.raises(RuntimeError, match=r"torch\.compile.*virtual GPUs"):
        torch.compile(nn.Linear(2, 2))


def test_errors_never_show_the_inside():
    with pytest.raises(RuntimeError) as caught:
        torch.searchsorted(on("cuda:1", 3), on("cuda:2", 3))
    assert "cpu" not in str(caught.value)
    assert "cuda:2" in str(caught.value)
    with pytest.raises(RuntimeError, match="to be on cpu, but it's on cuda:1"):
        torch.tensor_split(on("cuda:1", 4), torch.tensor([1], device="cuda:1"))
    with pytest.raises(TypeError, match=r"expected np.ndarray \(got Tensor\)"):
        torch.from_numpy(on("cuda:0"))


def integers(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda:1")


PRODUCTS_OF_INTEGERS = {
    "mm": (lambda: integers(2, 2) @ integers(2, 2), "\"addmm_cuda\" not implemented for 'Long'"),
    "int32": (
        lambda: integers(2, 2, dtype=torch.int) @ integers(2, 2, dtype=torch.int),
        "\"addmm_cuda\" not implemented for 'Int'",
    ),
    "linear": (
        lambda: functional.linear(integers(2, 2), integers(3, 2)),
        "\"addmm_cuda\" not implemented for 'Long'",
    ),
    "einsum": (
        lambda: torch.einsum("bij,bjk->bik", integers(2, 2, 2), integers(2, 2, 2)),
        "\"baddbmm_cuda\" not implemented for 'Long'",
    ),
    "mv": (
        lambda: integers(2, 2) @ integers(2),
        "\"addmv_impl_cuda\" not implemented for 'Long'",
    ),
    "dot": (lambda: integers(2) @ integers(2), "\"dot\" not implemented for 'Long'"),
    "conv2d": (
        lambda: functional.conv2d(integers(1, 1, 3, 3), integers(1, 1, 2, 2)),
        "getCudnnDataTypeFromScalarType() not supported for Long",
    ),
}


@pytest.mark.parametrize("name", PRODUCTS_OF_INTEGERS)
def test_cuda_multiplies_no_matrices_of_integers(name):
    product, message = PRODUCTS_OF_INTEGERS[name]
    with pytest.raises(RuntimeError, match=re.escape(message)):
        product()
    assert torch.ones(2, 2, dtype=torch.long).mm(torch.ones(2, 2, dtype=torch.long)).sum() == 8


def test_cuda_decomposes_no_matrices_in_half_precision():
    half = torch.eye(3, device="cuda:1", dtype=torch.float16)
    for decompose in (torch.linalg.svd, torch.svd, torch.linalg.svdvals):
        with pytest.raises(RuntimeError, match=r"svd_cuda_gesvdj.* not implemented for 'Half'"):
            decompose(half)
    with pytest.raises(RuntimeError, match=r"_cuda.* not implemented for 'BFloat16'"):
        torch.linalg.eigh(half.bfloat16())
    assert torch.linalg.norm(half).dtype is torch.float16


def test_the_lengths_of_packed_sequences_are_on_the_cpu():
    lengths = torch.tensor([3, 2], device="cuda:1")
    message = "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:1 Long tensor"
    with pytest.raises(RuntimeError, match=message):
        nn.utils.rnn.pack_padded_sequence(on("cuda:1", 3, 2, 4), lengths)


LABELS = torch.tensor([0, 7])  # of three classes, and rows of three
ASSERTIONS = {
    "cross_entropy": lambda labels: functional.cross_entropy(on("cuda:1", 2, 3), labels),
    "nll_loss": lambda labels: functional.nll_loss(on("cuda:1", 2, 3), -labels),
    "of pixels": lambda labels: nn.NLLLoss()(on("cuda:1", 2, 3, 1, 1), labels.view(2, 1, 1)),
    "embedding": lambda labels: nn.Embedding(3, 4, device="cuda:1")(labels),
    "embedding_bag": lambda labels: nn.EmbeddingBag(3, 4, device="cuda:1")(labels[None]),
    "index": lambda labels: on("cuda:1", 3, 4)[labels],
    "indices on the CPU": lambda labels: on("cuda:1", 3, 4)[labels.tolist()],
    "index_put": lambda labels: on("cuda:1", 3, 4).index_put((labels,), on("cuda:1", 2, 4)),
    "index_select": lambda labels: on("cuda:1", 3, 4).index_select(0, labels),
    "index_add": lambda labels: on("cuda:1", 3, 4).index_add(0, labels, on("cuda:1", 2, 4)),
    "gather": lambda labels: on("cuda:1", 3, 4).gather(0, labels[None]),
    "scatter": lambda labels: on("cuda:1", 3, 4).scatter_(0, labels[None], 1.0),
    "take": lambda labels: on("cuda:1", 2, 2).take(labels),
}


@pytest.mark.parametrize("name", ASSERTIONS)
def test_labels_and_indices_out_of_range(name):
    with pytest.raises(torch.AcceleratorError) as caught:
        ASSERTIONS[name](LABELS.cuda(1))
    assert str(caught.value).startswith("CUDA error: device-side assert triggered\n")
    assert "7" in str(caught.value) or "index out of range" in str(caught.value)
    assert "restart" in str(caught.value)


def test_what_cuda_checks_before_a_kernel_stays_as_it_is():
    x, labels = on("cuda:1", 3, 4), LABELS.cuda(1)
    for wrong in (lambda: x[5], lambda: x.index_select(5, labels), lambda: x[labels, 0, 0]):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        functional.cross_entropy(torch.ones(2, 3), LABELS)


@pytest.mark.slow
def test_torch_export_is_refused_for_gpus_alone():
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    torch.export.export(layer, (x,))
    for wrong in (
        lambda: torch.export.export(layer, (x.cuda(1),)),
        lambda: torch.export.export(layer.cuda(1), (x,)),
        lambda: torch.export.export(nn.Flatten(), (), kwargs={"input": x.cuda(1)}),
    ):
        with pytest.raises(RuntimeError, match=r"torch\.export does not work on virtual GPUs"):
            wrong()
