"""Write down what a model calls, without computing anything.

A copy of the model runs on PyTorch's fake tensors: they have a shape, a dtype and a device but no
memory. It runs four times: in training and in evaluation, for many rows and for few. What the four
have in common is the program (rows.py and modes.py). program.py says what is written down,
recorder.py sees it, notebook.py is where it is written.

Why not torch.export, as torch.distributed.pipelining does? It looks into every module, so dropout
and BatchNorm stay in the mode in which they were seen.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.cutting.modes import merge
from multigpu.training.cutting.notebook import Notebook
from multigpu.training.cutting.program import Program
from multigpu.training.cutting.recorder import Recorder
from multigpu.training.cutting.refusing import Refused, refuse
from multigpu.training.cutting.rows import FEW, MANY, generalise
from multigpu.training.module_modes import modes_kept


def record_both(model: nn.Module, inputs: tuple[Any, ...], *, rows: int) -> Program:
    """The steps of `model(*inputs)` in training and in evaluation; the model is left as it was.

    `rows` is how many rows the inputs have. Raises ValueError where forward decides by the numbers
    in a tensor or by the number of rows, and where it uses what cannot be seen.
    """
    recorded = []
    try:
        with modes_kept(model):
            for train in (True, False):
                model.train(train)
                two = [record(model, inputs, rows=rows, instead=count) for count in (MANY, FEW)]
                recorded.append(generalise(*two))
        return merge(*recorded)
    except Refused as error:
        raise ValueError(f"the model cannot be cut: {error}") from None


def record(model: nn.Module, inputs: tuple[Any, ...], *, rows: int, instead: int) -> Program:
    """The steps in the mode that the model is in, with `instead` rows in the place of `rows`."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    with FakeCopyMode(fake_mode):
        twin = copy.deepcopy(model, memo)

    def faked(one: Any) -> Any:
        """A fake of an input: its first dimension is the rows, if it is as long."""
        if not isinstance(one, Tensor):
            return one
        if one.dim() == 0 or len(one) != rows:
            return fake_mode.from_tensor(one)
        with fake_mode:
            return torch.empty((instead, *one.shape[1:]), dtype=one.dtype, device=one.device)

    fakes = tree_map(faked, inputs)
    tensors = [one for one in tree_leaves(fakes) if isinstance(one, Tensor)]
    notebook = Notebook(model, twin, memo, tensors)
    recorder = Recorder(notebook)
    with fake_mode, torch.enable_grad(), recorder.watching():
        try:
            with recorder:
                returned = twin(*fakes)
            return notebook.program(returned)
        except Refused:
            raise
        except Exception as error:
            raise refuse(error) from error
