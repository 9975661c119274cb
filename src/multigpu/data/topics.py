"""Text for a small language model: the documentation topics that every CPython brings along.

They are what ``help("for")`` shows: ``pydoc_data.topics``, about 370 kB of English and code without
paragraphs that come twice. A row is a block of bytes, and the same block one byte later: after each
byte the model says which comes next.
Nothing is downloaded. Another Python version has a slightly different text.
"""

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from multigpu.data.split import Split

NUM_BYTES = 256  # values of a byte: the classes of the next one
TEST_SHARE = 0.1


def text(*, block: int = 64) -> Split:
    """Load the topics as rows of `block` bytes; the last tenth of the text is for testing.

    Each row is `(bytes, next_bytes)`, both int64 of shape (block,) with values from 0 to 255;
    ``next_bytes[i]`` follows ``bytes[i]``. Rows do not overlap, and no paragraph is in both parts.
    What does not fill a last row is left out. The same Python version gives the same rows.

    Raises ValueError if `block` is less than 1 or a part of the text has no block of that length.
    """
    if block < 1:
        raise ValueError(f"block must be at least 1 byte, got {block}")
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

    Raises ModuleNotFoundError where this Python has no ``pydoc_data``, as some slim ones do.
    """
    try:
        from pydoc_data import topics  # large, so only here
    except ImportError as missing:
        raise ModuleNotFoundError(
            "this Python came without pydoc_data.topics, the text to train on; "
            "a Python from python.org, conda or uv has it (Debian: apt install python3-doc)"
        ) from missing
    found = dict(topics.topics)
    lines = "\n\n".join(str(found[name]) for name in sorted(found))
    paragraphs = lines.replace("\r\n", "\n").split("\n\n")
    once = dict.fromkeys(part.strip("\n") for part in paragraphs if part.strip())
    return [f"{paragraph}\n\n".encode() for paragraph in once]


def _blocks(data: bytearray, block: int) -> TensorDataset:
    """All whole rows of `data`: int64 of shape (rows, block), and the same shifted by one."""
    rows = (len(data) - 1) // block  # the last byte of a row must have one after it
    if rows < 1:
        raise ValueError(f"block must be shorter: {block} bytes, where a part has {len(data)}")
    numbers: Tensor = torch.frombuffer(data, dtype=torch.uint8).long()
    inputs = numbers[: rows * block].view(rows, block)
    targets = numbers[1 : rows * block + 1].view(rows, block)
    return TensorDataset(inputs, targets.clone())
