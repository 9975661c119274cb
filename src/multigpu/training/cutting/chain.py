"""The stages between given places, with all that belongs to the model."""

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from multigpu.training.cutting.program import Program
from multigpu.training.cutting.stage import Stage


def chain_of(model: nn.Module, program: Program, places: Sequence[int]) -> list[nn.Module]:
    """A stage for each pair of neighbouring `places`.

    The first one also holds the parameters and buffers that forward never uses: they belong to a
    checkpoint all the same.
    """
    stages = [Stage(model, program, begin, end) for begin, end in itertools.pairwise(places)]
    used = {name for stage in stages for name in stage.state_dict()}
    stages[0] = Stage(model, program, *places[:2], also=others(model, used))
    return list(stages)


def others(model: nn.Module, used: set[str]) -> list[str]:
    """The names of parameters and buffers that are not `used`, under another name either."""
    persistent = model.state_dict(keep_vars=True)
    same = {id(persistent[name]) for name in used if name in persistent}
    return [
        name
        for name, one in persistent.items()
        if name not in used and isinstance(one, Tensor) and id(one) not in same
    ]
