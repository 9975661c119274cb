"""The models: what goes in, what comes out, and that rows do not look at each other."""

import pytest
import torch
from torch import nn

from multigpu.data.flight_rows import NO_FLIGHT
from multigpu.training.models import (
    LargeCNN,
    NextDestination,
    SmallCNN,
    SmallGPT,
    SmallViT,
    TinyMLP,
    next_byte_loss,
)


def images(rows):
    return torch.rand(rows, 1, 8, 8)


def histories(rows):
    """Rows of the flights, some with a short history."""
    inputs = torch.randint(0, NO_FLIGHT, (rows, 34))
    inputs[:, 0] %= 3
    inputs[:, 1] %= 16
    inputs[::2, 2:20] = NO_FLIGHT
    return inputs


def blocks(rows):
    return torch.randint(0, 256, (rows, 64))


MODELS = {  # a model, rows for it, and the shape of a row's scores
    SmallCNN: (images, (10,)),
    LargeCNN: (images, (10,)),
    TinyMLP: (images, (10,)),
    NextDestination: (histories, (104,)),
    SmallGPT: (blocks, (64, 256)),
    SmallViT: (images, (10,)),
}
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)


@every_model
def test_every_row_has_its_scores(model):
    rows, shape = MODELS[model]
    assert model()(rows(5)).shape == (5, *shape)


@every_model
def test_it_has_the_number_of_parameters_that_its_docstring_says(model):
    number = sum(parameter.numel() for parameter in model().parameters())
    assert f"{number:,} parameters" in model.__doc__


@every_model
def test_a_row_is_scored_the_same_alone_and_in_a_batch(model):
    torch.manual_seed(0)
    network, inputs = model().double(), MODELS[model][0](7)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    one_by_one = torch.cat([network(row[None]) for row in inputs])
    torch.testing.assert_close(network(inputs), one_by_one, rtol=0, atol=1e-12)


@pytest.mark.gpu
@every_model
def test_a_real_gpu_computes_what_the_cpu_does(model):
    torch.manual_seed(0)
    network, inputs = model().double(), MODELS[model][0](5)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    expected = network(inputs)
    found = network.to("cuda")(inputs.to("cuda")).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_destination_flown_to_more_often_or_later_is_likelier():
    model = NextDestination()
    for parameter in model.perceptron.parameters():
        nn.init.zeros_(parameter)  # what is left only copies
    inputs = torch.tensor([[0, 0, *[NO_FLIGHT] * 26, 7, 7, 9, 8, 6, 6]])
    scores = model(inputs)[0]
    assert scores.topk(4).indices.tolist() == [6, 7, 8, 9]
    assert scores[50] == 0
    assert scores[9] > 0


def test_a_byte_knows_nothing_of_the_bytes_after_it():
    torch.manual_seed(0)
    model, inputs = SmallGPT().double(), blocks(2)
    changed = inputs.clone()
    changed[:, 40:] = 0
    before, after = model(inputs), model(changed)
    assert before[:, :40].equal(after[:, :40])
    assert not before[:, 40:].equal(after[:, 40:])


def test_the_gpt_starts_without_a_preference_and_its_weights_are_tied():
    torch.manual_seed(0)
    model, inputs = SmallGPT(), blocks(4)
    assert next_byte_loss(model(inputs), inputs.roll(-1)).item() == pytest.approx(5.545, abs=0.1)
    assert model.head.weight is model.bytes.weight
    assert "head.weight" not in dict(model.named_parameters())
