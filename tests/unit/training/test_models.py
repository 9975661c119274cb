"""The small CNN: what goes in, what comes out, and that rows do not look at each other."""

import torch

from multigpu.data import digits
from multigpu.training.models import SmallCNN


def test_ten_scores_for_every_row():
    assert SmallCNN()(torch.rand(5, 1, 8, 8)).shape == (5, 10)


def test_it_has_the_number_of_parameters_that_its_docstring_says():
    number = sum(parameter.numel() for parameter in SmallCNN().parameters())
    assert f"{number:,} parameters" in SmallCNN.__doc__


def test_a_row_is_scored_the_same_alone_and_in_a_batch():
    torch.manual_seed(0)
    model, images = SmallCNN().double(), torch.rand(7, 1, 8, 8, dtype=torch.float64)
    one_by_one = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), one_by_one, rtol=0, atol=1e-12)


def test_it_learns_the_digits():
    torch.manual_seed(0)
    split, model = digits(), SmallCNN()
    images, labels = split.train.tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(12):
        for rows in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    images, labels = split.test.tensors
    assert (model(images).argmax(dim=1) == labels).double().mean() >= 0.95
