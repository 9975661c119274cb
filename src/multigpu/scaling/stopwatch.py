"""A stopwatch that looks at training from the side of the data: a step ends when the next begins.

The Trainer asks for a batch, computes, and asks for the next one. So the time between two askings
is a whole step, loading included, and the Trainer need not know that it is measured.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch

from multigpu.data.feeds import Batch, Feed, feed_for


class Stopwatch:
    """Data of which one epoch has exactly `warmup + steps` batches: a FeedSource.

    Where the data has fewer, it goes on with its next epoch; so no evaluation comes in between. A
    smaller batch at the end of an epoch is left out: all steps have the same global batch.
    `moments` are the times (time.monotonic) at which each step began, and the end of the last one:
    one more than there are steps.
    """

    def __init__(self, data: Any, *, steps: int, warmup: int) -> None:
        if steps < 1 or warmup < 0:
            raise ValueError(
                f"steps={steps}, warmup={warmup}: measure at least one step, after a warm-up of "
                "0 or more"
            )
        self.data, self.steps, self.warmup = data, steps, warmup
        self.moments: list[float] = []

    def feed(
        self, *, batch_size: int, rank: int, world_size: int, seed: int, shuffle: bool
    ) -> Feed:
        """One rank's batches, watched."""
        inner = feed_for(
            self.data,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            seed=seed,
            shuffle=shuffle,
        )
        self.refuse_batch(batch_size)
        return Watched(inner, self, batch_size=batch_size)

    def refuse_batch(self, batch_size: int) -> None:
        """Raise ValueError where the rows fill no batch: nobody would wait for one that comes."""
        rows = feed_for(self.data, batch_size=batch_size).num_rows
        if rows < batch_size:
            raise ValueError(
                f"{rows} rows do not fill a batch of {batch_size}: "
                f"use a batch size of at most {rows}"
            )

    @property
    def window(self) -> tuple[float, float]:
        """When the measured steps began and ended."""
        return self.moments[self.warmup], self.moments[-1]

    @property
    def seconds(self) -> float:
        """Seconds of a step: the mean of those after the warm-up."""
        begin, end = self.window
        return (end - begin) / self.steps

    def note(self, *, settled: bool) -> None:
        """Note the time. `settled`: not before the GPU has done all that it was given."""
        if settled and torch.cuda.is_available():
            torch.cuda.synchronize()  # of this process; under dp GPU 0 waits for the others itself
        self.moments.append(time.monotonic())


class Watched:
    """A Feed that tells a stopwatch when it is asked."""

    def __init__(self, feed: Feed, stopwatch: Stopwatch, *, batch_size: int) -> None:
        self._feed, self._stopwatch, self._batch_size = feed, stopwatch, batch_size

    @property
    def num_rows(self) -> int:
        return self._feed.num_rows

    @property
    def steps_per_epoch(self) -> int:
        return self._stopwatch.warmup + self._stopwatch.steps

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """All batches of the stretch. Its end is noted, too, when nobody asks for more."""
        watch = self._stopwatch
        full = itertools.islice(self._full(epoch), start, None)
        try:
            for number in range(start, self.steps_per_epoch):
                watch.note(settled=number in (0, watch.warmup))
                yield next(full)
        finally:
            watch.note(settled=True)

    def _full(self, epoch: int) -> Iterator[Batch]:
        """Batches without end."""
        while True:
            for batch in self._feed.batches(epoch):
                if batch.global_rows == self._batch_size:
                    yield batch
            epoch += 1
