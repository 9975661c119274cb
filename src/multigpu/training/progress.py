"""A progress bar on rank 0, and on no other rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

NARROW = 79  # columns where there is no terminal to ask


class ProgressBar:
    """Counts steps; the figures of the latest epoch stand beside the bar. Shows nothing where
    `bar` is None."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._never_in_the_way() as bar:
            bar.close()

    def update(self, steps: int = 1) -> None:
        """`steps` more are done."""
        if self._bar is None:
            return  # at once: it is called in every step
        with self._never_in_the_way() as bar:
            bar.update(steps)

    def figures(self, **numbers: float) -> None:
        """Show these numbers, for example `loss=0.31`, with the next update."""
        with self._never_in_the_way() as bar:
            shown = {name: f"{number:.4g}" for name, number in numbers.items()}
            bar.set_postfix(shown, refresh=False)

    @contextmanager
    def _never_in_the_way(self) -> Iterator[Any]:
        """The bar, or one that does nothing. Training goes on when nobody can see it any more."""
        try:
            yield Nothing if self._bar is None else self._bar
        except (OSError, ValueError):  # the terminal was closed: ValueError from a closed file
            self._bar = None


class Nothing:
    """A bar that shows nothing."""

    @staticmethod
    def close() -> None: ...
    @staticmethod
    def update(steps: int) -> None: ...
    @staticmethod
    def set_postfix(shown: dict[str, str], *, refresh: bool) -> None: ...


def progress_bar(
    total: int, *, initial: int = 0, shown: bool | None = None, is_main: bool = True
) -> ProgressBar:
    """A bar of `total` steps on standard error, of which `initial` were done earlier.

    `shown`: True or False, or None for a bar only where standard error is a terminal. Elsewhere,
    in a notebook for example, it is plain text and needs no widgets.
    """
    if not is_main or not (in_a_terminal() if shown is None else shown):
        return ProgressBar()
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread beside the training

    with suppress(OSError, ValueError, AttributeError):  # standard error is closed, or is None
        terminal = in_a_terminal()
        return ProgressBar(
            Bar(
                total=total,
                initial=initial,
                file=sys.stderr,
                unit="step",
                dynamic_ncols=terminal,
                ncols=None if terminal else NARROW,
                mininterval=0.2 if terminal else 1.0,
                maxinterval=float("inf"),
            )
        )
    return ProgressBar()


def in_a_terminal() -> bool:
    """Whether somebody may be looking at standard error."""
    with suppress(AttributeError, ValueError):  # it is None, or closed
        return sys.stderr.isatty()
    return False
