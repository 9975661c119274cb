"""A model in stages computes what it computes whole: values, gradients, names, modes."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from multigpu.training import cut, cut_points
from multigpu.training.models import LargeCNN, SmallGPT, SmallViT
from multigpu.training.stage import chain_of

from .models_to_partition import Mixed, Named, Translator, Turned, UNet

ROWS = 5


def sample_of(name):
    torch.manual_seed(0)
    words = torch.randint(0, 50, (2, ROWS, 6))
    return {
        "cnn": (torch.randn(ROWS, 1, 8, 8),),
        "gpt": (torch.randint(0, 256, (ROWS, 16)),),
        "vit": (torch.randn(ROWS, 1, 8, 8),),
        "unet": (torch.randn(ROWS, 1, 8, 8),),
        "translator": (words[0], words[1, :, :4]),
        "named": ({"x": torch.randn(ROWS, 4), "weight": torch.rand(ROWS)}, None),
        "mixed": (torch.randn(ROWS, 3, 8),),
        "turned": (torch.randn(ROWS, 3, 8),),
    }[name]


MODELS = {
    "cnn": LargeCNN,
    "gpt": lambda: SmallGPT(width=16, depth=2),
    "vit": lambda: SmallViT(width=16, depth=2),
    "unet": UNet,
    "translator": Translator,
    "named": Named,
    "mixed": Mixed,
    "turned": Turned,
}


@pytest.fixture(scope="module")
def points():
    """Each model measured once: `points(name)`."""
    known = {}

    def of(name):
        if name not in known:
            torch.manual_seed(1)
            known[name] = cut_points(MODELS[name](), sample_of(name), repeats=1)
        return known[name]

    return of


def chain(modules, inputs):
    """Call one stage after the other."""
    for module in modules:
        outputs = module(*inputs)
        inputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return outputs


def run(call, model, inputs):
    """The outputs and the gradients of one call, from the same random numbers and buffers."""
    before = copy.deepcopy(model.state_dict())
    model.zero_grad()
    torch.manual_seed(2)
    outputs = tree_leaves(call(inputs))
    sum(output.square().sum() for output in outputs).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    after = copy.deepcopy(model.state_dict())
    model.load_state_dict(before)
    return outputs, gradients, after


def assert_same(one, other):
    for left, right in zip(one, other, strict=True):
        if left is None or right is None:
            assert left is right
        else:
            torch.testing.assert_close(left, right)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_stages_compute_what_the_model_computes(points, name, training):
    found = points(name)
    model, stages = found.model, found.cut(min(3, found.num_pieces))
    for module in (model, *stages.modules):
        module.train(training)
    whole = run(lambda given: model(*given), model, sample_of(name))
    parts = run(lambda given: chain(stages.modules, given), model, sample_of(name))
    assert_same(whole[0], parts[0])
    assert_same(whole[1], parts[1])
    assert_same(whole[2].values(), parts[2].values())  # BatchNorm's buffers and the like


@pytest.mark.parametrize(
    "name", [pytest.param("gpt", marks=pytest.mark.slow), "unet", "named", "turned"]
)
def test_a_cut_at_any_place_gives_the_same(points, name):
    found = points(name)
    model, end = found.model, found.places[-1]
    for training in (True, False):
        model.train(training)
        whole, *_ = run(lambda given: model(*given), model, sample_of(name))
        for place in found.places[1:-1]:
            modules = chain_of(model, found.program, (0, place, end))
            parts, *_ = run(functools.partial(chain, modules), model, sample_of(name))
            assert_same(parts, whole)


@pytest.mark.parametrize("name", MODELS)
def test_stages_have_the_names_of_the_model(points, name):
    found = points(name)
    stages = found.cut(2).modules
    names = [key for stage in stages for key in stage.state_dict()]
    assert set(names) == set(found.model.state_dict())
    for stage in stages:
        for key, tensor in stage.state_dict().items():
            assert torch.equal(tensor, found.model.state_dict()[key])


def test_tied_weights_are_named_with_the_stages_that_hold_them(points):
    assert points("gpt").cut(2).tied == [("bytes.weight", (0, 1))]
    assert points("cnn").cut(2).tied == []


def test_cutting_leaves_the_model_and_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    model, sample = UNet(), torch.randn(4, 1, 8, 8)
    model.down1.eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    cut(model, sample, 2, repeats=1)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_frozen_parameters_stay_frozen_and_get_no_gradient():
    model = LargeCNN()
    model.features[0].requires_grad_(False)
    stages = cut(model, torch.randn(4, 1, 8, 8), 2, repeats=1)
    chain(stages.modules, (torch.randn(4, 1, 8, 8),)).sum().backward()
    assert model.features[0].weight.grad is None
    assert model.classifier.weight.grad is not None
    assert stages.costs[0].gradient_bytes < stages.costs[0].weight_bytes


@pytest.mark.gpu
def test_a_model_on_the_cpu_can_be_measured_on_a_gpu():
    stages = cut(SmallGPT(), torch.randint(0, 256, (4, 64)), 2, device="cuda", repeats=1)
    assert all(parameter.device.type == "cpu" for parameter in stages.modules[0].parameters())
    first = stages.modules[0].to("cuda")
    sent = first(torch.randint(0, 256, (4, 64), device="cuda"))
    assert all(tensor.device.type == "cuda" for tensor in tree_leaves(sent))


class Bytes(nn.Module):
    """A GPT of PyTorch's own layers."""

    def __init__(self):
        super().__init__()
        self.bytes = nn.Embedding(256, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(32, 256)

    def forward(self, numbers):
        mask = nn.Transformer.generate_square_subsequent_mask(numbers.shape[1])
        hidden = self.bytes(numbers)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def test_hooks_of_the_model_and_of_its_layers_run():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    for module in (model, model[0]):
        module.register_forward_hook(lambda _, __, output: 2 * output)
    rows = torch.randn(5, 4)
    stages = cut(model, rows, 2, repeats=1)
    torch.testing.assert_close(chain(stages.modules, (rows,)), model(rows))


def test_layers_may_be_called_last_and_graphs():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.graphs, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, rows):
            return self.last(self.graphs(rows))

    first, second = cut(Layers(), torch.randn(5, 4), 2, repeats=1).modules
    assert [*first.state_dict()] == ["graphs.weight", "graphs.bias"]
    assert [*second.state_dict()] == ["last.weight", "last.bias"]


def test_rows_of_another_number_are_refused():
    """Their number may be anywhere in the graph, as in a mean that forward computes itself."""
    first, _ = cut(LargeCNN(), torch.randn(4, 1, 8, 8), 2, repeats=1).modules
    with pytest.raises(ValueError, match=r"\(4, 1, 8, 8\).*got.*\(3, 1, 8, 8\)"):
        first(torch.randn(3, 1, 8, 8))


@pytest.mark.parametrize("seed", range(4))
def test_scores_near_0_may_be_off_by_rounding(seed):
    torch.manual_seed(seed)
    assert len(cut(Bytes(), torch.randint(0, 256, (8, 32)), 2, repeats=1)) == 2
