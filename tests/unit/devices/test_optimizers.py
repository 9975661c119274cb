"""Optimizers, schedulers, clipping and mixed precision."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1 = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("make", "settings", "how"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, {"foreach": False}),
        (torch.optim.SGD, {"momentum": 0.9}, {"foreach": True}),
        (torch.optim.Adam, {"amsgrad": True}, {}),
        (torch.optim.Adam, {"amsgrad": True}, {"fused": True}),
        (torch.optim.RMSprop, {}, {}),
    ],
)
def test_three_steps_equal_three_steps_on_the_cpu(make, settings, how):
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    inputs = torch.randn(5, 3, dtype=torch.float64)
    trained = []
    for device in ("cpu", "cuda:1"):
        model = copy.deepcopy(module).to(device)
        its_own = settings if device == "cpu" else settings | how
        optimizer = make(model.parameters(), lr=0.01, **its_own)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs.to(device)).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            scheduler.step()
        assert norm.device == torch.device(device)
        trained.append(model)
    for ours, theirs in zip(trained[1].parameters(), trained[0].parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-12)


def test_the_state_lies_with_the_parameters_and_can_be_loaded_again():
    layer = nn.Linear(3, 2).cuda(1)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3, device="cuda:1")).sum().backward()
    optimizer.step()
    assert all(value.is_cuda for value in optimizer.state[layer.weight].values() if value.ndim)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[layer.weight]["exp_avg"].device == CUDA_1
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_follows_cudas_rules(dtype):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).cuda(1)
    images = torch.randn(4, 1, 8, 8, device="cuda:1")
    labels = torch.tensor([0, 1, 2, 0], device="cuda:1")
    with torch.autocast("cuda", dtype=dtype):
        outputs = model(images)
        loss = functional.cross_entropy(outputs, labels)
        halves = [outputs, outputs @ outputs.t(), functional.relu(outputs)]
        floats = [loss, outputs.softmax(-1), outputs.sum(), outputs.exp()]
        floats += [functional.layer_norm(outputs, (3,)), functional.mse_loss(outputs, outputs)]
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32  # on the CPU
    assert {tensor.dtype for tensor in halves} == {dtype}
    assert {tensor.dtype for tensor in floats} == {torch.float32}
    loss.backward()
    assert model[0].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_knows_what_the_cpus_does_not(dtype):
    x, index = torch.rand(4, 4, device="cuda:1"), torch.arange(4, device="cuda:1")
    y = x.to(dtype)
    with torch.autocast("cuda", dtype=dtype):
        halves = [x.mv(x[0]), torch.addmv(x[0], x, x[0]), torch.addr(x, x[0], x[0])]
        halves += [nn.GRU(4, 4).cuda(1)(x)[0], nn.GRUCell(4, 4).cuda(1)(x)]
        halves += [nn.LSTM(4, 4).cuda(1)(pack_sequence([x]))[0].data]
        halves += [*nn.LSTMCell(4, 4).cuda(1)(x), y[0].dot(y[0]), torch.tensordot(y, y, 1)]
        floats = [functional.interpolate(y[None], scale_factor=2), torch.linalg.norm(y)]
        floats += [torch.linalg.vector_norm(y), torch.linalg.matrix_norm(y, 2)]
        floats += [nn.Bilinear(4, 4, 2).cuda(1)(y, y), x[0].dot(y[0]), torch.vdot(x[0], y[0])]
        floats += [torch.linalg.cross(x[:3], y[:3], dim=0), torch.tensordot(x, y, 1)]
        floats += [x.scatter_add(0, index[None], y[:1]), y.index_put((index,), x)]
    assert [tensor.dtype for tensor in halves] == [dtype] * len(halves)
    assert [tensor.dtype for tensor in floats] == [torch.float32] * len(floats)


def test_autocast_casts_nothing_that_is_written_to():
    x, y = torch.rand(4, 4, device="cuda:1"), torch.zeros(4, device="cuda:1")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.mv(x, x[0], out=y) is y
    assert torch.equal(y, x @ x[0])


def test_autocast_reaches_what_torch_func_holds():
    cell, x = nn.GRUCell(3, 3).cuda(1), torch.rand(2, 3, device="cuda:1")

    def total(parameters):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.func.functional_call(cell, parameters, (x,)).float().sum()

    gradients = torch.func.grad(total)(dict(cell.named_parameters()))
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}


def test_autocast_for_the_cpu_leaves_gpus_alone():
    layer, inputs = nn.Linear(2, 2).cuda(1), torch.ones(1, 2, device="cuda:1")
    with torch.autocast("cpu"):
        assert layer(inputs).dtype == torch.float32
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert layer(inputs).dtype == torch.float32


def test_autocast_refuses_what_cuda_refuses():
    probabilities = torch.rand(2, device="cuda:1")
    with (
        torch.autocast("cuda"),
        pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"),
    ):
        functional.binary_cross_entropy(probabilities, probabilities)


def test_autocast_reaches_the_replicas_and_layers_without_half_kernels():
    with torch.autocast("cuda"):
        outputs = nn.DataParallel(nn.Linear(3, 2).cuda(), [0, 1, 2])(torch.ones(6, 3))
        assert outputs.dtype == torch.float16
        hidden, _ = nn.LSTM(3, 4).cuda(1)(torch.ones(2, 1, 3, device="cuda:1"))
        assert hidden.device == CUDA_1


def test_a_grad_scaler_trains_and_skips_steps_that_overflow():
    layer = nn.Linear(3, 1).cuda(1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    inputs = torch.ones(2, 3, device="cuda:1")
    before = layer.weight.detach().clone()
    scaler.scale(layer(inputs).sum()).backward()
    assert torch.equal(layer.weight.grad.cpu(), torch.full((1, 3), 16.0))
    scaler.unscale_(optimizer)
    assert torch.equal(layer.weight.grad.cpu(), torch.full((1, 3), 2.0))
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(layer.weight.detach(), before - 0.2)
    optimizer.zero_grad()
    after = layer.weight.detach().clone()
    scaler.scale(layer(inputs).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(layer.weight.detach(), after)
    assert scaler.get_scale() == 4.0


def test_an_optimizer_older_than_the_move_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.cuda()
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu!"):
        optimizer.step()
