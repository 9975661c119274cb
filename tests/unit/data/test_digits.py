"""The digits: shapes, values, and a split that neither loses nor repeats a row."""

import torch

from multigpu.data import digits


def rows(dataset):
    images, labels = dataset.tensors
    return [
        (tuple(image.flatten().tolist()), int(label))
        for image, label in zip(images, labels, strict=True)
    ]


def test_images_are_float32_from_0_to_1_and_labels_int64():
    for dataset in digits():
        images, labels = dataset.tensors
        assert images.shape == (len(labels), 1, 8, 8)
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert images.min() == 0.0
        assert images.max() == 1.0
        assert set(labels.tolist()) == set(range(10))


def test_every_row_is_either_for_training_or_for_testing():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    original = [
        (tuple((image / 16).flatten().tolist()), int(label))
        for image, label in zip(bunch.images, bunch.target, strict=True)
    ]
    train, test = digits()
    assert len(test) == 360
    assert sorted(rows(train) + rows(test)) == sorted(original)


def test_a_seed_gives_its_own_split_and_leaves_the_global_one_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = digits(seed=3), digits(seed=3), digits(seed=4)
    assert torch.equal(torch.rand(3), expected)
    assert rows(first.test) == rows(again.test)
    assert rows(first.test) != rows(other.test)
