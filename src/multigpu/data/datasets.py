"""Images and text to train on, small enough for a laptop; nothing is downloaded.

`digits` are the 1,797 handwritten digits of 8 x 8 gray values that come with scikit-learn, so small
that every step of the course runs in milliseconds: the test part of "Optical Recognition of
Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998).

`text` is the documentation that comes with every CPython, such as the text of ``help("for")``:
about 370 kB of English and code, without repeated paragraphs. The text differs slightly between
Python versions.
"""

from importlib.metadata import distribution
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

TEST_SIZE = 360  # rows; the other 1,437 are for training
FILE = "sklearn/datasets/data/digits.csv.gz"  # in scikit-learn, which takes a second to import
NUM_BYTES = 256  # values of a byte: the classes of the next one
TEST_SHARE = 0.1


class Split(NamedTuple):
    """Rows to train on, and rows the model has never seen."""

    train: TensorDataset
    test: TensorDataset


def digits(seed: int = 0) -> Split:
    """Load the digits and split them at random into 1,437 training and 360 test rows.

    Each row is `(image, label)`: the image float32 of shape (1, 8, 8) with values from 0 to 1, the
    label int64 from 0 to 9. `dataset.tensors` gives all images and all labels at once, on the CPU.
    The same `seed` gives the same split; torch's global random state is left alone.
    """
    table = np.loadtxt(
        str(distribution("scikit-learn").locate_file(FILE)), dtype=np.float32, delimiter=","
    )
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16  # (1797, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1]).to(torch.int64)  # (1797,)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SIZE], order[TEST_SIZE:]
    return Split(
        train=TensorDataset(images[train], labels[train]),
        test=TensorDataset(images[test], labels[test]),
    )


def text(*, block: int = 64) -> Split:
    """Load the topics as rows of `block` bytes; the last tenth of the text is for testing.

    Each row is `(bytes, next_bytes)`, both int64 of shape (block,) with values from 0 to 255;
    ``next_bytes[i]`` follows ``bytes[i]``. Rows do not overlap, and no paragraph is in both parts.
    An incomplete last row is left out. The same Python version gives the same rows.
    """
    paragraphs = topic_paragraphs()
    size = sum(map(len, paragraphs))
    train, test, done = bytearray(), bytearray(), 0
    for paragraph in paragraphs:
        (train if done < (1 - TEST_SHARE) * size else test).extend(paragraph)
        done += len(paragraph)
    return Split(train=_blocks(train, block), test=_blocks(test, block))


def topic_paragraphs() -> list[bytes]:
    """The paragraphs of all topics, in alphabetical order of the topics, each only once.

    Topics repeat each other word by word: "compound" has all of "for" and "while". Left in, a
    model would be tested on text that it was trained on.

    Raises ModuleNotFoundError where this Python has no ``pydoc_data``, as in some slim builds.
    """
    try:
        from pydoc_data import topics  # large, so only here
    except ImportError as missing:
        raise ModuleNotFoundError(
            "this Python has no pydoc_data.topics, the text to train on. "
            "A Python from python.org, conda or uv has it (Debian: apt install python3-doc)"
        ) from missing
    found = dict(topics.topics)
    lines = "\n\n".join(str(found[name]) for name in sorted(found))
    paragraphs = lines.replace("\r\n", "\n").split("\n\n")
    once = dict.fromkeys(part.strip("\n") for part in paragraphs if part.strip())
    return [f"{paragraph}\n\n".encode() for paragraph in once]


def _blocks(data: bytearray, block: int) -> TensorDataset:
    """All whole rows of `data`: int64 of shape (rows, block), and the same shifted by one."""
    rows = (len(data) - 1) // block  # the last byte of a row must have one after it
    numbers: Tensor = torch.frombuffer(data, dtype=torch.uint8).long()
    inputs = numbers[: rows * block].view(rows, block)
    targets = numbers[1 : rows * block + 1].view(rows, block)
    return TensorDataset(inputs, targets.clone())
