"""Runs the cases of a declaration in workers: the drive that calls the learner's code, and the Run
that the judge gets.

All cases of one place run in one go, with the learner's module, or with each of several programs.
"""

import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from multigpu.checking.declaration import Case, Declaration
from multigpu.checking.learner import Answer, Learner
from multigpu.ranks.calls import Call
from multigpu.ranks.recorder import end_span
from multigpu.ranks.trace import Trace

DONE = "a case is done"  # the label of a span in the trace
IN_CASE = "in the case: "  # begins a note on an exception

# --- in the worker -------------------------------------------------------------------------------


def call_once(
    function: str,
    arguments: Callable[..., tuple[Any, ...]],
    names: tuple[str, ...],  # of the arguments
    result: str,
    fresh: bool,
    submission: Any,
    case: Case,
    place: Any,
) -> dict[str, Any]:
    """The drive that calls a function with the declared arguments, and notes what came of it."""
    given = arguments(case, place)
    before = [tensor_copy(value) for value in given]
    flat = [
        value.view(-1) if is_tensor(value) and value.is_contiguous() else None for value in given
    ]
    returned = getattr(submission, function)(*given)
    note: dict[str, Any] = {"result": copied(returned, always=fresh)}
    if fresh:
        note["kept"] = returned
    changed = [
        name
        for name, value, old in zip(names, given, before, strict=True)
        if is_tensor(value) and not unchanged(value, old)
    ]
    if result != "returned":
        place_of = names.index(result)
        note = {"result": copied(given[place_of]), "returned": copied(returned)}
        note["memory"] = copied(flat[place_of])
    elif fresh:
        note["shares_memory"] = not memory_of(returned).isdisjoint(memory_of(given))
    return note | {"changed": changed}


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def tensor_copy(value: Any) -> Any:
    return value.detach().clone() if is_tensor(value) else value


def unchanged(came: torch.Tensor, old: torch.Tensor) -> bool:
    return (came.dtype, came.device) == (old.dtype, old.device) and torch.equal(came, old)


def memory_of(value: Any) -> set[int]:
    """Where the tensors are that a value has in it."""
    if isinstance(value, dict):
        return memory_of([*value.values()])
    if isinstance(value, list | tuple):
        return set().union(*map(memory_of, value))
    is_somewhere = is_tensor(value) and value.layout is torch.strided and value.numel()
    return {value.untyped_storage().data_ptr()} if is_somewhere else set()


def copied(value: Any, *, always: bool = False) -> Any:
    """As it is now: a message that no code waited for could still change it."""
    if is_tensor(value):
        own = always or (type(value) is torch.Tensor and torch.distributed.is_initialized())
        return value.clone() if own else value
    if isinstance(value, dict):
        return {key: copied(part, always=always) for key, part in value.items()}
    if isinstance(value, list):
        return [copied(part, always=always) for part in value]
    return tuple(copied(part, always=always) for part in value) if type(value) is tuple else value


def drive_cases(
    submission: Any, place: Any, _: Any, drive: Any, cases: Sequence[Case]
) -> list[dict[str, Any]]:
    """Run every case on these devices, or this rank, and tell when each began and ended."""
    notes: list[dict[str, Any]] = []
    for case in cases:
        began = time.monotonic()
        try:
            with torch.enable_grad():
                came = drive(submission, case, place)
                gradients = torch.is_grad_enabled()
        except Exception as error:
            error.add_note(f"{IN_CASE}{case.title}")
            raise
        notes.append({"came": came, "times": (began, time.monotonic()), "gradients": gradients})
        end_span(DONE, began)  # the trace shows how far each rank has come, even if it gets stuck
    return notes


def drive_programs(
    submission: Any, place: Any, own: Any, drive: Any, cases: Sequence[Case], texts: Sequence[str]
) -> list[Any]:
    """Run every case with every program, each a module as text.  One that raises gives None."""
    results: list[Any] = []
    # To note where they return and what they call takes half of the time, and no check needs it.
    sys.settrace(None)
    threading.settrace(None)
    for text in texts:
        try:
            code = compile(text, submission.__file__, "exec")
            results.append(drive_cases(again(submission, code), place, own, drive, cases))
        except Exception:
            results.append(None)
    return results


def again(submission: Any, code: types.CodeType | None = None) -> Any:
    """The learner's module once more, as another process would have it; or another ``code``."""
    module: Any = types.ModuleType(submission.__name__)
    module.__file__, module.__code__ = submission.__file__, code or submission.__code__
    exec(module.__code__, module.__dict__)
    return module


# --- in the judge --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one run of the cases of one place came to."""

    declaration: Declaration
    cases: Sequence[Case]
    answer: Answer

    def came(self, case: Case) -> Any:
        """What the drive gave for a case; for ranks a list with one entry per rank."""
        came = [own["came"] for own in self._notes(case)]
        return came if case.world else came[0]

    def gradients_on(self, case: Case) -> bool:
        """Whether gradients are on after a case, as before it; on every rank."""
        return all(own["gradients"] for own in self._notes(case))

    def calls(self, case: Case, rank: int) -> list[Call]:
        """What one rank called of ``torch.distributed`` in the time of a case."""
        began, ended = self._notes(case)[rank]["times"]
        return [call for call in self.trace.of(rank) if began <= call.time <= ended]

    @property
    def trace(self) -> Trace:
        """Every call of every rank."""
        assert self.answer.trace is not None
        return self.answer.trace

    def without_trace(self) -> "Run":
        """Without what is large in it: for runs that stay for all answers."""
        return replace(self, answer=replace(self.answer, trace=None))

    def where(self, case: Case, rank: int) -> str:
        """The return statement that gave the result of a case; empty if it is not known which."""
        began, ended = self._notes(case)[rank]["times"]
        places = [place for time, place in self.answer.returns[rank] if began <= time <= ended]
        of_several_calls = self.declaration.call[0] == "drive" and len({*places}) > 1
        return places[-1] if places and not of_several_calls else ""

    def _notes(self, case: Case) -> list[dict[str, Any]]:
        """What ``drive_cases`` noted, by rank."""
        number = self.cases.index(case)
        return [own[number] for own in self.answer.results]


def perform(declaration: Declaration, learner: Learner, cases: Sequence[Case]) -> Run:
    """Run the cases of one place.  Raises Refused where no answer came."""
    return Run(declaration, cases, answer_of(declaration, learner, cases, drive_cases))


def perform_programs(
    declaration: Declaration, learner: Learner, cases: Sequence[Case], texts: Sequence[str]
) -> list[Run | None]:
    """Run the cases with each of these modules, in the place of the learner's, all in one go.

    None for one that raises.  Raises Refused where no answer came, so for all if one gets stuck.
    """
    answer = answer_of(declaration, learner, cases, drive_programs, texts)
    by_program = zip(*answer.results, strict=True)  # each with one entry per rank
    return [
        None if None in own else Run(declaration, cases, replace(answer, results=[*own]))
        for own in by_program
    ]


def answer_of(
    declaration: Declaration, learner: Learner, cases: Sequence[Case], drive: Any, *more: Any
) -> Answer:
    """What ``drive_cases`` or ``drive_programs`` hands over, which takes ``more`` arguments."""
    kind, own = declaration.call
    call = own
    if kind == "arguments":
        names = learner.exercise.signature.positional
        how = (names, declaration.result, declaration.fresh)
        call = partial(call_once, declaration.function, own, *how)
    gpus, world = cases[0].place
    given = (own, call, cases, *more)
    return learner.run(drive, *given, gpus=gpus, world=world, **declaration.options)
