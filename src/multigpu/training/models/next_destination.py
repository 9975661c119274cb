"""Where does this aircraft fly next? A small network over its latest destinations."""

import torch
from torch import Tensor, nn

from multigpu.data.flight_rows import (
    HISTORY,
    NO_FLIGHT,
    NUM_CARRIERS,
    NUM_DESTINATIONS,
    NUM_ORIGINS,
)

MEMORIES = (0.5, 0.82, 0.95, 0.9975)  # what is left of a flight after one more, at the start


class NextDestination(nn.Module):
    """Score 104 destinations for the next flight of an aircraft; 69,416 parameters.

    Two ways from the history to the scores are added up. The first copies: a destination that the
    aircraft had often, or lately, is likely again. Four memories count its flights, and each learns
    how fast it forgets. The second is a perceptron; it sees the origin, the carrier, the last
    eight destinations and the four memories, and finds what follows what.

    No row looks at another one, and there is neither dropout nor a buffer: so a batch can be split
    over GPUs and the answer stays the same. The hidden layer is a Tanh for the same reason. With a
    ReLU, a unit may be at its kink for a single row: a rounding difference then decides whether it
    has a gradient, Adam makes a full step of it, and one GPU and two part ways.
    """

    def __init__(
        self, *, history: int = HISTORY, width: int = 32, hidden: int = 128, recent: int = 8
    ) -> None:
        """Read rows of `history` destinations, the last `recent` of them one by one.

        `width` is the size of a destination's embedding, `hidden` that of the hidden layer.
        Raises ValueError if `recent` is not from 1 to `history`.
        """
        super().__init__()
        if not 1 <= recent <= history:
            raise ValueError(
                f"recent must be from 1 to the {history} destinations of the history, got {recent}"
            )
        self.history, self.recent = history, recent
        self.destinations = nn.Embedding(NUM_DESTINATIONS + 1, width, padding_idx=NO_FLIGHT)
        self.origins = nn.Embedding(NUM_ORIGINS, 8)
        self.carriers = nn.Embedding(NUM_CARRIERS, 16)
        self.memories = nn.Parameter(torch.logit(torch.tensor(MEMORIES)))  # (4,)
        self.copying = nn.Parameter(torch.full((len(MEMORIES),), 0.3))  # (4,)
        self.perceptron = nn.Sequential(
            nn.Linear(8 + 16 + (recent + len(MEMORIES)) * width, hidden),
            nn.Tanh(),
            nn.Linear(hidden, NUM_DESTINATIONS),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of :func:`multigpu.data.flights` in, (rows, 34); scores out, (rows, 104)."""
        origin, carrier, history = inputs[:, :1], inputs[:, 1:2], inputs[:, 2:]
        counts = self._remembered(history)  # (rows, 4, 104)
        shares = counts / (counts.sum(dim=2, keepdim=True) + 1)
        seen = [
            self.origins(origin),  # (rows, 1, 8)
            self.carriers(carrier),  # (rows, 1, 16)
            self.destinations(history[:, -self.recent :]),  # (rows, recent, width)
            shares @ self.destinations.weight[:NUM_DESTINATIONS],  # (rows, 4, width)
        ]
        found: Tensor = self.perceptron(torch.cat([part.flatten(1) for part in seen], dim=1))
        copied = torch.einsum("rmd,m->rd", torch.log1p(10 * counts), self.copying)
        return found + copied  # (rows, 104)

    def _remembered(self, history: Tensor) -> Tensor:
        """How often each destination occurs, the older the less: (rows, memories, 104)."""
        ages = torch.arange(self.history - 1, -1, -1, device=history.device)
        weights = torch.sigmoid(self.memories)[:, None] ** ages  # (memories, history)
        shape = (len(history), *weights.shape)
        counts = weights.new_zeros(*shape[:2], NUM_DESTINATIONS + 1).scatter_add(
            2, history[:, None, :].expand(shape), weights.expand(shape)
        )
        return counts[:, :, :NUM_DESTINATIONS]
