"""Digits and text: their shapes, their splits, and that nothing is downloaded."""

import pydoc_data
import sys

import pytest
import torch

from multigpu.data import digits, text
from multigpu.data.datasets import topic_paragraphs


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


@pytest.mark.slow
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


def test_each_byte_is_followed_by_its_next():
    for inputs, following in (data.tensors for data in text(block=50)):
        assert inputs.shape == following.shape == (len(inputs), 50)
        assert inputs.dtype == following.dtype == torch.int64
        assert following[:, :-1].equal(inputs[:, 1:])
        assert following[:-1, -1].equal(inputs[1:, 0])


def test_no_paragraph_is_in_both_parts():
    train, test = (bytes(data.tensors[0].flatten().tolist()) for data in text())
    paragraphs = {part for part in test.split(b"\n\n")[1:-1] if len(part) > 20}
    assert len(paragraphs) > 100
    assert not paragraphs & set(train.split(b"\n\n"))
    assert 0.08 < len(test) / (len(train) + len(test)) < 0.12


@pytest.mark.parametrize(
    "topics",
    [{"b": "two\r\n\r\none", "a": "one\n\nthree"}, [("a", "one\n\nthree"), ("b", "two\n\none")]],
)
def test_topics_of_another_python_are_read_alike(monkeypatch, topics):
    other = type(sys)("pydoc_data.topics")
    other.topics = topics
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", other)
    monkeypatch.setattr(pydoc_data, "topics", other, raising=False)
    assert topic_paragraphs() == [b"one\n\n", b"three\n\n", b"two\n\n"]
