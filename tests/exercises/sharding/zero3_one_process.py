"""What one process computes on the rows of all ranks, and how much of it a layer is."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss

from .zero3_driving import LEARNING_RATE, MOMENTUM
from .zero3_meter import Meter


@dataclass(frozen=True)
class Step:
    """One training step: each rank's outputs, each rank's own gradients, and the weights before."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]  # of each rank: all parameters side by side
    weights: dict[str, torch.Tensor]

    @property
    def mean(self):
        """The gradient of the whole batch, all parameters side by side."""
        return sum(self.gradients) / len(self.gradients)


@dataclass(frozen=True)
class Right:
    """A training, and forward in eval mode after the first step and after the last."""

    steps: list[Step]
    weights_after: list[dict[str, torch.Tensor]]  # by step
    evaluated: list[list[torch.Tensor]]  # by rank


@contextmanager
def one_thread():
    """Sums as small as these are quicker in one thread than in threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def train(model_of, steps, evaluation):
    """Train rank 0's model on the rows of all ranks."""
    model = model_of(0)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, LEARNING_RATE, momentum=MOMENTUM)
    right = Right([], [], [])
    for s, ranks in enumerate(steps):
        step = Step([], [], weights_of(model))
        for inputs, named, targets in ranks:
            outputs = model(*inputs, **named)
            found = torch.autograd.grad(mse_loss(outputs, targets), parameters)
            step.outputs.append(outputs.detach())
            step.gradients.append(flat(found))
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, piece in zip(parameters, step.mean.split(sizes), strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
        right.steps.append(step)
        right.weights_after.append(weights_of(model))
        if s in (0, len(steps) - 1):
            right.evaluated.append(evaluate(model, evaluation))
    return right


@torch.no_grad()
def evaluate(model, evaluation):
    model.eval()
    outputs = [model(*inputs, **named) for inputs, named, _ in evaluation]
    model.train()
    return outputs


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@torch.no_grad()
def outputs_with(model_of, weights, rows, *, training=True):
    """What one rank's rows give with other weights."""
    model = model_of(0).train(training)
    model.load_state_dict(weights)
    inputs, named, _ = rows
    return model(*inputs, **named)


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@dataclass(frozen=True)
class Sizes:
    """How many elements a rank may hold of a model on n ranks.

    ``shards``: each parameter's ⌈elements/n⌉.  ``whole``: all of them, filled up.  ``two``: the two
    largest layers, and those that have layers inside.  ``activations``: what forward needs besides,
    as measured with the module itself.
    """

    shards: int
    whole: int
    largest: int
    two: int
    layers: int
    activations: int

    @property
    def weights(self):
        return self.shards + self.two

    @property
    def in_backward(self):
        """Beside the weights: gradients of two layers, each once more on its way."""
        return self.shards + 2 * self.two + self.activations


@one_thread()
def sizes_of(model_of, world, rows):
    model = model_of(0)
    filled = {}  # layers and their elements
    inside = 0
    for part in model.modules():
        own = [-(-p.numel() // world) * world for p in part.parameters(recurse=False)]
        if own:
            filled[part] = sum(own)
            if len(list(part.parameters())) > len(own):
                inside += sum(own)
    by_size = sorted(filled.values(), reverse=True)
    whole = sum(by_size)
    shards = sum(-(-p.numel() // world) for p in model.parameters())
    two = sum(by_size[:2]) + inside
    return Sizes(shards, whole, by_size[0], two, len(by_size), activations(model, rows))


def activations(model, rows):
    """Twice what the module itself keeps for backward, for what a wrapper adds to it."""
    inputs, named, _ = rows
    meter = Meter(None)
    with meter:
        for parameter in model.parameters():
            meter.see(parameter, weights=True)
        model(*inputs, **named)
    return 2 * meter.peak.others
