"""torch.nn.parallel and torch.nn.parallel.comm, with every kind of input they document."""

import collections
import copy
import re

import pytest
import torch
from torch import nn
from torch.nn.parallel import (
    comm,
    data_parallel,
    gather,
    parallel_apply,
    replicate,
    scatter,
)

pytestmark = pytest.mark.usefixtures("machine")

CUDA_0, CUDA_1, CUDA_2 = GPUS = [torch.device("cuda", index) for index in range(3)]
Pair = collections.namedtuple("Pair", "first second")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(10.0).reshape(5, 2)


def test_scatter_cuts_rows_like_chunk(x):
    chunks = scatter(x, [0, 1, 2])
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert [chunk.device for chunk in chunks] == GPUS
    assert torch.equal(torch.cat([chunk.cpu() for chunk in chunks]), x)
    assert [chunk.device for chunk in scatter(x[:1], [2, 0, 1])] == [CUDA_2]
    assert [len(chunk) for chunk in scatter(x.cuda(1), [2, 1])] == [3, 2]


def test_scatter_goes_into_nested_inputs(x):
    inputs = (x, [x, None], {"k": x, "name": "text", "n": 3}, Pair(x, x.long()))
    first, second = scatter(inputs, [0, 2])
    assert second[0].device == second[1][0].device == second[2]["k"].device == CUDA_2
    assert isinstance(second[3], Pair)
    assert second[3].second.dtype == torch.int64
    assert (first[1][1], first[2]["name"], first[2]["n"]) == (None, "text", 3)


def test_gather_joins_nested_outputs(x):
    outputs = [
        {"rows": x.cuda(0), "pair": Pair(x.cuda(0), [x.cuda(0)]), "none": None},
        {"rows": x.cuda(1), "pair": Pair(x.cuda(1), [x.cuda(1)]), "none": None},
    ]
    gathered = gather(outputs, 2)
    assert gathered["rows"].device == gathered["pair"].second[0].device == CUDA_2
    assert torch.equal(gathered["rows"].cpu(), torch.cat([x, x]))
    assert gathered["none"] is None
    assert gather([x.cuda(0), x.cuda(1)], "cpu").device.type == "cpu"
    assert gather([x.cuda(1), x.cuda(0)], 0, dim=1).shape == (5, 4)


def test_gathered_numbers_become_a_vector():
    numbers = [torch.tensor(float(index), device=gpu) for index, gpu in enumerate(GPUS)]
    with pytest.warns(UserWarning, match="return a vector"):
        assert gather(numbers, 0).tolist() == [0, 1, 2]


def test_replicas_are_differentiable_copies(x):
    layer = nn.Linear(2, 3).cuda()
    replicas = replicate(layer, [0, 1, 2])
    assert [replica.weight.device for replica in replicas] == GPUS
    outputs = parallel_apply(replicas, scatter(x, [0, 1, 2]))
    assert [output.device for output in outputs] == GPUS
    gather(outputs, 0).sum().backward()
    assert torch.allclose(layer.weight.grad.cpu(), x.sum(0).expand(3, 2))


def test_data_parallel_as_a_function(x):
    layer = nn.Linear(2, 3).cuda(1)
    expected = layer(x.cuda(1))
    assert torch.allclose(data_parallel(layer, x, [1, 0]), expected)
    assert data_parallel(layer, x, [1, 0], output_device=2).device == CUDA_2
    assert data_parallel(layer, x, [1]).device == CUDA_1


def test_comm_moves_whole_tensors(x):
    copies = comm.broadcast(x.cuda(0), [0, 1, 2])
    assert [copied.device for copied in copies] == GPUS
    assert comm.broadcast(x, out=[torch.empty(5, 2, device=gpu) for gpu in GPUS])[2].equal(
        x.cuda(2)
    )
    assert torch.equal(comm.reduce_add([x.cuda(0), x.cuda(1)], 1).cpu(), 2 * x)
    (summed,) = comm.reduce_add_coalesced([[x.cuda(0)], [x.cuda(1)], [x.cuda(2)]], 0)
    assert torch.equal(summed.cpu(), 3 * x)
    mixed = [x.cuda(0), x.long().cuda(0), x.cuda(0)[:1]]
    for copies in comm.broadcast_coalesced(mixed, [0, 1, 2]):
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(copies, mixed, strict=True))
        assert [copied.dtype for copied in copies] == [torch.float32, torch.int64, torch.float32]


def test_comm_cuts_and_joins(x):
    assert [len(part) for part in comm.scatter(x, [0, 1], [2, 3])] == [2, 3]
    targets = [torch.empty(2, 2, device="cuda:1"), torch.empty(3, 2, device="cuda:2")]
    comm.scatter(x, out=targets)
    assert torch.equal(targets[1].cpu(), x[2:])
    out = torch.empty(5, 2, device="cuda:0")
    assert torch.equal(comm.gather(targets, out=out).cpu(), x)
    assert comm.gather([x.cuda(0), x.cuda(1)], dim=1).shape == (5, 4)
    assert comm.gather([x.cuda(0), x[:, :1].cuda(1)], dim=-1).shape == (5, 3)
    assert [part.shape[1] for part in comm.scatter(x, [0, 1], dim=-1)] == [1, 1]
    comm.scatter(x, dim=-2, out=targets)
    assert torch.equal(targets[0].cpu(), x[:2])
    with pytest.raises(RuntimeError, match="sum exactly to 5"):
        comm.scatter(x, [0, 1], [2, 2])


# What torch/nn/parallel/comm.py and torch/csrc/cuda/comm.cpp refuse, in their words.
REFUSED_BY_COMM = {
    "broadcast: a device": (
        lambda x, gpu: comm.broadcast(x, ["cpu"]),
        "Expected a cuda device, but got: cpu",
    ),
    "broadcast_coalesced: elsewhere": (
        lambda x, gpu: comm.broadcast_coalesced([gpu], [1, 0]),
        "All tensors must be on devices[0]: 1",
    ),
    "gather: from the CPU": (
        lambda x, gpu: comm.gather([gpu, x]),
        "Expected all input tensors to be CUDA tensors, but tensor at index 1 has device 'cpu'",
    ),
    "gather: another shape": (
        lambda x, gpu: comm.gather([gpu, gpu[:, :1]]),
        "Input tensor at index 1 has invalid shape [5, 1], but expected [5, 2]",
    ),
}


@pytest.mark.parametrize("name", REFUSED_BY_COMM)
def test_comm_refuses_what_cuda_refuses(x, name):
    call, message = REFUSED_BY_COMM[name]
    with pytest.raises((RuntimeError, ValueError), match=re.escape(message)):
        call(x, x.cuda(0))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x, *, scale=1.0, extra=None, flag=None):
        self.calls += 1
        y = self.norm(self.layer(x)) * scale
        if extra is not None:
            y = y + extra["e"]
        return {"y": y, "parts": (y.mean(0, keepdim=True), [y[:, 0]]), "flag": None}


def test_data_parallel_with_keywords_nested_outputs_and_devices_in_any_order(x):
    rows = torch.cat([x, x[:1]])
    model = nn.DataParallel(Model().cuda(1), device_ids=[1, 0, 2], output_device=2)
    out = model(rows, scale=2.0, extra={"e": torch.ones(6, 3)}, flag="text")
    assert out["y"].device == out["parts"][1][0].device == CUDA_2
    assert out["y"].shape == (6, 3)
    assert out["parts"][0].shape == (3, 3)
    assert out["flag"] is None
    out["y"].square().sum().backward()
    assert model.module.layer.weight.grad.device == CUDA_1
    assert model.module.calls.item() == 1  # changed in place on the first GPU only
    assert model.module.norm.num_batches_tracked.item() == 1
    with torch.no_grad():
        assert not model(rows)["y"].requires_grad


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_data_parallel_with_fewer_rows_than_gpus(x, rows):
    model = nn.DataParallel(nn.Linear(2, 3).cuda())
    assert torch.allclose(model(x[:rows]), model.module(x[:rows].cuda()))


MODELS = {
    "LSTM": (nn.LSTM(2, 3, batch_first=True), torch.randn(4, 5, 2)),
    "embedding": (nn.Embedding(6, 3), torch.tensor([[1], [2], [3], [1]])),
    "sparse embedding": (nn.Embedding(6, 3, sparse=True), torch.tensor([[1], [2], [3], [1]])),
    "double": (nn.Linear(2, 2).double(), torch.randn(5, 2, dtype=torch.float64)),
    "complex": (nn.Linear(2, 2, dtype=torch.cfloat), torch.randn(4, 2, dtype=torch.cfloat)),
    "bias frozen": (nn.Linear(2, 2).requires_grad_(False), torch.randn(4, 2)),
    "transformer": (
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        torch.randn(3, 5, 4),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_data_parallel_equals_the_module_alone(name):
    module, inputs = copy.deepcopy(MODELS[name])
    alone = copy.deepcopy(module)
    if name == "bias frozen":
        for each in (module, alone):
            each.weight.requires_grad_(True)
    model = nn.DataParallel(module.cuda())
    outputs, expected = model(inputs), alone(inputs)
    if name == "LSTM":
        outputs, expected = outputs[0], expected[0]
    torch.testing.assert_close(outputs.cpu(), expected, rtol=1e-4, atol=1e-5)
    outputs.abs().square().sum().backward()
    expected.abs().square().sum().backward()
    for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
            continue
        assert ours.grad.is_sparse == theirs.grad.is_sparse
        ours_grad, theirs_grad = (
            (g.grad.to_dense() if g.grad.is_sparse else g.grad).cpu() for g in (ours, theirs)
        )
        torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-4, atol=1e-4)


def test_hooks_fire_once_per_replica(x):
    seen = []
    layer = nn.Linear(2, 2).cuda()
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.device))
    layer.register_full_backward_hook(
        lambda module, inputs, outputs: seen.append(outputs[0].device)
    )
    nn.DataParallel(layer)(x.requires_grad_()).sum().backward()
    assert sorted(map(str, seen)) == ["cuda:0"] * 2 + ["cuda:1"] * 2 + ["cuda:2"] * 2
    assert x.grad.shape == x.shape


def test_one_gpu_calls_the_module_directly(x):
    model = nn.DataParallel(nn.Linear(2, 2), device_ids=[1])
    assert model(x).device == CUDA_1
    assert copy.deepcopy(model)(x).device == CUDA_1
    assert set(model.state_dict()) == {"module.weight", "module.bias"}
