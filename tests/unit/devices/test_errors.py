"""Mistakes fail as on CUDA: the same exception, the same words. See also differences.toml."""

import io
import re

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("machine")

INDICES = "indices should be either on cpu or on the same device as the indexed tensor ({})"
TWO = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"
ELSEWHERE = (
    "Expected all tensors to be on the same device, but got {} is on {}, different from other "
    "tensors on {} (when checking argument in method wrapper_CUDA_{})"
)


def on(device: str, *shape: int) -> torch.Tensor:
    return torch.ones(shape or (2, 2), device=device)


def on_two(mix, *devices):
    """Element by element: the GPU is named first."""
    return mix, TWO.format(*devices)


def elsewhere(mix, argument, *names):
    """Anything else: which argument is where, where the others are, and the operator."""
    return mix, ELSEWHERE.format(argument, *names)


MIXTURES = {
    "two GPUs": on_two(lambda: on("cuda:0") + on("cuda:1"), "cuda:0", "cuda:1"),
    "cpu first": on_two(lambda: on("cpu") * on("cuda:1"), "cuda:1", "cpu"),
    "into a number": on_two(lambda: torch.ones(()).add_(on("cuda:0")[0, 0]), "cuda:0", "cpu"),
    "out": on_two(lambda: torch.add(on("cuda:0"), 1, out=on("cuda:1")), "cuda:0", "cuda:1"),
    "mm": elsewhere(lambda: on("cuda:0") @ on("cuda:1"), "mat2", "cuda:1", "cuda:0", "mm"),
    "model on the CPU": elsewhere(
        lambda: nn.Linear(2, 2)(on("cuda:0")), "mat1", "cuda:0", "cpu", "addmm"
    ),
    "batch on the CPU": elsewhere(
        lambda: nn.Linear(2, 2).cuda(1)(on("cpu")), "mat1", "cpu", "cuda:1", "addmm"
    ),
    "stack": elsewhere(
        lambda: torch.stack([on("cuda:0"), on("cpu")]), "tensors", "cpu", "cuda:0", "cat"
    ),
    "labels on the CPU": elsewhere(
        lambda: functional.cross_entropy(on("cuda:0"), torch.tensor([0, 1])),
        *("target", "cpu", "cuda:0", "nll_loss_forward"),
    ),
    "words on the CPU": elsewhere(
        lambda: functional.embedding(torch.tensor([0]), on("cuda:0")),
        *("index", "cpu", "cuda:0", "_index_select"),
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
    "sequence on the CPU": (
        lambda: nn.LSTM(2, 2).cuda(1)(on("cpu", 1, 1, 2)),
        "Input and parameter tensors are not at the same device, found input tensor at cpu and "
        "parameter tensor at cuda:1",
    ),
    "indices on another GPU": (
        lambda: on("cuda:0")[torch.tensor([0], device="cuda:1")],
        INDICES.format("cuda:0"),
    ),
    "values on the CPU": on_two(
        lambda: on("cuda:0").index_put_((torch.tensor([0, 1]),), on("cpu")), "cuda:0", "cpu"
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
        lambda: nn.Linear(1, 1).to(3),
        lambda: torch.cuda.set_device(5),
    ],
)
def test_a_gpu_that_is_not_there(use):
    with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: invalid device ordinal\n"):
        use()


def test_an_unknown_gpu_has_no_properties():
    with pytest.raises(AssertionError, match="Invalid device id"):
        nn.DataParallel(nn.Linear(2, 2).cuda(), [0, 9])


def test_numpy_and_other_libraries_cannot_see_a_gpu():
    with pytest.raises(TypeError, match=r"^can't convert cuda:0 device type tensor to numpy\."):
        numpy.asarray(on("cuda:0"))
    with pytest.raises(BufferError, match=r"\.cpu\(\)"):
        torch.utils.dlpack.to_dlpack(on("cuda:0"))


def test_data_parallel_with_the_model_on_another_gpu():
    model = nn.DataParallel(nn.Linear(2, 2).to("cuda:1"))
    with pytest.raises(RuntimeError, match=r"on device cuda:0 .* on device: cuda:1$"):
        model(on("cpu"))


def test_errors_never_show_the_inside():
    with pytest.raises(RuntimeError, match="cuda:2") as caught:
        torch.searchsorted(on("cuda:1", 3), on("cuda:2", 3))
    assert "cpu" not in str(caught.value)
    with pytest.raises(RuntimeError, match="to be on cpu, but it's on cuda:1"):
        torch.tensor_split(on("cuda:1", 4), torch.tensor([1], device="cuda:1"))


def integers(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda:1")


@pytest.mark.parametrize(
    ("product", "message"),
    [
        (
            lambda: functional.linear(*[integers(2, 2, dtype=torch.int)] * 2),
            "\"addmm_cuda\" not implemented for 'Int'",
        ),
        (lambda: integers(1, 2, 2) @ integers(1, 2, 2), '"baddbmm_cuda" not implemented'),
        (lambda: integers(2, 2) @ integers(2), '"addmv_impl_cuda" not implemented'),
        (lambda: integers(2) @ integers(2), '"dot" not implemented'),
    ],
)
def test_cuda_multiplies_no_matrices_of_integers(product, message):
    with pytest.raises(RuntimeError, match=re.escape(message)):
        product()


def test_cuda_decomposes_no_matrices_in_half_precision():
    half = torch.eye(3, device="cuda:1", dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"_cuda.* not implemented for 'BFloat16'"):
        torch.linalg.eigh(half)
    assert torch.linalg.norm(half).dtype is torch.bfloat16


LABELS = torch.tensor([0, 7])  # of three classes, and rows of three


@pytest.mark.parametrize(
    "use",
    [
        lambda labels: nn.NLLLoss()(on("cuda:1", 2, 3, 1, 1), labels.view(2, 1, 1)),
        lambda labels: nn.Embedding(3, 4, device="cuda:1")(labels),
        lambda labels: on("cuda:1", 3, 4)[labels.tolist()],
        lambda labels: on("cuda:1", 3, 4).index_put((labels,), on("cuda:1", 2, 4)),
        lambda labels: on("cuda:1", 3, 4).index_select(0, labels),
        lambda labels: on("cuda:1", 3, 4).gather(0, labels[None]),
        lambda labels: on("cuda:1", 3, 4).scatter_(0, labels[None], 1.0),
    ],
)
def test_labels_and_indices_out_of_range(use):
    with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: device-side assert") as caught:
        use(LABELS.cuda(1))
    assert "7" in str(caught.value) or "index out of range" in str(caught.value)


def test_what_cuda_checks_before_a_kernel_stays_as_it_is():
    x, labels = on("cuda:1", 3, 4), LABELS.cuda(1)
    for wrong in (lambda: x[5], lambda: x.index_select(5, labels), lambda: x[labels, 0, 0]):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        functional.cross_entropy(torch.ones(2, 3), LABELS)


@pytest.mark.parametrize("export", ["export", "draft_export"])
def test_torch_export_of_what_is_on_a_gpu_is_refused(machine, export):
    with pytest.raises(RuntimeError, match=r"torch\.export does not work on virtual GPUs"):
        getattr(torch.export, export)(nn.Linear(2, 2).cuda(1), (torch.ones(1, 2, device="cuda:1"),))


@pytest.mark.parametrize("compiled", [torch.jit.script, lambda m: torch.jit.trace(m, on("cuda:1"))])
def test_a_compiled_module_on_a_gpu_is_not_saved(machine, tmp_path, compiled):
    layer = nn.Linear(2, 2)
    module = compiled(layer.cuda(1))
    for file in (io.BytesIO(), tmp_path / "module.pt"):
        with pytest.raises(RuntimeError, match=r"torch\.jit\.save does not work on virtual GPUs"):
            torch.jit.save(module, file)
    torch.jit.save(torch.jit.script(layer.cpu()), io.BytesIO())


def test_a_storage_of_another_device_cannot_be_set(machine):
    on_cpu = torch.ones(4).untyped_storage()
    with pytest.raises(RuntimeError, match="different device"):
        torch.empty(0, device="cuda:1").set_(on_cpu, 0, (4,), (1,))


def test_an_alias_across_devices_is_refused_by_their_names(machine):
    x = torch.ones(2, device="cuda:0")
    with pytest.raises(ValueError, match=r"'cuda:0' to 'cuda:1'"):
        torch.asarray(x, device="cuda:1", copy=False)


@pytest.mark.slow
def test_torch_export_works_for_what_is_on_the_cpu():
    torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
