"""The stages between given places, with all that belongs to the model."""

import itertools
from collections.abc import Sequence

from torch import nn

from multigpu.training.cutting.program import Program
from multigpu.training.cutting.stage import Stage


def chain_of(model: nn.Module, program: Program, places: Sequence[int]) -> list[nn.Module]:
    """A stage for each pair of neighbouring `places`.

    The first one also holds the parameters and buffers that forward never uses: they belong to a
    checkpoint all the same.
    """
    unused = unused_tensors(model, program)
    return [
        Stage(model, program, begin, end, also=() if number else unused)
        for number, (begin, end) in enumerate(itertools.pairwise(places))
    ]


def unused_tensors(model: nn.Module, program: Program) -> list[str]:
    """The names of parameters and buffers that forward never uses, under no other name either."""
    used = {name for step in program.steps for name in step.held}
    persistent = model.state_dict(keep_vars=True)
    same = {id(persistent[name]) for name in used if name in persistent}
    return [
        name
        for name, one in persistent.items()
        if name not in used and hasattr(one, "dim") and id(one) not in same
    ]
