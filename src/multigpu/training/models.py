"""The models of the course. They know nothing of GPUs: you decide where they are."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multigpu.data.datasets import NUM_BYTES
from multigpu.data.flight_rows import (
    HISTORY,
    NO_FLIGHT,
    NUM_CARRIERS,
    NUM_DESTINATIONS,
    NUM_ORIGINS,
)

RECENT = 8  # flights of an aircraft that NextDestination reads one by one
# With each later flight, a flight's weight is multiplied by this; here before training.
MEMORIES = (0.5, 0.82, 0.95, 0.9975)


class TinyMLP(nn.Module):
    """A perceptron with two hidden layers for the digits: 10 classes, 221 parameters.

    Its inputs are only four numbers of an image, the mean gray of each quarter, so its accuracy is
    poor. It exists for measurements: a step takes less time than a message to another GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(4),  # (rows, 1, 2, 2)
            nn.Flatten(),  # (rows, 4)
            nn.Linear(4, 8),  # 40 parameters
            nn.ReLU(),
            nn.Linear(8, 9),  # 81
            nn.ReLU(),
            nn.Linear(9, 10),  # 100
        )

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        scores: Tensor = self.layers(images)
        return scores


class SmallCNN(nn.Module):
    """A small convolutional network for the 8 x 8 digits: 10 classes, 6,090 parameters.

    It has no BatchNorm and no dropout, on purpose: its output for a row does not depend on the
    other rows of the batch, so the batch can be split across GPUs and the result stays the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),  # (rows, 16, 8, 8)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (rows, 16, 4, 4)
            nn.Conv2d(16, 32, kernel_size=3, padding=1),  # (rows, 32, 4, 4)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (rows, 32, 2, 2)
            nn.Flatten(),  # (rows, 128)
        )
        self.classifier = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        scores: Tensor = self.classifier(self.features(images))
        return scores


class LargeCNN(nn.Module):
    """A convolutional network for the 8 x 8 digits: 10 classes, 372,234 parameters.

    It is far larger than the digits need, and exists for measurements: an image takes about 9
    million multiplications in forward, but the gradients are only 1.5 MB to send, whatever the
    batch. Like `SmallCNN` it has no BatchNorm and no dropout, so a batch can be split and the
    result stays the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, kernel_size=3, padding=1),  # (rows, 64, 8, 8)
            nn.ReLU(),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),  # (rows, 128, 8, 8)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (rows, 128, 4, 4)
            nn.Conv2d(128, 256, kernel_size=3, padding=1),  # (rows, 256, 4, 4)
            nn.ReLU(),
            nn.MaxPool2d(4),  # (rows, 256, 1, 1)
            nn.Flatten(),  # (rows, 256)
        )
        self.classifier = nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        scores: Tensor = self.classifier(self.features(images))
        return scores


class NextDestination(nn.Module):
    """Score 104 destinations for the next flight of an aircraft; 69,416 parameters.

    The scores are the sum of two parts. The first repeats: a destination that the aircraft had
    often, or lately, is likely again. Four memories count its flights, and each learns how fast it
    forgets. The second is a perceptron; its inputs are the origin, the carrier, the last eight
    destinations and the four memories, and it learns which destinations follow which.

    No row depends on another one, and there is neither dropout nor a buffer, so a batch can be
    split across GPUs and the result stays the same. The hidden layer uses Tanh for the same reason.
    With a ReLU, a unit may be at its kink for a single row. A rounding difference then decides
    whether it has a gradient, Adam turns the gradient into a full step, and one GPU and two GPUs
    diverge.
    """

    def __init__(self) -> None:
        super().__init__()
        self.destinations = nn.Embedding(NUM_DESTINATIONS + 1, 32, padding_idx=NO_FLIGHT)
        self.origins = nn.Embedding(NUM_ORIGINS, 8)
        self.carriers = nn.Embedding(NUM_CARRIERS, 16)
        self.memories = nn.Parameter(torch.logit(torch.tensor(MEMORIES)))  # (4,)
        self.copying = nn.Parameter(torch.full((len(MEMORIES),), 0.3))  # (4,)
        self.perceptron = nn.Sequential(
            nn.Linear(8 + 16 + (RECENT + len(MEMORIES)) * 32, 128),
            nn.Tanh(),
            nn.Linear(128, NUM_DESTINATIONS),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of :func:`multigpu.data.flights` in, (rows, 34); scores out, (rows, 104)."""
        origin, carrier, history = inputs[:, :1], inputs[:, 1:2], inputs[:, 2:]
        counts = self._remembered(history)  # (rows, 4, 104)
        shares = counts / (counts.sum(dim=2, keepdim=True) + 1)
        seen = [
            self.origins(origin),  # (rows, 1, 8)
            self.carriers(carrier),  # (rows, 1, 16)
            self.destinations(history[:, -RECENT:]),  # (rows, 8, 32)
            shares @ self.destinations.weight[:NUM_DESTINATIONS],  # (rows, 4, 32)
        ]
        found: Tensor = self.perceptron(torch.cat([part.flatten(1) for part in seen], dim=1))
        copied = torch.einsum("rmd,m->rd", torch.log1p(10 * counts), self.copying)
        return found + copied  # (rows, 104)

    def _remembered(self, history: Tensor) -> Tensor:
        """How often each destination occurs; older flights count less: (rows, memories, 104)."""
        ages = torch.arange(HISTORY - 1, -1, -1, device=history.device)
        weights = torch.sigmoid(self.memories)[:, None] ** ages  # (memories, HISTORY)
        shape = (len(history), *weights.shape)
        counts = weights.new_zeros(*shape[:2], NUM_DESTINATIONS + 1).scatter_add(
            2, history[:, None, :].expand(shape), weights.expand(shape)
        )
        return counts[:, :, :NUM_DESTINATIONS]


class SmallGPT(nn.Module):
    """A decoder-only transformer that predicts the next byte; 220,544 parameters by default.

    Like GPT-2 (Radford et al. 2019) it normalizes before each part, and the embedding of a byte and
    its score share one matrix. Such tied weights are a good test for code that splits a model.
    There is no dropout and no BatchNorm, so its output for a row does not depend on the other rows.
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

        With another `vocabulary` it reads that many different words instead of bytes. `width` is a
        multiple of `heads`.
        """
        super().__init__()
        self.block = block
        self.bytes = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialize)
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
    """Attention to the bytes so far, then a perceptron; each is added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)  # outputs by head: its query, its key, its value
        self.attention_out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, length, width) in and out."""
        rows, length, _ = hidden.shape
        together = self.qkv(self.attention_norm(hidden))
        # -1: under tensor parallelism a rank has only some of the heads
        parts = together.view(rows, length, -1, 3, self.head_width)
        queries, keys, values = parts.permute(3, 0, 2, 1, 4)  # each (rows, heads, length, …)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(rows, length, -1))
        answer: Tensor = hidden + self.perceptron(hidden)
        return answer


def next_byte_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all bytes: scores (rows, length, 256), targets (rows, length)."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _initialize(module: nn.Module) -> None:
    """Small random weights, as in GPT-2, so that the first scores are nearly equal."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, Layer):  # drawn as all queries, all keys, all values
        drawn = module.qkv.weight.detach().view(3, module.heads, module.head_width, -1)
        module.qkv.weight.data = drawn.transpose(0, 1).flatten(0, 2)


class SmallViT(nn.Module):
    """A vision transformer for the 8 x 8 digits: 10 classes, 202,186 parameters by default.

    Like ViT (Dosovitskiy et al. 2020) it cuts an image into patches, puts a class token before
    them, and reads the answer from that token. Its layers are PyTorch's own, normalizing first. All
    layers are alike, but the patches and the head take less time, so equal numbers of layers do not
    take equal times. There is no dropout.
    """

    def __init__(self, *, width: int = 64, depth: int = 4) -> None:
        """16 patches of 2 x 2 pixels; `depth` layers of `width` channels in 4 heads."""
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 16 + 1, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                nhead=4,
                dim_feedforward=4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (rows, 16, width)
        token = self.class_token.expand(len(images), -1, -1)
        hidden = torch.cat([token, patches], dim=1) + self.positions  # (rows, 17, width)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.head(self.norm(hidden[:, 0]))
        return scores
