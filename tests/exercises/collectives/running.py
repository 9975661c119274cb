"""Runs one function of ``collectives`` on several ranks, case after case."""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from multigpu.checking import Returned
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .cases import Case, numbers
from .stuck import in_own_words


@dataclass(frozen=True)
class Came:
    """What one call came to on one rank.

    ``tensor`` is the caller's tensor afterwards, ``memory`` what lies where its numbers were
    before the call; ``kept`` is what was returned, as it is after all other calls.  ``calls`` are
    the messages of this call in the trace.
    """

    case: Case
    rank: int
    world: int
    returned: Any
    kept: Any
    shares_memory: bool
    tensor: Returned
    memory: torch.Tensor
    calls: tuple[Any, ...]
    where: str

    @property
    def sends(self):
        """The messages that this rank sent."""
        return [call for call in self.calls if call.op == "send"]


def drive(submission, function, cases):
    """Call the function once per case, and tell what this rank holds then."""
    rank, world = dist.get_rank(), dist.get_world_size()
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    results, kept = [], []
    for case in cases:
        tensor = numbers(case, rank, world).to(place)
        memory = tensor.view(-1)
        arguments = (tensor, case.src) if function == "broadcast" else (tensor,)
        began = time.monotonic()
        try:
            returned = getattr(submission, function)(*arguments)
        except Exception as error:
            error.add_note(f"called on {world} ranks with {case}")
            raise
        kept.append(returned)
        results.append(
            {
                "times": (began, time.monotonic()),
                "shares_memory": same_memory(returned, memory),
                "returned": copy_of(returned),
                "tensor": copy_of(tensor),
                "memory": copy_of(memory),
            }
        )
    return [result | {"kept": copy_of(own)} for result, own in zip(results, kept, strict=True)]


def same_memory(returned, memory):
    """Whether a result lies in the memory of the input."""
    if type(returned) is not torch.Tensor or not memory.numel():
        return False
    return returned.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def copy_of(value):
    """A tensor as it is now: a message that nobody waited for could still change it."""
    return value.clone() if type(value) is torch.Tensor else value


def run(learner, cases, world):
    """For each case, what it came to on each rank."""
    function = learner.exercise.function
    try:
        answer = learner.run_ranks(drive, function, cases, world=world)
    except Refused as refused:
        raise in_own_words(refused, function) from None
    return [
        [came(answer, rank, index, case) for rank in range(world)]
        for index, case in enumerate(cases)
    ]


def came(answer, rank, index, case):
    """One result, with the calls that the rank made in its time."""
    result = dict(answer.results[rank][index])
    began, ended = result.pop("times")
    calls = tuple(call for call in answer.trace.of(rank) if began <= call.time <= ended)
    result["memory"] = result["memory"].value
    return Came(case, rank, len(answer.results), calls=calls, where=answer.wheres[rank], **result)
