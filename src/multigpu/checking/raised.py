"""An exception of the learner's code: plain data in the worker, a message in the judge."""

from collections.abc import Iterator
from typing import Any

from multigpu.checking.ending import Ending
from multigpu.checking.explanations import explanation
from multigpu.checking.loading import MissingFunction, SignatureMismatch
from multigpu.checking.verdicts import CheckerFault, Refused, Wrong
from multigpu.ranks.errors import describe_exception


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data, for the way to the judge."""
    refused_by_us = isinstance(error, MissingFunction | SignatureMismatch)
    return describe_exception(error) | {"refused_by_us": refused_by_us}


def explain_exception(ending: Ending) -> Refused | None:
    """The verdict on what the learner's code raised, None if it raised nothing."""
    raised = ending.phases.get("raised")
    if raised is None:
        return None
    exercise = ending.exercise
    if raised["refused_by_us"] and raised["type"] == "MissingFunction":
        return _missing_function(ending, raised["text"])
    if raised["refused_by_us"]:
        return Wrong(
            "signature",
            expected=exercise.signature.text,
            came=raised["text"],
            usually="a parameter was left out or added; the checks call it as in the task.",
        )
    frames = [frame for frame in raised["frames"] if ending.is_learners(frame[0])]
    if raised["type"] == "NotImplementedError" and frames and frames[-1] == raised["frames"][-1]:
        return _not_started(ending, frames[-1])
    if "running" not in ending.phases:
        what = f"{ending.path.name} cannot be imported: {_error(raised)}"
        return _crash(ending, "import_error", what, raised, frames)
    if not frames:
        return _unusable(ending, raised)
    if "SystemExit" in raised["types"]:
        what = f"your code ended the program with sys.exit({raised['status']})"
        return _crash(ending, "exit", what, raised, frames)
    if "MemoryError" in raised["types"] or "allocate memory" in raised["text"]:
        return _crash(ending, "memory", _error(raised), raised, frames)
    return _crash(ending, "exception", _error(raised), raised, frames)


def _missing_function(ending: Ending, others: str) -> Refused:
    return Wrong(
        "missing_function",
        expected=f"a function {ending.exercise.signature.text} in {ending.path.name}",
        came=f"only these: {others}" if others else "no function at all",
        usually=f"it was renamed or deleted. `multigpu reset {ending.exercise.name}` brings the "
        "task back.",
    )


def _not_started(ending: Ending, frame: list[Any]) -> Refused:
    file, line, function = frame
    exercise = ending.exercise
    if function == exercise.function:
        message = f"{exercise.name} is not written yet: {exercise.summary}"
    elif function.startswith(f"{exercise.function}."):
        message = f"{exercise.name}: the method {function} is not written yet."
    else:
        message = f"{exercise.function} needs {function}, which is not written yet."
    return ending.refused(
        "not_started", "not_started", f"{message}\nwhere: {ending.place(file, line)}"
    )


def _unusable(ending: Ending, raised: dict[str, Any]) -> Refused:
    if not raised["calls"]:
        raise CheckerFault(f"the check failed before it called the exercise: {_error(raised)}")
    return Wrong(
        "unusable_result",
        expected=f"a result of {ending.exercise.function} that the next step can work with",
        came=_error(raised),
        usually=explanation(raised["text"])
        or "the type or the device of the result is another than the task says.",
        where=ending.place(*raised["returned"]) if raised["returned"] else None,
    )


def _crash(
    ending: Ending, message_id: str, what: str, raised: dict[str, Any], frames: list[list[Any]]
) -> Refused:
    lines = [f"came: {what}", *(f"  {note}" for note in raised["notes"])]
    code = "\n".join(ending.code(file, line) for file, line, _ in frames)
    if found := explanation(raised["text"], code):
        lines.append(f"usually: {found}")
    lines += [
        f"{'where:' if number == 0 else '      '} {place}"
        for number, place in enumerate(_places(ending, frames))
    ]
    return ending.refused("crash", message_id, "\n".join(lines))


def _places(ending: Ending, frames: list[list[Any]]) -> Iterator[str]:
    """The learner's lines, innermost first; of a deep recursion only three."""
    for file, line, function in frames[::-1][:3]:
        yield ending.line(file, line, function)


def _error(raised: dict[str, Any]) -> str:
    return f"{raised['type']}: {raised['text']}" if raised["text"] else str(raised["type"])
