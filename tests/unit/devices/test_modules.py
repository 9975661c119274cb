"""Modules: moved, copied, saved, and each kind of layer once."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1, CUDA_2 = torch.device("cuda", 1), torch.device("cuda", 2)
CPU = torch.device("cpu")


def devices(module: nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in (*module.parameters(), *module.buffers())}


@pytest.fixture
def module() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


def test_parameters_stay_the_same_objects_wherever_they_go(module):
    before = [id(parameter) for parameter in module.parameters()]
    for move in ("cuda:1", "cuda:2", "cpu", 0):
        module.to(move)
        assert [id(parameter) for parameter in module.parameters()] == before
        assert devices(module) == {torch.device(move)}
        assert all(isinstance(p, nn.Parameter) and p.is_leaf for p in module.parameters())
        assert all(p.requires_grad for p in module.parameters())


def test_all_forms_of_module_to(module):
    module.to(device="cuda:1", dtype=torch.float64, non_blocking=True)
    assert devices(module) == {CUDA_1}
    assert module[0].weight.dtype == torch.float64
    module.to(torch.float32)
    assert (module[0].weight.dtype, devices(module)) == (torch.float32, {CUDA_1})
    module.to(torch.zeros(1, dtype=torch.float64, device="cuda:2"))
    assert (module[0].weight.dtype, devices(module)) == (torch.float64, {CUDA_2})
    assert devices(module.cuda(1).half()) == {CUDA_1}
    assert devices(nn.Linear(2, 2, device="meta").to_empty(device="cuda:1")) == {CUDA_1}


def test_gradients_and_a_living_graph_go_along(module):
    loss = module(torch.randn(2, 1, 5, 5)).square().sum()
    loss.backward()
    before = module[0].weight.grad.clone()
    module.cuda(1)
    assert module[0].weight.grad.device == CUDA_1
    assert torch.equal(module[0].weight.grad.cpu(), before)
    again = module(torch.randn(2, 1, 5, 5, device="cuda:1")).sum()
    module.cpu()
    assert torch.equal(module[0].weight.grad, before)
    assert again.device == CUDA_1


def test_hooks_of_a_parameter_go_along(module):
    weight, seen = module[0].weight, []
    handle = weight.register_hook(lambda gradient: gradient * 0)
    weight.register_post_accumulate_grad_hook(lambda each: seen.append(each.device))
    for move in (CUDA_1, CUDA_2, CPU):
        module.to(move)
        weight.grad = None
        module(torch.randn(2, 1, 5, 5, device=move)).square().sum().backward()
        assert weight.grad.count_nonzero() == 0
    assert seen == [CUDA_1, CUDA_2, CPU]
    handle.remove()
    module.to(CUDA_1)(torch.randn(2, 1, 5, 5, device=CUDA_1)).square().sum().backward()
    assert weight.grad.count_nonzero() > 0


def test_assigned_data_and_state_dicts_move_a_parameter(module):
    weight = module[0].weight
    weight.note = "kept"
    weight.data = weight.data.cuda(1)
    assert module[0].weight is weight
    assert (weight.device, weight.note) == (CUDA_1, "kept")
    weight.data = torch.zeros(2, 1, 3, 3, device="cuda:1")
    assert weight.sum().item() == 0
    module.load_state_dict(copy.deepcopy(module).cuda(2).state_dict())
    assert weight.device == CUDA_1
    module.load_state_dict(copy.deepcopy(module).cuda(2).state_dict(), assign=True)
    assert devices(module) == {CUDA_2}


def test_deep_copies_are_independent_on_the_same_gpu_and_tied_weights_stay_tied():
    module = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    module[1].weight = module[0].weight
    module.cuda(1)
    assert module[1].weight is module[0].weight
    copied = copy.deepcopy(module)
    assert devices(copied) == {CUDA_1}
    assert copied[1].weight is copied[0].weight
    with torch.no_grad():
        copied[0].weight.zero_()
    assert module[0].weight.abs().sum() > 0
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(module[0].weight * 2)


def test_a_deep_copy_of_a_parameter_has_its_numbers_alone(machine):
    whole = torch.ones(100, 4, device="cuda:1")
    part = nn.Parameter(whole[:2])
    part.note = "not copied"
    part.sum().backward()
    before = machine.memory(1).allocated
    copied = copy.deepcopy(part)
    assert machine.memory(1).allocated - before == copied.untyped_storage().nbytes() == part.nbytes
    assert isinstance(copied, nn.Parameter)
    assert torch.equal(copied, part)
    assert copied.grad is None
    assert not hasattr(copied, "note")


def test_copies_of_tensors_share_what_their_originals_share():
    whole = torch.zeros(4, device="cuda:1")
    assert whole.untyped_storage().clone().device == CUDA_1
    whole_twin, half_twin = copy.deepcopy((whole, whole[:2]))
    half_twin += 1
    assert whole_twin.tolist() == [1, 1, 0, 0]
    assert whole.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "place",
    [
        lambda make: make(device="cuda:1"),
        lambda make: make().cuda(1).float(),
        lambda make: make().cuda(0).to("cpu").to("cuda:1"),
    ],
)
@pytest.mark.parametrize("make", [partial(nn.LazyLinear, 4), nn.LazyBatchNorm1d])
def test_lazy_modules_get_their_shape_on_their_gpu(make, place):
    lazy = place(make)
    assert lazy.has_uninitialized_params()
    assert {each.device for each in lazy.parameters()} == {CUDA_1}
    lazy(torch.ones(3, 5, device="cuda:1")).sum().backward()
    assert devices(lazy) == {CUDA_1}
    assert lazy.weight.grad.device == CUDA_1
    again = place(make)
    again.load_state_dict(lazy.state_dict())
    assert torch.equal(again.weight, lazy.weight)


def test_a_copied_lazy_module_is_on_the_same_gpu():
    lazy = copy.deepcopy(nn.LazyLinear(4).cuda(1))
    assert lazy(torch.ones(3, 5, device="cuda:1")).device == CUDA_1


def test_a_lazy_module_goes_back_to_the_cpu():
    assert nn.LazyLinear(4).cuda(1).cpu()(torch.ones(3, 5)).device == CPU


def test_functions_of_the_user_inside_torchs_get_tensors_on_gpus():
    seen = []

    def distance(a, b):
        seen.append((a.device, torch.zeros(1, device=a.device).device, torch.zeros(1).device))
        return (a - b).norm(dim=1)

    x, y, z = (torch.randn(4, 3, device="cuda:1", requires_grad=True) for _ in range(3))
    loss = nn.functional.triplet_margin_with_distance_loss(x, y, z, distance_function=distance)
    assert seen == [(CUDA_1, CUDA_1, CPU)] * 2
    loss.backward()
    assert x.grad.device == CUDA_1
    nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance())(x, y, z)
    torch.lobpcg(torch.eye(9, device="cuda:1"), tracker=lambda worker: seen.append(worker.X.device))
    assert seen[-1] == CUDA_1


LAYERS = {
    "LSTM": (nn.LSTM(3, 4, 2, dropout=0.1, bidirectional=True), (2, 5, 3)),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (4, 2, 8)),
    "BatchNorm1d": (nn.BatchNorm1d(3), (2, 3)),
    "ConvTranspose2d": (nn.ConvTranspose2d(3, 2, 3), (2, 3, 4, 4)),
    "MaxPool2d": (nn.MaxPool2d(2, return_indices=True), (2, 3, 4, 4)),
    "AlphaDropout": (nn.AlphaDropout(), (2, 3)),
    "spectral_norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), (1, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_forward_and_backward_on_its_gpu(name):
    layer, shape = copy.deepcopy(LAYERS[name])
    layer.cuda(1)
    inputs = torch.randn(shape, device="cuda:1", requires_grad=True)
    outputs = torch.utils._pytree.tree_leaves(layer(inputs))
    assert {output.device for output in outputs} == {CUDA_1}
    outputs[0].sum().backward()
    gradients = [inputs.grad, *(parameter.grad for parameter in layer.parameters())]
    assert {gradient.device for gradient in gradients} == {CUDA_1}


def test_a_transformer_in_evaluation_mode():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    inputs = torch.randn(2, 4, 8)
    expected = encoder.eval()(inputs)
    with torch.no_grad():
        outputs = encoder.cuda(1)(inputs.cuda(1))
    assert outputs.device == CUDA_1
    torch.testing.assert_close(outputs.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_packed_sequences_keep_their_batch_sizes_on_the_cpu():
    lstm = nn.LSTM(3, 4, batch_first=True).cuda(1)
    inputs = torch.randn(2, 5, 3, device="cuda:1")
    packed = pack_padded_sequence(inputs, torch.tensor([5, 3]), batch_first=True)
    assert (packed.data.device, packed.batch_sizes.device) == (CUDA_1, CPU)
    outputs, lengths = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    assert (outputs.device, lengths.device, lengths.tolist()) == (CUDA_1, CPU, [5, 3])
    outputs.sum().backward()
    assert lstm.weight_ih_l0.grad.device == CUDA_1


def test_connectionist_loss_takes_its_lengths_from_the_cpu():
    log_probs = torch.randn(5, 2, 4).log_softmax(-1)
    targets = torch.tensor([[1, 2], [1, 3]])
    lengths = (torch.tensor([5, 5]), torch.tensor([2, 2]))
    expected = nn.functional.ctc_loss(log_probs, targets, *lengths)
    loss = nn.functional.ctc_loss(log_probs.cuda(1), targets.cuda(1), *lengths)
    assert loss.item() == pytest.approx(expected.item())


def saved(thing: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CUDA_1),
        ({"map_location": "cpu"}, CPU),
        ({"map_location": torch.device("cuda", 2)}, CUDA_2),
        ({"map_location": {"cuda:1": "cuda:2"}}, CUDA_2),
        ({"map_location": lambda storage, location: storage}, CPU),
        ({"map_location": lambda storage, location: storage.cuda(2)}, CUDA_2),
    ],
)
def test_a_checkpoint_is_loaded_where_it_is_asked_for(options, expected):
    layer = nn.Linear(3, 3).cuda(1)
    checkpoint = {"model": layer.state_dict(), "weight": layer.weight, "epoch": 3}
    loaded = torch.load(saved(checkpoint), **options)
    assert loaded["model"]["weight"].device == loaded["weight"].device == expected
    assert isinstance(loaded["weight"], nn.Parameter)
    assert torch.equal(loaded["model"]["bias"].cpu(), layer.bias.detach().cpu())


def test_saved_views_still_share_their_storage():
    base = torch.zeros(4, device="cuda:1")
    base_again, view_again = torch.load(saved([base, base[::2]]))
    view_again.fill_(1)
    assert base_again.tolist() == [1, 0, 1, 0]
    assert base_again.device == CUDA_1
    assert pickle.loads(pickle.dumps(base[1:])).device == CUDA_1
    assert torch.load(saved(torch.eye(3).to_sparse().cuda(1))).device == CUDA_1
    whole = torch.load(saved(nn.Linear(2, 2).cuda(1)), weights_only=False)
    assert whole.weight.device == CUDA_1


def test_a_checkpoint_for_a_gpu_that_is_not_there_is_refused():
    checkpoint = saved({"weight": torch.ones(2, device="cuda:2")})
    checkpoint = io.BytesIO(checkpoint.getvalue().replace(b"cuda:2", b"cuda:7"))
    with pytest.raises(RuntimeError, match=r"Attempting to deserialize object on .* device 7"):
        torch.load(checkpoint)


def test_storages_say_where_they_are():
    x = torch.arange(6.0, device="cuda:1")
    assert x.untyped_storage().device == CUDA_1
    assert x.untyped_storage().nbytes() == 24
    assert x[2:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr() == x.data_ptr()
    assert torch.Tensor.data_ptr(x) == x.data_ptr()
    y = torch.zeros(1, device="cuda:1").set_(x.untyped_storage())
    assert y.tolist() == x.tolist()


def test_a_view_made_in_inference_mode_stays_an_ordinary_tensor():
    tensor = torch.ones(2, 2, device="cuda:1", requires_grad=True) * 2
    with torch.inference_mode():
        seen, result = tensor.chunk(2)[1], tensor + 1
    assert not seen.is_inference()
    assert result.is_inference()
    assert seen.tolist() == [[2, 2]]
