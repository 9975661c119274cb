"""A model that cannot be cut is refused: which operation, on which line, and what to do."""

import random
import re
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from multigpu.training import cut, cut_points


class Layer(nn.Module):
    """What each of the models below has; each has one line that no cut can live with."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))


class Branch(Layer):
    def forward(self, rows):
        if self.layer(rows).sum() > 0:
            rows = rows + 1
        return self.layer(rows)


class Item(Layer):
    def forward(self, rows):
        return self.layer(rows) * rows.max().item()


class Chosen(Layer):
    def forward(self, rows):
        return self.layer(rows[rows[:, 0] > 0])


class Rebound(Layer):
    def forward(self, rows):
        self.mean = 0.9 * self.mean + rows.mean(0)
        return self.layer(rows)


class Numpy(Layer):
    def forward(self, rows):
        return self.layer(torch.from_numpy(rows.numpy()))


class Listed(Layer):
    def __init__(self):
        super().__init__()
        self.masks = [torch.ones(4)]

    def forward(self, rows):
        return self.layer(rows * self.masks[0])


class Precise(Layer):
    def forward(self, rows):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(rows)


class Counting(Layer):
    calls = 0

    def forward(self, rows):
        Counting.calls += 1
        return self.layer(rows) * Counting.calls


@pytest.mark.parametrize(
    ("model", "line", "words"),
    [
        (Branch, "if self.layer(rows).sum() > 0:", r"numbers in a tensor.*torch\.where"),
        (Item, "rows.max().item()", "numbers in a tensor"),
        (Chosen, "rows[rows[:, 0] > 0]", r"\bsize\b.*torch\.where"),
        (Rebound, None, r"buffer mean\b.*self\.mean\.copy_"),
        (Numpy, "rows.numpy()", r"`.*numpy.*`.*numpy.*by hand"),
        (Listed, None, r"\(4,\).*buffer"),
        (Precise, None, "autocast"),
        (Counting, None, "between calls"),
    ],
)
def test_what_cannot_be_cut_is_named(model, line, words):
    with pytest.raises(ValueError, match="cannot be cut") as refused:
        cut(model(), torch.randn(5, 4), 2)
    assert re.search(words, str(refused.value)), refused.value
    if line is not None:
        assert re.search(r"test_partition_refusals\.py:\d+", str(refused.value))
        assert line in str(refused.value)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_line_of_another_package_is_named(package):
    file = str(Path(torch.__file__).parents[1] / package / "models.py")
    code = (
        "def forward(self, rows):\n"
        "    rows = self.layer(rows)\n"
        "    return rows if rows.sum() > 0 else -rows\n"
    )
    exec(compile(code, file, "exec"), made := {})
    model = type("OfAPackage", (Layer,), made)()
    with pytest.raises(ValueError, match=rf"{package}/models\.py:3\b.*numbers in a tensor"):
        cut(model, torch.randn(5, 4), 2, repeats=1)


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand])
@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_is_dropped_at_random_is_refused_whatever_is_drawn(draw, seed):
    class LayerDrop(Layer):
        def forward(self, rows):
            rows = self.layer(rows)
            return rows if self.training and draw() < 0.5 else rows + self.layer(rows)

    random.seed(seed)
    numpy.random.seed(seed)
    with pytest.raises(ValueError, match=r"cannot be cut.*random"):
        cut(LayerDrop(), torch.randn(5, 4), 2, repeats=1)


def test_more_stages_than_pieces_are_refused_with_the_number_of_pieces():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"3 stages\D*2 pieces\D*2\b"):
        cut(model, torch.randn(5, 4), 3, repeats=1)


def test_too_little_memory_is_refused_with_what_would_do():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    with pytest.raises(ValueError, match=r"2 stages.*1,000 B.*KiB"):
        cut(model, torch.randn(5, 64), 2, memory=1000, repeats=1)


def test_unknown_balances_schedules_and_counts_are_refused():
    points = cut_points(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(5, 4), repeats=1)
    with pytest.raises(ValueError, match=r"balance='speed'.*\btime, memory, layers\b"):
        points.cut(2, balance="speed")
    with pytest.raises(ValueError, match=r"schedule='fast'.*\b1f1b, gpipe\b"):
        points.cut(2, schedule="fast")
    with pytest.raises(ValueError, match=r"num_stages.*\b0\b"):
        points.cut(0)
    for each in (0, 3):
        with pytest.raises(ValueError, match=rf"stages_per_rank={each}\b.*\b2 stages\b"):
            points.cut(2, stages_per_rank=each)
    with pytest.raises(ValueError, match=r"memory .* with stages_per_rank=2\b.*one stage per rank"):
        points.cut(2, stages_per_rank=2, memory=10**9)
    with pytest.raises(ValueError, match=r"repeats=0\b.*\b1\b"):
        cut(nn.Linear(4, 4), torch.randn(5, 4), 1, repeats=0)
