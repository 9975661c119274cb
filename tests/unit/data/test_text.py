"""The text: whole blocks, each byte followed by its next, nothing in training and test alike."""

import builtins
import pydoc_data
import sys

import pytest
import torch

from multigpu.data import text
from multigpu.data.datasets import topic_paragraphs


def test_each_byte_is_followed_by_its_next():
    for inputs, following in (data.tensors for data in text(block=50)):
        assert inputs.shape == following.shape == (len(inputs), 50)
        assert inputs.dtype == following.dtype == torch.int64
        assert following[:, :-1].equal(inputs[:, 1:])
        assert following[:-1, -1].equal(inputs[1:, 0])


def test_rows_are_the_text_in_its_order_without_a_gap():
    train = text(block=7).train.tensors[0]
    whole = b"".join(topic_paragraphs())
    assert bytes(train.flatten().tolist()) == whole[: train.numel()]


def test_no_paragraph_is_in_both_parts():
    train, test = (bytes(data.tensors[0].flatten().tolist()) for data in text())
    paragraphs = {part for part in test.split(b"\n\n")[1:-1] if len(part) > 20}
    assert len(paragraphs) > 100
    assert not paragraphs & set(train.split(b"\n\n"))
    assert 0.08 < len(test) / (len(train) + len(test)) < 0.12


def test_it_is_the_same_text_every_time():
    assert all(a.tensors[0].equal(b.tensors[0]) for a, b in zip(text(), text(), strict=True))


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


def test_a_python_without_the_topics_is_told_so(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.startswith("pydoc_data"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"pydoc_data\.topics"):
        text()


@pytest.mark.parametrize("block", [0, 10**6])
def test_a_block_that_cannot_be_is_refused(block):
    with pytest.raises(ValueError, match=str(block)):
        text(block=block)
