"""A batch in micro-batches of one size.

PyTorch's stages receive into buffers of one shape, so all micro-batches of a step have as many
rows. Where the rows cannot be divided equally, the smaller ones are filled up with a row that they
have already. It is computed, and dropped before the loss: it counts nothing. BatchNorm alone sees
it, as it sees the rows of its micro-batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Layout:
    """Which row of a batch stands where."""

    counts: tuple[int, ...]  # rows that count, of each micro-batch
    size: int  # rows of every micro-batch, with those that fill it up

    @classmethod
    def of(cls, rows: int, micro_batches: int) -> Layout:
        """`rows` in equal parts: sizes differ by one at most, and may be 0."""
        each, more = divmod(rows, micro_batches)
        counts = tuple(each + (number < more) for number in range(micro_batches))
        return cls(counts, max(counts))

    @cached_property
    def places(self) -> Tensor:
        """The row of the batch at each place: int64 (micro-batches · size,)."""
        rows, began = [], 0
        last = sum(self.counts) - 1
        for count in self.counts:
            rows += [min(began + min(at, max(count - 1, 0)), last) for at in range(self.size)]
            began += count
        return torch.tensor(rows)

    @property
    def is_full(self) -> bool:
        """Whether no micro-batch has to be filled up."""
        return min(self.counts) == self.size

    def fill(self, inputs: Any) -> Any:
        """A batch's inputs with the rows that fill up its micro-batches."""
        if self.is_full:
            return inputs
        return tree_map(lambda rows: rows[self.places.to(rows.device)], inputs)

    def part(self, values: Any, number: int) -> Any:
        """The rows of a batch (not filled up) that belong to one micro-batch."""
        began = sum(self.counts[:number])
        return tree_map(lambda rows: rows[began : began + self.counts[number]], values)

    def counted(self, outputs: Any, number: int) -> Any:
        """One micro-batch's outputs without those of the rows that fill it up."""
        if self.counts[number] == self.size:
            return outputs
        return tree_map(lambda rows: self._refuse_other_rows(rows)[: self.counts[number]], outputs)

    def empty(self, outputs: Any) -> Any:
        """The outputs of all micro-batches together, without those of rows that do not count."""
        if self.is_full:
            return outputs
        counts = torch.tensor(self.counts)
        keep = (torch.arange(self.size) < counts[:, None]).flatten()  # (micro-batches · size,)
        return tree_map(lambda rows: rows[keep.to(rows.device)], outputs)

    def _refuse_other_rows(self, outputs: Tensor) -> Tensor:
        if outputs.dim() and len(outputs) == self.size:
            return outputs
        raise ValueError(
            f"the model's output has the shape {tuple(outputs.shape)} for {self.size} rows: its "
            "first dimension must count the rows, because a micro-batch that is not full has rows "
            "to drop. Or choose a batch_size that micro_batches divides, and data that it divides."
        )
