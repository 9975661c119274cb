"""torch.nn.parallel and torch.nn.parallel.comm, with every kind of input they document."""

import collections
import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm, data_parallel, gather, parallel_apply, replicate, scatter

from multigpu import virtual_gpus

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


def test_replicas_are_differentiable_copies(x):
    layer = nn.Linear(2, 3).cuda()
    outputs = parallel_apply(replicate(layer, [0, 1, 2]), scatter(x, [0, 1, 2]))
    assert [output.device for output in outputs] == GPUS
    gather(outputs, 0).sum().backward()
    assert torch.allclose(layer.weight.grad.cpu(), x.sum(0).expand(3, 2))
    assert data_parallel(layer, x, [0, 1], output_device=2).device == CUDA_2


def test_comm_moves_whole_tensors(x):
    copies = comm.broadcast(x.cuda(0), [0, 1, 2])
    assert [copied.device for copied in copies] == GPUS
    assert torch.equal(comm.reduce_add([x.cuda(0), x.cuda(1)], 1).cpu(), 2 * x)
    (summed,) = comm.reduce_add_coalesced([[x.cuda(0)], [x.cuda(1)], [x.cuda(2)]], 0)
    assert torch.equal(summed.cpu(), 3 * x)
    mixed = [x.cuda(0), x.long().cuda(0), x.cuda(0)[:1]]
    for copies in comm.broadcast_coalesced(mixed, [0, 1, 2]):
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(copies, mixed, strict=True))
        assert [copied.dtype for copied in copies] == [torch.float32, torch.int64, torch.float32]


def test_comm_cuts_and_joins(x):
    assert [len(part) for part in comm.scatter(x, [0, 1], [2, 3])] == [2, 3]
    assert torch.equal(comm.gather(comm.scatter(x, [1, 2]), destination="cpu"), x)
    assert comm.gather([x.cuda(0), x[:, :1].cuda(1)], dim=-1).shape == (5, 3)
    assert [part.shape[1] for part in comm.scatter(x, [0, 1], dim=-1)] == [1, 1]


def test_comm_refuses_what_cuda_refuses(x):
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        comm.broadcast(x, ["cpu"])
    with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]: 1"):
        comm.broadcast_coalesced([x.cuda(0)], [1, 0])
    with pytest.raises(RuntimeError, match="but tensor at index 1 has device 'cpu'"):
        comm.gather([x.cuda(0), x])
    with pytest.raises(RuntimeError, match=r"Input tensor at index 1 has invalid shape \[5, 1\]"):
        comm.gather([x.cuda(0), x[:, :1].cuda(0)])


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


MODELS = {
    "LSTM": (nn.LSTM(2, 3, batch_first=True), torch.randn(4, 5, 2)),
    "sparse embedding": (nn.Embedding(6, 3, sparse=True), torch.tensor([[1], [2], [3], [1]])),
    "complex": (nn.Linear(2, 2, dtype=torch.cfloat), torch.randn(4, 2, dtype=torch.cfloat)),
}


@pytest.mark.parametrize("name", MODELS)
def test_data_parallel_equals_the_module_alone(name):
    module, inputs = copy.deepcopy(MODELS[name])
    alone = copy.deepcopy(module)
    model = nn.DataParallel(module.cuda())
    outputs, expected = model(inputs), alone(inputs)
    if name == "LSTM":
        outputs, expected = outputs[0], expected[0]
    torch.testing.assert_close(outputs.cpu(), expected, rtol=1e-4, atol=1e-5)
    outputs.abs().square().sum().backward()
    expected.abs().square().sum().backward()
    for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        assert ours.grad.is_sparse == theirs.grad.is_sparse
        grads = [(p.grad.to_dense() if p.grad.is_sparse else p.grad) for p in (ours, theirs)]
        torch.testing.assert_close(grads[0].cpu(), grads[1], rtol=1e-4, atol=1e-4)


def test_one_gpu_calls_the_module_directly(x):
    model = nn.DataParallel(nn.Linear(2, 2), device_ids=[1])
    assert model(x).device == CUDA_1
    assert copy.deepcopy(model)(x).device == CUDA_1
    assert set(model.state_dict()) == {"module.weight", "module.bias"}


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    ).double()


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs, labels.to(outputs.device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("count", "rows"), [(1, 3), (4, 3), (4, 17)])
def test_training_equals_training_without_gpus(count, rows):
    model = small_cnn()
    images = torch.randn(rows, 1, 8, 8, dtype=torch.float64)
    labels = torch.randint(0, 10, (rows,))
    on_cpu = copy.deepcopy(model)
    expected = train(on_cpu, images, labels)
    with virtual_gpus(count):
        losses = train(nn.DataParallel(model.to("cuda:0")), images, labels)
        model.cpu()
    assert losses == pytest.approx(expected, rel=1e-12)
    for ours, theirs in zip(model.parameters(), on_cpu.parameters(), strict=True):
        assert type(ours) is nn.Parameter
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
