"""Training mode or evaluation mode, module by module: remembered, and put back."""

import contextlib
import itertools
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def modes_kept(*models: nn.Module) -> Iterator[None]:
    """Afterwards each module of `models` is in the mode in which it was, whatever came between.

    `train(mode)` of the whole would not do: a frozen part may have been in evaluation all along.
    """
    modules = itertools.chain.from_iterable(model.modules() for model in models)
    before = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
