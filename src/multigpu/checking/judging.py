"""Judges an answer by the exercise's declaration: run, compare, look at the properties, diagnose.

All cases of one place run in one go (``Run``).  The first difference between what came and what was
expected decides.  What it usually means is found by running the declared mistakes on the same
cases: the one that gives the same result is the diagnosis, and if none does the message says what
came and stops.
"""

import math
import re
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from multigpu.checking.catalog import Course, find_course
from multigpu.checking.comparing import (
    alike,
    factor_between,
    is_rounded,
    largest_difference,
    same,
    told_apart,
)
from multigpu.checking.declaration import Case, Declaration, Mistake, Placed, Program, Property
from multigpu.checking.encoding import Foreign, Returned, describe
from multigpu.checking.learner import Answer, Learner, RankAnswer, Submission
from multigpu.checking.verdicts import Refused, Wrong, count, listed, times
from multigpu.ranks.calls import Call
from multigpu.ranks.recorder import end_span
from multigpu.ranks.trace import Trace

RESULT = "the result"  # what the learner's function returned, in what a drive returns
DONE = "a case is done"  # the label of a span in the trace
SECONDS = 1.0  # for the diagnosis of one answer, after the first run of all mistakes
UNUSABLE = "unusable_result"  # the id of a refusal where the drive failed on what it was given
TRIES = 4  # mistakes that are run one by one even if it takes longer

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


def check(declaration: Declaration, learner: Learner, cases: Sequence[Case]) -> None:
    """Judge one run of the learner's code.  Raises Refused, or Wrong with a diagnosis."""
    diagnosis, done = Diagnosis(declaration, learner, cases), ""
    try:
        run = perform(declaration, learner, cases)
        diagnosis.examine_values(run)
        if len(run.cases) < len(cases):  # the next one raised an exception: it will again
            done = run.cases[-1].title
            run = perform(declaration, learner, cases, to_the_end=True)
            diagnosis.examine_values(run)
    except Refused as refused:
        if isinstance(refused, Wrong) and refused.message_id != UNUSABLE:
            raise
        if before := stuck_in(refused):  # on ranks: what came before may be wrong already
            done = cases[before - 1].title
            diagnosis.examine_values_of(cases[:before])
        if refused.status == "not_started" and done:
            refused = refused.half_written(f"this worked: {done}")
        raise diagnosis.of_refusal(refused) from None
    examine(run, first=False)
    for remark in declaration.remarks:
        for said in filter(None, (remark(run, case) for case in run.cases)):
            learner.note(said)


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


def examine(run: Run, *, first: bool) -> None:
    """Raise Wrong where a property does not hold; of those that are looked at first, or later."""
    for declaration in run.declaration.together:
        for each in declaration.properties:
            if each.first == first:
                examine_property(each, run)


def examine_property(each: Property, run: Run) -> None:
    for case in run.cases:
        found = each.examine(run, case)
        if found is None:
            continue
        came, where = (found, None) if isinstance(found, str) else found
        blamed = where or run.declaration.blames(each.id)
        raise told(run.declaration, each, case, came, where if blamed else run.where())


def told(
    declaration: Declaration, broken: Property, case: Case, came: str, where: str | None
) -> Wrong:
    """What to raise for a property that does not hold."""
    fill = declaration.fill
    usually = " ".join(fill(text, case) for text in (broken.usually, broken.fix) if text)
    return Wrong(
        broken.id,
        expected=f"{fill(broken.expects, case)} ({case.title})",
        came=came,
        usually=declaration.blames(broken.id) + usually,
        where=where,
    )


# --- what came against what was expected ---------------------------------------------------------


@dataclass(frozen=True)
class Either:
    """One of several results is right, such as None or zeros for an unused parameter's gradient."""

    results: tuple[Any, ...]


@dataclass(frozen=True)
class Near:
    """A number up to so many digits; nan is near nan."""

    value: float
    digits: int


def near(value: float, *, digits: int) -> Near:
    """Expect a Python float that agrees with this one in so many digits."""
    return Near(value, digits)


def either(*results: Any) -> Either:
    """Expect any of these; what is wrong is told by the first."""
    return Either(results)


@dataclass(frozen=True)
class Rule:
    """Every result is right of which ``examine`` has nothing to say."""

    examine: Callable[[Any], "Difference | None"]


def rule(examine: Callable[[Any], "Difference | None"]) -> Rule:
    """Expect a result that keeps to a rule, where many do: a schedule, a way to divide layers.

    ``examine(result)`` says how it differs, or returns None.
    """
    return Rule(examine)


@dataclass(frozen=True)
class Difference:
    """Where a result first differs from the right one.  ``kind`` becomes the id of the message."""

    kind: str
    came: str
    usually: str = ""
    rank: int = 0
    entry: int = 0  # where in a dict it is: the first steps come first

    @property
    def of_numbers(self) -> bool:
        """Whether the form is right, and the numbers are not."""
        return self.kind in ("wrong_values", "rounded")


class Comparison:
    """Looks for the first difference between two results of one declaration."""

    def __init__(
        self,
        parts: str,
        share_of: int = 1,
        read: Callable[[torch.Tensor], str | None] = lambda tensor: None,
    ) -> None:
        """``read`` says in words what a tensor with wrong values is, where it can."""
        self.parts, self.share_of, self.read = parts, share_of, read

    def difference(self, came: Any, right: Any, name: str = "") -> Difference | None:
        """``name`` is what the place is called: "chunk 1", "fc.weight.grad"."""
        if isinstance(right, Either):
            found = [self.difference(came, each, name) for each in right.results]
            return likeliest(found)
        it = name or RESULT
        if came is None and right is not None:
            if name and name != RESULT:
                return Difference("none", f"{it} is None")
            return Difference(
                "returned_nothing", f"{it} is None", "the function ends without `return`."
            )
        if isinstance(right, Rule):
            return right.examine(came)
        if isinstance(right, Placed | torch.Tensor):
            return self._tensor(came, right, name)
        if isinstance(right, dict):
            if not isinstance(came, dict):
                return Difference("wrong_type", f"{it} is {describe(came)}")
            return next(self._differences(came, right), None)
        if isinstance(right, Near):
            return self._number(came, right, it)
        if isinstance(right, list) and right and all(type(part) is int for part in right):
            return self._integers(came, right, it)
        if isinstance(right, list | tuple):
            if not isinstance(came, list | tuple):
                return Difference("wrong_type", f"{it} is {describe(came)}")
            if len(came) != len(right):
                there = f"{overview(came, self.parts)}, and not {len(right)}"
                return Difference("wrong_count", f"{name} has {there}" if name else there)
            named = [f"{self.parts} {i}" for i in range(len(right))]
            return next(
                self._differences(
                    dict(zip(named, came, strict=True)), dict(zip(named, right, strict=True))
                ),
                None,
            )
        if type(came) is not type(right) and not (came == right and isinstance(came, int | float)):
            return Difference("wrong_type", f"{it} is {describe(came)} and not {right!r}")
        return (
            None
            if came == right
            else Difference("wrong_value", f"{it} is {came!r} and not {right!r}")
        )

    def _differences(self, came: dict[str, Any], right: dict[str, Any]) -> Iterator[Difference]:
        """What has the wrong form first, then wrong numbers."""
        found = [
            self.difference(came[name], right[name], str(name))
            if name in came
            else Difference("missing", f"there is no {name}")
            for name in right
        ]
        there = [replace(each, entry=i) for i, each in enumerate(found) if each is not None]
        yield from sorted(there, key=lambda each: each.of_numbers)

    def _number(self, came: Any, right: Near, it: str) -> Difference | None:
        if not isinstance(came, float):
            return Difference("wrong_type", f"{it} is {describe(came)} and not a float")
        if near_enough(came, right):
            return None
        there, due = told_apart(came, right.value)
        return Difference("wrong_value", f"{it} is {there} and not {due}")

    def _integers(self, came: Any, right: list[int], it: str) -> Difference | None:
        if not isinstance(came, list):
            return Difference("wrong_type", f"{it} is {describe(came)} and not a list")
        other = next((part for part in came if type(part) is not int), None)
        if other is not None:
            return Difference("wrong_type", f"{it} has {describe(other)} in it and not an integer")
        if came == right:
            return None
        kind = "wrong_value" if len(came) == len(right) else "wrong_count"
        return Difference(kind, f"{it} is {shortened(came)} and not {shortened(right)}")

    def _tensor(self, came: Any, right: Any, name: str) -> Difference | None:
        it = name or RESULT
        placed = right if isinstance(right, Placed) else Placed(right)
        device, value = placed.device, placed.value
        if not isinstance(came, Returned):
            return Difference("not_a_tensor", f"{it} is {describe(came)}")
        if came.shape != value.shape:
            return Difference(
                "wrong_shape",
                f"{it} has the shape {tuple(came.shape)} and not {tuple(value.shape)}",
            )
        if came.dtype != value.dtype:
            return Difference("wrong_dtype", f"{it} is {came.dtype} and not {value.dtype}")
        if device is not None and came.device != device:
            return Difference("wrong_device", f"{it} is on {came.device} and not on {device}")
        if same(came.value, value.detach(), size=placed.size, share_of=self.share_of):
            return None
        factor = factor_between(came.value, value.detach())
        if factor is not None:
            return Difference("wrong_values", f"{it} is {times(factor)} the right value")
        found = f"{it} {largest_difference(came.value, value.detach())}"
        if is_rounded(came.value, value.detach()):
            smaller = "float32" if alike(came.value, value.detach()) else "float16 or bfloat16"
            if not value.is_floating_point():
                smaller = "float32 or float64"
            return Difference(
                "rounded",
                f"{found}: right, but only in the first digits",
                f"the numbers went through another dtype on the way, such as {smaller}. Keep them"
                " in their own dtype.",
            )
        reading = self.read(came.value)
        return Difference("wrong_values", f"{found}; {reading}" if reading else found)


def near_enough(came: float, right: Near) -> bool:
    """Whether a number agrees in as many digits as are asked for."""
    if math.isnan(right.value):
        return math.isnan(came)
    return math.isclose(came, right.value, rel_tol=10.0**-right.digits, abs_tol=1e-9)


def shortened(numbers: Sequence[int]) -> str:
    """For example "[0, 2, 4]"; the first of a long list."""
    if len(numbers) > 10:
        return f"[{', '.join(map(str, numbers[:8]))}, ...], {len(numbers)} in total"
    return str([*numbers])


def overview(came: Sequence[Any], parts: str) -> str:
    """For example "2 chunks, of shapes (3, 2) and (1, 2)"."""
    words = count(len(came), parts) if came else f"no {parts} at all"
    values = [each.value if isinstance(each, Placed) else each for each in came]
    if values and all(isinstance(each, Returned | torch.Tensor) for each in values):
        shapes = [tuple(each.shape) for each in values]
        words += f", of shape {shapes[0]}" if len(shapes) == 1 else f", of shapes {listed(shapes)}"
    return words


def likeliest(found: Sequence[Difference | None]) -> Difference | None:
    """Of the differences from several right results: None if one is reached, or nearly reached."""
    if None in found:
        return None
    return next((each for each in found if each and each.kind == "rounded"), found[0])


def compare(run: Run, case: Case) -> Difference | None:
    """The first difference in one case; for ranks the earliest in a dict, of the first rank."""
    declaration = run.declaration
    right, came = declaration.right_result(case), run.came(case)
    read = partial(declaration.read, case)
    comparison = Comparison(declaration.parts, declaration.share_of(case), read)
    if not case.world:
        return _compare_one(declaration, comparison, came, right)
    if isinstance(right, Either):  # all ranks have the same one of several results
        all_found = [_compare_ranks(declaration, comparison, came, each) for each in right.results]
        return likeliest(all_found)
    return _compare_ranks(declaration, comparison, came, right)


def _compare_ranks(
    declaration: Declaration, comparison: Comparison, came: Any, right: Any
) -> Difference | None:
    found = [
        _compare_one(declaration, comparison, own, expected)
        for own, expected in zip(came, right, strict=True)
    ]
    there = [replace(each, rank=rank) for rank, each in enumerate(found) if each is not None]
    if not there:
        return None
    first = min(there, key=lambda each: (each.of_numbers, each.entry))
    return replace(first, came=f"on rank {first.rank}, {first.came}")


def _compare_one(
    declaration: Declaration, comparison: Comparison, came: Any, right: Any
) -> Difference | None:
    """One process's or one rank's result; after a plain call also what it did to its arguments."""
    if declaration.call[0] == "drive":
        return comparison.difference(came, right)
    result = came["result"]
    found = comparison.difference(result, right)
    if declaration.result != "returned":
        return _in_place(declaration, comparison, came, right, found)
    if found is not None:
        return found
    touched = [name for name in declaration.keeps if name in came["changed"]]
    if touched:
        return Difference(
            "input_changed",
            f"the result is right, but the caller's {touched[0]} changed",
            "something wrote into it in place. A method with _ at its end does that.",
        )
    if declaration.fresh and came["shares_memory"]:
        return Difference(
            "shares_memory",
            "the result is right, but it is in the memory of the argument",
            "it is a view of the argument, or the argument itself: clone() makes a copy.",
        )
    if declaration.fresh and comparison.difference(came["kept"], right) is not None:
        return Difference(
            "result_overwritten",
            "the result was right, but a later call has changed it",
            "one buffer is kept for all calls, so that every result is in the same memory. Make a"
            " new tensor in every call.",
        )
    return None


def _in_place(
    declaration: Declaration,
    comparison: Comparison,
    came: dict[str, Any],
    right: Any,
    found: Difference | None,
) -> Difference | None:
    """The function writes into an argument: the numbers are there, and in its own memory."""
    name, result = declaration.result, came["result"]
    if found is not None:
        if comparison.difference(came["returned"], right) is None:
            return Difference(
                "returned_not_in_place",
                f"the right numbers were returned, but {name} does not hold them",
                f"`{name} = ...` gives the variable another tensor, which the caller never sees."
                " copy_(), += and recv() write into the tensor that was given.",
            )
        return replace(found, came=found.came.replace("the result", name, 1))
    memory = came["memory"]
    if memory is not None and not result.value.flatten().equal(memory.value):
        return Difference(
            "other_memory",
            f"{name} has the right numbers, but in other memory: a view that was taken before the"
            " call does not see them",
            "tensor.data = ..., set_() and resize_() put other memory under a tensor. copy_(), +=,"
            " add_() and recv() write into what is there.",
        )
    return None


# --- which mistake it is -------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnosis:
    """Looks for the declared mistake that does what an answer did."""

    declaration: Declaration
    learner: Learner
    cases: Sequence[Case]

    def examine_values(self, run: Run) -> None:
        """Raise Wrong where a case is not right, or where a property explains why it may not be."""
        examine(run, first=True)
        for case in run.cases:
            difference = compare(run, case)
            if difference is not None:
                raise self.of_difference(difference, run, case)

    def examine_values_of(self, cases: Sequence[Case]) -> None:
        """Run these cases, which went through, and raise Wrong as ``examine_values`` does."""
        try:
            run = perform(self.declaration, self.learner, cases)
        except Refused:
            return
        self.examine_values(run)

    def of_difference(self, difference: Difference, run: Run, case: Case) -> Wrong:
        """What to raise for a wrong result."""
        mistake = self.mistake_like(run, case)
        usually = difference.usually
        if mistake is not None:
            usually = self._sentences(mistake, case)
        return Wrong(
            mistake.id if mistake else difference.kind,
            expected=self._expected(case),
            came=difference.came,
            usually=usually,
            where=None if mistake and self._blames(mistake) else run.where(difference.rank),
        )

    def of_refusal(self, refused: Refused) -> Refused:
        """The same refusal, under the name of the mistake that ends in the same way."""
        broken = self._broken(refused)
        if broken is not None:
            return broken
        finding = refused.finding
        ends: str = "mismatch" if finding and finding.kind == "mismatch" else refused.status
        ends = "unusable" if refused.message_id == UNUSABLE else ends
        if ends not in ("crash", "hang", "mismatch", "unusable"):
            return refused
        self._name_case(refused)
        began = time.monotonic()
        together = self.declaration.together
        mistakes = [each for own in together for each in own.mistakes if each.ends == ends]
        alike_by_running = [mistake for mistake in mistakes if not mistake.roughly]
        for number, mistake in enumerate(alike_by_running):
            if number >= TRIES and time.monotonic() - began > SECONDS:
                break
            try:
                perform(self.declaration, self._with(mistake.program), self.cases, to_the_end=True)
            except Refused as other:
                if ending(other) == ending(refused):
                    return self._renamed(refused, mistake)
        for mistake in mistakes:
            if explains(mistake, refused):
                return self._renamed(refused, mistake)
        return refused

    def mistake_like(self, run: Run, case: Case) -> Mistake | None:
        """The first mistake with the same result in the case that failed.

        Where several with other sentences have it, one that has the same results in all other
        cases too comes first.
        """
        cases = run.cases if self.declaration.everywhere else [case]
        for declaration in self.declaration.together:
            shown = {each.id for each in declaration.properties}
            mistakes = [m for m in declaration.mistakes if m.ends == "wrong" and m.id not in shown]
            mistakes = self._alike(run, mistakes, cases)
            if len({mistake.usually for mistake in mistakes}) > 1:
                mistakes = self._alike(run, mistakes, run.cases) or mistakes
            if mistakes:
                return mistakes[0]
        return None

    def _alike(self, run: Run, mistakes: Sequence[Mistake], cases: Sequence[Case]) -> list[Mistake]:
        """Those mistakes that give in these cases what the answer gave.

        One that is right in all of them explains nothing: alike means up to rounding.
        """
        return [
            mistake
            for mistake, other in zip(mistakes, self.results(mistakes, cases), strict=True)
            if other is not None
            and any(compare(other, each) is not None for each in cases)
            and all(alike_results(run.came(each), other.came(each)) for each in cases)
        ]

    def results(self, mistakes: Sequence[Mistake], cases: Sequence[Case]) -> list[Run | None]:
        """What each mistake gives on these cases: all in one run, or each in its own."""
        try:
            return self._together(mistakes, cases)
        except Refused:
            began, results = time.monotonic(), list[Run | None]()
            for mistake in mistakes:
                late = time.monotonic() - began > SECONDS
                try:
                    results += [None] if late else self._together([mistake], cases)
                except Refused:
                    results.append(None)
            return results

    def _together(self, mistakes: Sequence[Mistake], cases: Sequence[Case]) -> list[Run | None]:
        if not mistakes:
            return []
        solution = self._solution
        texts = [mistake.program.module(solution) for mistake in mistakes]
        learner = self._with(None)
        run = perform(self.declaration, learner, cases, texts)
        answer = run.answer
        runs: list[Run | None] = []
        for number in range(len(mistakes)):
            if isinstance(answer, Answer):
                own = answer.result[number]
                there = own is not None
            else:
                own = [results[number] for results in answer.results]
                there = all(each is not None for each in own)
            key = "result" if isinstance(answer, Answer) else "results"
            runs.append(replace(run, answer=replace(answer, **{key: own})) if there else None)
        return runs

    @cached_property
    def _course(self) -> Course:
        return find_course(self.declaration.path)

    @property
    def _solution(self) -> str:
        return (self._course.solutions / self.learner.exercise.file).read_text(encoding="utf-8")

    def _with(self, program: Program | None) -> Learner:
        """A learner who hands in the solution, with ``program`` in its place."""
        submission = Submission(self._course.solutions)
        if program is not None:
            submission.replace(self.learner.exercise, program.module(self._solution))
        return replace(self.learner, submission=submission, answers=[], notes=[])

    def _expected(self, case: Case) -> str:
        """The promise, the case, and what a list of results looks like if it is right."""
        declaration = self.declaration
        right = declaration.right_result(case)
        words = declaration.fill(declaration.expects, case)
        if isinstance(right, list | tuple) and not case.world:
            words += f": {overview(right, declaration.parts)}"
        return f"{words} ({case.title})"

    def _sentences(self, mistake: Mistake, case: Case) -> str:
        parts = (mistake.usually, mistake.fix)
        words = " ".join(self.declaration.fill(part, case) for part in parts if part)
        return self._blames(mistake) + words

    def _blames(self, mistake: Mistake) -> str:
        return self.declaration.blames(mistake.id)

    def _broken(self, refused: Refused) -> Wrong | None:
        """What to raise where the drive itself found that a property is broken."""
        found = re.search(r"^came: .*\bBroken: (\w+): (.*)", refused.message)
        if refused.message_id != "exception" or found is None:
            return None
        done, own = stuck_in(refused) or 0, f"{self.declaration.function}.{found[1]}"
        broken = [each for each in self.declaration.properties if each.id == own]
        if not broken:
            return None
        return told(self.declaration, broken[0], self.cases[done], found[2], refused.where)

    def _name_case(self, refused: Refused) -> None:
        """Say in which case ranks got stuck; an exception has it in its notes."""
        done = stuck_in(refused)
        told = raised(refused) and refused.message_id != UNUSABLE
        if done is not None and done < len(self.cases) and not told:
            insert(refused, "usually: ", f"in the case: {self.cases[done].title}")

    def _renamed(self, refused: Refused, mistake: Mistake) -> Refused:
        """The refusal of this run, explained by a mistake."""
        done = stuck_in(refused) or 0
        case = self.cases[min(done, len(self.cases) - 1)]
        lines = [line for line in refused.message.split("\n") if not line.startswith("usually: ")]
        refused.message_id, refused.message = mistake.id, "\n".join(lines)
        insert(refused, "where: ", f"usually: {self._sentences(mistake, case)}")
        return refused


def insert(refused: Refused, before: str, text: str) -> None:
    """Put a line into a message, before the one that begins so, or at the end."""
    lines = refused.message.split("\n")
    place = next((i for i, line in enumerate(lines) if line.startswith(before)), len(lines))
    refused.message = "\n".join([*lines[:place], text, *lines[place:]])


def stuck_in(refused: Refused) -> int | None:
    """The number of the case in which a run of ranks went wrong; None for a single process.

    It is the first one in which the ranks did not make the same number of collectives: one that
    leaves a call out can go on for many cases.  Else it is the first that is not done, where two
    ranks' calls do not fit together the first that is not done by these two.
    """
    trace = refused.trace
    if trace is None:
        return None
    ranks = range(trace.world_size)
    ends = [[s.end for s in trace.spans if (s.rank, s.label) == (r, DONE)] for r in ranks]
    if raised(refused) and refused.finding is not None:
        return len(ends[refused.finding.ranks[0]])
    of_all = [call for call in trace.collectives() if len(call.members) == len(ranks)]
    made = Counter((bisect(ends[call.rank], call.time), call.rank) for call in of_all)
    by_case = [[made[i, rank] for rank in ranks] for i in range(max(map(len, ends)))]
    uneven = [i for i, counts in enumerate(by_case) if len(set(counts)) > 1]
    finding = refused.finding
    there = finding.ranks if finding and finding.kind == "mismatch" else ranks
    return min([*uneven, *(len(ends[rank]) for rank in there)])


def raised(refused: Refused) -> bool:
    """Whether a run ended with an exception, and ranks did not get stuck."""
    return refused.finding is None or refused.finding.kind in ("exception", "exit")


def explains(mistake: Mistake, refused: Refused) -> bool:
    """Whether a mistake is known as the cause of such an ending without being run."""
    finding = refused.finding
    if not mistake.roughly or finding is None or finding.kind not in ("deadlock", "mismatch"):
        return False
    if mistake.roughly is not True:
        return mistake.roughly(finding)
    states = [rank["state"] for rank in finding.details.get("ranks", [])]
    return finding.kind == "mismatch" or "returned" in states


def ending(refused: Refused) -> tuple[Any, ...]:
    """How a run ended, without lines, ranks and ports: the same for the same mistake."""
    finding, done = refused.finding, stuck_in(refused)
    if finding is None or raised(refused):
        came = (refused.message.partition("came: ")[2] or refused.message).partition("\n")[0]
        # `None * 2` and `None *= 2.0` are the same mistake
        unlike = r"(?<=operand type\(s\)) for \S+:|'int'|'float'|:\d+"
        who = r"(every rank|ranks? -?\d+(, \d+)*( and \d+)?):?"
        return refused.message_id, done, re.sub(f"{who}|{unlike}", "", came)
    if finding.kind == "mismatch":  # which ranks wait already when it shows is chance
        # how many calls there were before is not the mistake, nor is the dtype of a single number
        unlike = r", \S+:\d+|\d+(th|st|[nr]d) |(?<= of 1) \w+( \[[1, ]*\])?"
        return refused.message_id, done, re.sub(unlike, "", finding.message)
    ranks = finding.details.get("ranks", [])
    waits = [[(w["op"], w.get("peer")) for w in rank["waits"]] for rank in ranks]
    return refused.message_id, done, waits


def alike_results(one: Any, other: Any) -> bool:
    """The same values, up to rounding through float32, on the same devices."""
    if isinstance(one, Returned) and isinstance(other, Returned):
        return one.device == other.device and alike_tensors(one.value, other.value)
    if isinstance(one, dict) and isinstance(other, dict):
        keys = (one.keys() | other.keys()) - {"times", "watched"}
        return all(alike_results(one.get(key), other.get(key)) for key in keys)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike_results, one, other))
    if isinstance(one, Foreign) and isinstance(other, Foreign):
        return one.type_name == other.type_name
    if isinstance(one, float) and isinstance(other, float):
        return near_enough(one, Near(other, digits=6))
    return type(one) is type(other) and bool(one == other)


def alike_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same numbers, up to rounding; nan and inf in the same places."""
    odd = ~one.isfinite()
    if one.shape != other.shape or not odd.any():
        return alike(one, other)
    same_odd = torch.allclose(one[odd], other[odd], equal_nan=True)
    return same_odd and alike(one.masked_fill(odd, 0), other.masked_fill(odd, 0))
