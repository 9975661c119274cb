"""Runs the cases of a declaration in workers: the drive that calls the learner's code, and the Run
that the judge gets.

All cases of one place run in one go, with the learner's module, or with each of several programs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from multigpu.checking.declaration import Case, Declaration
from multigpu.checking.learner import Answer, Learner, RankAnswer
from multigpu.ranks.calls import Call
from multigpu.ranks.recorder import end_span
from multigpu.ranks.trace import Trace

DONE = "a case is done"  # the label of a span in the trace

# --- in the worker -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallOnce:
    """Calls the learner's function with the declared arguments, and notes what came of it."""

    function: str
    arguments: Callable[..., tuple[Any, ...]]
    result: str
    fresh: bool
    names: tuple[str, ...]  # of the arguments

    def __call__(self, submission: Any, case: Case, place: Any) -> dict[str, Any]:
        given = self.arguments(case, place)
        before = [tensor_copy(value) for value in given]
        flat = [
            value.view(-1) if is_tensor(value) and value.is_contiguous() else None
            for value in given
        ]
        returned = getattr(submission, self.function)(*given)
        note: dict[str, Any] = {"result": copied(returned)}
        if self.fresh:
            note = {"result": tensor_copy(returned), "kept": returned}
        changed = [
            name
            for name, value, old in zip(self.names, given, before, strict=True)
            if is_tensor(value) and not unchanged(value, old)
        ]
        if self.result != "returned":
            place_of = self.names.index(self.result)
            note = {"result": copied(given[place_of]), "returned": copied(returned)}
            note["memory"] = copied(flat[place_of])
        elif self.fresh:
            note["shares_memory"] = any(same_memory(returned, value) for value in given)
        return note | {"changed": changed}


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def tensor_copy(value: Any) -> Any:
    return value.detach().clone() if is_tensor(value) else value


def unchanged(came: torch.Tensor, old: torch.Tensor) -> bool:
    return (came.dtype, came.device) == (old.dtype, old.device) and torch.equal(came, old)


def same_memory(returned: Any, given: Any) -> bool:
    """Whether a result uses the memory of an argument."""
    if type(returned) is not torch.Tensor or not is_tensor(given) or not given.numel():
        return False
    return bool(returned.untyped_storage().data_ptr() == given.untyped_storage().data_ptr())


def copied(value: Any) -> Any:
    """As it is now: a message that no code waited for could still change it."""
    if type(value) is torch.Tensor and torch.distributed.is_initialized():
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def drive_cases(submission: Any, *place: Any) -> list[dict[str, Any]]:
    """Run every case, and tell when each began and ended.  ``place`` ends with drive and cases.

    Where a later case raises in a single process, what came before is handed over, unless it is to
    go ``to_the_end``: it may be wrong already.  (One of several ranks cannot go on alone.)
    """
    *devices, _, drive, cases, to_the_end = place
    where = devices[0] if devices else torch.distributed.get_rank()
    notes: list[dict[str, Any]] = []
    for case in cases:
        began = time.monotonic()
        try:
            with torch.enable_grad():
                came = drive(submission, case, where)
                gradients = torch.is_grad_enabled()
        except Exception as error:
            if notes and devices and not to_the_end:
                return notes
            error.add_note(f"in the case: {case.title}")
            raise
        notes.append({"came": came, "times": (began, time.monotonic()), "gradients": gradients})
        end_span(DONE, began)  # the trace shows how far each rank has come, even if it gets stuck
    return notes


def drive_programs(submission: Any, *place: Any) -> list[Any]:
    """Run every case with every program, each a module as text.  One that raises gives
    None.
    """
    *devices, own, drive, cases, texts = place
    results: list[Any] = []
    for text in texts:
        program = type(submission)(submission.__name__)
        program.__file__ = submission.__file__
        try:
            program.__code__ = compile(text, submission.__file__, "exec")
            exec(program.__code__, program.__dict__)
            results.append(drive_cases(program, *devices, own, drive, cases, True))
        except Exception:
            results.append(None)
    return results


def again(submission: Any) -> Any:
    """The learner's module once more, as another process would have it."""
    module = type(submission)(submission.__name__)
    module.__file__, module.__code__ = submission.__file__, submission.__code__
    exec(module.__code__, module.__dict__)
    return module


# --- in the judge --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one run of the cases of one place came to."""

    declaration: Declaration
    cases: Sequence[Case]
    answer: Answer | RankAnswer

    def came(self, case: Case) -> Any:
        """What the drive gave for a case; for ranks a list with one entry per rank."""
        number = self.cases.index(case)
        if isinstance(self.answer, Answer):
            return self.answer.result[number]["came"]
        return [own[number]["came"] for own in self.answer.results]

    def gradients_on(self, case: Case) -> bool:
        """Whether gradients are on after a case, as before it; on every rank."""
        every = self.answer.results if isinstance(self.answer, RankAnswer) else [self.answer.result]
        return all(own[self.cases.index(case)]["gradients"] for own in every)

    def calls(self, case: Case, rank: int) -> list[Call]:
        """What one rank called of ``torch.distributed`` in the time of a case."""
        assert isinstance(self.answer, RankAnswer)
        began, ended = self.answer.results[rank][self.cases.index(case)]["times"]
        return [call for call in self.trace.of(rank) if began <= call.time <= ended]

    @property
    def trace(self) -> Trace:
        """Every call of every rank."""
        assert isinstance(self.answer, RankAnswer)
        return self.answer.trace

    def where(self, rank: int = 0) -> str:
        """The line from which the exercise returned last."""
        return self.answer.where if isinstance(self.answer, Answer) else self.answer.wheres[rank]


def perform(
    declaration: Declaration,
    learner: Learner,
    cases: Sequence[Case],
    texts: Sequence[str] = (),
    *,
    to_the_end: bool = False,
) -> Run:
    """Run the cases of one place.  Raises Refused where no answer came.

    With ``texts`` each of these modules runs, in the place of the learner's.  A case that raises in
    a single process ends the run with those before it, unless it is to go ``to_the_end``.
    """
    gpus, world = cases[0].place
    place: dict[str, Any] = {"world": world} if world else {"gpus": gpus}
    start = learner.run_ranks if world else learner.run
    kind, own = declaration.call
    call = own
    if kind == "arguments":
        names = learner.exercise.signature.positional
        call = CallOnce(declaration.function, own, declaration.result, declaration.fresh, names)
    if texts:
        answer = start(drive_programs, own, call, cases, texts, **place, **declaration.options)
    else:
        answer = start(drive_cases, own, call, cases, to_the_end, **place, **declaration.options)
        if isinstance(answer, Answer):
            cases = cases[: len(answer.result)]
    return Run(declaration, cases, answer)
