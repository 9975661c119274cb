"""A small GPT over bytes: the kind of model that sharding and pipelines are made for."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multigpu.data.datasets import NUM_BYTES


class SmallGPT(nn.Module):
    """A decoder-only transformer that predicts the next byte; 220,544 parameters by default.

    Like GPT-2 (Radford et al. 2019) it normalises before each part, and the embedding of a byte and
    its score share one matrix. Such tied weights test anything that splits a model. There is no
    dropout, so what it computes for a row does not depend on the other rows.
    """

    def __init__(
        self,
        *,
        block: int = 64,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        vocabulary: int = NUM_BYTES,
    ) -> None:
        """Read at most `block` bytes; `depth` layers of `width` channels in `heads` heads.

        With another `vocabulary` it reads so many different words in the place of bytes.
        Raises ValueError if `width` is not a multiple of `heads`.
        """
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of the {heads} heads, got {width}")
        self.block = block
        self.bytes = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        self.head.weight = self.bytes.weight

    def forward(self, numbers: Tensor) -> Tensor:
        """Bytes in, int64 (rows, length ≤ block); scores of each next byte out (rows, length, 256).

        Raises ValueError for rows that are longer than `block`.
        """
        length = numbers.shape[1]
        if length > self.block:
            raise ValueError(f"rows may have {self.block} bytes, got {length}: give a larger block")
        places = torch.arange(length, device=numbers.device)
        hidden = self.bytes(numbers) + self.positions(places)  # (rows, length, width)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


class Layer(nn.Module):
    """Attention to the bytes so far, then a perceptron; each is added to what it was given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, length, width) in and out."""
        rows, length, width = hidden.shape
        together = self.queries_keys_values(self.attention_norm(hidden))
        parts = together.view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # each (rows, heads, length, …)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(rows, length, width))
        answer: Tensor = hidden + self.perceptron(hidden)
        return answer


def next_byte_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all bytes: scores (rows, length, 256), targets (rows, length)."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    """Small random weights, as in GPT-2, so that the first scores are nearly equal."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
