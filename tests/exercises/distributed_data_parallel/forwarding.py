"""Whether ``forward`` hands on all inputs, and gives back all that the module returns.

These mistakes belong to each of ``distributed_data_parallel.NaiveDDP``,
``distributed_data_parallel.OverlappedDDP`` and ``distributed_data_parallel.BucketedDDP``.
"""

import torch
from torch import nn

from multigpu.checking import Returned, Wrong, describe
from multigpu.checking.comparing import same
from multigpu.checking.verdicts import count, listed
from multigpu.ranks import rank_device


class Echo(nn.Module):
    """Returns its inputs, in a tuple if there are several without name, else in a dict."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))  # something to be sent
        self.given = self.returned = None  # in the last call

    def forward(self, *inputs, **named):
        self.given = inputs, named
        several = len(inputs) > 1
        self.returned = (*inputs, *named.values()) if several else {"inputs": inputs, **named}
        return self.returned


def calls():
    """Inputs without and with names, of every call."""
    first, second, mask = (torch.arange(3.0, dtype=torch.float64) + i for i in range(3))
    return [((first, second), {"mask": mask}), ((first,), {"mask": mask})]


def forwarded(wrapper):
    """What each call came to on this rank: what the module was given, and what it returned."""
    module = Echo().to(rank_device())
    model = wrapper(module)
    return [outcome(module, model, *call) for call in calls()]


def outcome(module, model, inputs, named):
    device = rank_device()
    inputs, named = [x.to(device) for x in inputs], {n: x.to(device) for n, x in named.items()}
    module.given = module.returned = failed = output = None
    try:
        output = model(*inputs, **named)
    except TypeError as error:  # what Python says of a call that does not fit
        failed = str(error)
    given, returned = module.given, module.returned
    return {"failed": failed, "given": given, "returned": returned, "output": output}


def examine_forward(function, world, results):
    """Look at every call: first on all ranks, then the next one."""
    for i, call in enumerate(calls()):
        for rank, came in enumerate(result[i] for result in results):
            situation = f" (rank {rank} of {world})"
            if not equal(came["given"], call):
                raise input_lost(function, call, came, situation)
            right = Echo()(*call[0], **call[1])
            if not equal(came["output"], right):
                raise Wrong(
                    f"{function}.output_changed",
                    expected="forward returns what the module returns" + situation,
                    came=f"the module returned {describe(came['returned'])}, and forward "
                    + (came["failed"] or describe(came["output"])),
                    usually="forward takes something out of what the module returned, or puts"
                    " something around it: return self.module(*inputs, **named).",
                )


def input_lost(function, call, came, situation):
    found = came["failed"] or "the module was never called"
    if came["given"] is not None:
        found = f"the module was called with {arguments(*came['given'])}"
        if arguments(*came["given"]) == arguments(*call):
            found += ", but with other numbers or of another type"
    return Wrong(
        f"{function}.input_lost",
        expected=f"a call of the wrapper with {arguments(*call)} calls the module with the same"
        + situation,
        came=found,
        usually="forward takes one input, or none with a name. Take all that come and hand them"
        " on: def forward(self, *inputs, **named).",
    )


def arguments(inputs, named):
    """For example "2 inputs and mask=..."."""
    return listed([count(len(inputs), "input"), *(f"{name}=..." for name in named)])


def equal(came, right):
    """The same numbers in the same places."""
    if isinstance(right, torch.Tensor):
        return isinstance(came, Returned) and same(came.value, right)
    if isinstance(right, dict):
        return (
            isinstance(came, dict)
            and came.keys() == right.keys()
            and all(equal(came[name], right[name]) for name in right)
        )
    return (
        isinstance(came, list | tuple)
        and len(came) == len(right)
        and all(equal(*pair) for pair in zip(came, right, strict=True))
    )
