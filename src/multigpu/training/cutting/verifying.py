"""The proof that nothing was overlooked: the steps compute what the model computes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.cutting.program import Program
from multigpu.training.cutting.stage import Stage
from multigpu.training.module_modes import modes_kept


def verify(model: nn.Module, program: Program, inputs: tuple[Any, ...], *, rows: int) -> None:
    """Compare the steps with the model, in evaluation, on the sample and on one row more.

    Raises ValueError where the results differ.
    """
    whole = Stage(model, program, 0, len(program.steps))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with modes_kept(model), torch.random.fork_rng(), torch.no_grad():
        model.eval()
        whole.eval()
        more = tree_map(lambda one: _one_more(one, rows), inputs)
        what = {"the sample": inputs, f"{rows + 1} rows instead of {rows}": more}
        for name, given in what.items():
            with _put_back(buffers):
                expected = _answer(model, given, name)
            with _put_back(buffers):
                _compare(expected, _answer(whole, given, name), name)


def _answer(model: nn.Module, inputs: tuple[Any, ...], what: str) -> Any:
    """What it returns for a copy of the inputs, always with the same random numbers."""
    torch.manual_seed(0)
    try:
        return model(*copy.deepcopy(inputs))
    except Exception as error:
        raise ValueError(f"the model cannot be cut: it fails on {what}: {error}") from error


def _compare(expected: Any, found: Any, what: str) -> None:
    pairs = zip(tree_leaves(expected), tree_leaves(found), strict=True)
    for one, other in pairs:
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            continue
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-4, equal_nan=True):
            raise ValueError(
                f"the model cannot be cut: on {what} its steps compute something else than the "
                "model. Does forward depend on something that changes from call to call, or on "
                "the number of rows in an `if`? Then write the stages by hand."
            )


@contextlib.contextmanager
def _put_back(buffers: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Whatever forward does to buffers in place is undone."""
    yield
    for buffer, before in buffers:
        buffer.copy_(before)


def _one_more(one: Any, rows: int) -> Any:
    """An input with its first row once more at the end."""
    if not isinstance(one, Tensor) or one.dim() == 0 or len(one) != rows:
        return one
    return torch.cat([one, one[:1]])
