"""From how a worker ended to what the learner is told."""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from multigpu.checking.catalog import Exercise
from multigpu.checking.explanations import explanation
from multigpu.checking.request import BROKEN
from multigpu.checking.verdicts import CheckerFault, Refused, Status, Wrong

HANG_MESSAGES = {
    "busy": "your code used {cpu:g} s of processor time and was not done; "
    "a right answer needs a fraction of a second.",
    "blocked": "your code waited for {idle:g} s for something that never came.",
    "slow": "your code was not done after {wall:g} s.",
}
HANG_CAUSES = {
    "busy": "a loop whose condition never becomes false, or far too much work.",
    "blocked": "a lock, queue, barrier or join that nobody answers, or input() or sleep().",
    "slow": "far too much work, or waiting in small steps for something that never comes.",
}


@dataclass(frozen=True)
class Ending:
    """A worker's report, read as sentences."""

    report: dict[str, Any]
    exercise: Exercise
    path: Path

    @cached_property
    def phases(self) -> dict[str, dict[str, Any]]:
        """What the worker said, by phase."""
        return {header["phase"]: header for header in self.report["said"]}

    @property
    def output(self) -> str:
        """What the learner's code printed."""
        return str(self.report["output"])

    @property
    def where(self) -> str:
        """The line of the last return of the exercise, or of its definition."""
        notes = self.phases["returning"]
        found = notes["returned"] or notes["line"]
        return self.place(*found) if found else self.path.name

    def place(self, file: str, line: int) -> str:
        """``data_parallel.py:41``, seen from the folder of the submission."""
        return f"{Path(file).name}:{line}"

    def is_learners(self, file: str) -> bool:
        """Whether a file belongs to the submission."""
        return Path(file).is_relative_to(self.path.parent)

    def refused(self, status: Status, message_id: str, message: str) -> Refused:
        """The exception that ends the check."""
        return Refused(status, message_id, message, output=self.output)


def refuse_bad_ending(ending: Ending) -> None:
    """Return only if an answer came and the worker ended cleanly, else raise Refused."""
    for judge in (_fault, _forbidden, _excess, _raised, _died, _unclean):
        refused = judge(ending)
        if refused is not None:
            raise refused


def _fault(ending: Ending) -> Refused | None:
    fault = ending.phases.get("fault", {}).get("traceback", "").strip()
    if not fault and ending.report["status"] != BROKEN:
        return None
    if "importing" not in ending.phases:
        raise CheckerFault(f"the worker could not start:\n{fault}")
    return ending.refused(
        "crash",
        "broke_checker",
        "came: after your code had run, its result could not be handed over. "
        f"{fault.rpartition(chr(10))[2]}\n"
        "usually: the code changed or closed something that belongs to Python or torch itself.",
    )


def _forbidden(ending: Ending) -> Refused | None:
    for phase in ("raised", "returning"):
        used = ending.phases.get(phase, {}).get("used")
        if used:
            name, file, line = used
            return refused_name(name, ending.place(file, line), ending.exercise)
    return None


def refused_name(name: str, where: str, exercise: Exercise) -> Refused:
    """The answer to code that uses what the chapter builds by hand."""
    return Wrong(
        "refused_name",
        expected=f"{exercise.function} written by hand",
        came=f"{name} is used",
        usually=f"{name} does the very work that this chapter is about. Everything else of torch "
        "is allowed.",
        where=where,
    )


def _excess(ending: Ending) -> Refused | None:
    excess, limits = ending.report["excess"], ending.report["limits"]
    if excess is None:
        return None
    if excess == "memory":
        return ending.refused("crash", "memory", _memory_message(limits["host_memory"]))
    if excess == "processes":
        message = f"came: your code started more than {limits['processes']} processes."
        return ending.refused("crash", "processes", message)
    came, cause = HANG_MESSAGES[excess].format(**limits), HANG_CAUSES[excess]
    if "ending" in ending.phases:
        came = f"{ending.exercise.function} returned, but the program does not end: " + came
        cause = "a thread was started and never joined, or never told to stop."
    stood = _stood(ending)
    lines = [f"came: {came}", f"usually: {cause}"] + ([f"where: {stood}"] if stood else [])
    return ending.refused("hang", f"hang_{excess}", "\n".join(lines))


def _memory_message(limit: int) -> str:
    return (
        f"came: your code asked for more than {limit / 2**30:.0f} GiB of memory.\n"
        "usually: a list that grows in an endless loop, or a tensor with a wrong shape."
    )


def _stood(ending: Ending) -> str:
    """The learner's line in a stack that faulthandler wrote: the main thread's first."""
    threads = re.split(r"\n\n", ending.report["stack"])
    threads.sort(key=lambda text: "most recent call first" in text and "Current" not in text)
    for text in threads:
        for file, line, function in re.findall(r'File "(.+?)", line (\d+) in (.+)', text):
            if ending.is_learners(file):
                return f"{ending.place(file, int(line))} in {function}{_code(file, int(line))}"
    return ""


def _code(file: str, line: int) -> str:
    try:
        return ": " + Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def _raised(ending: Ending) -> Refused | None:
    raised = ending.phases.get("raised")
    if raised is None:
        return None
    exercise = ending.exercise
    if raised["type"] == "MissingFunction":
        return _missing_function(ending, raised["text"])
    if raised["type"] == "SignatureMismatch":
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
    if function == ending.exercise.function:
        message = f"{ending.exercise.name} is not written yet: {ending.exercise.summary}"
    else:
        message = f"{ending.exercise.function} needs {function}, which is not written yet."
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
    if found := explanation(raised["text"]):
        lines.append(f"usually: {found}")
    lines += [
        f"{'where:' if number == 0 else '      '} {place}"
        for number, place in enumerate(_places(ending, frames))
    ]
    return ending.refused("crash", message_id, "\n".join(lines))


def _places(ending: Ending, frames: list[list[Any]]) -> Iterator[str]:
    """The learner's lines, innermost first; of a deep recursion only three."""
    for file, line, function in frames[::-1][:3]:
        yield f"{ending.place(file, line)} in {function}{_code(file, line)}"


def _error(raised: dict[str, Any]) -> str:
    return f"{raised['type']}: {raised['text']}" if raised["text"] else str(raised["type"])


def _died(ending: Ending) -> Refused | None:
    status = ending.report["status"]
    if status == 0 and "ended" in ending.phases:
        return None
    stood = _stood(ending)
    where = f"\nwhere: {stood}" if stood else ""
    left = ending.phases.get("left")
    if left is not None:
        place = ending.place(*left["where"])
        what = f"came: your code ended the process with os._exit({left['status']}).\nwhere: {place}"
        return ending.refused("crash", "exit", what)
    if status < 0:
        name = signal.Signals(-status).name
        message_id = "segfault" if name in ("SIGSEGV", "SIGBUS", "SIGABRT") else "killed"
        return ending.refused("crash", message_id, f"came: the process died of {name}.{where}")
    return ending.refused(
        "crash", "exit", f"came: the process ended early, with exit code {status}.{where}"
    )


def _unclean(ending: Ending) -> Refused | None:
    if ending.report["foreign"]:
        return ending.refused(
            "crash",
            "foreign_bytes",
            f"came: {ending.report['foreign']} bytes were written into a pipe of the checker.\n"
            "usually: os.write to a file descriptor that your code did not open.",
        )
    if ending.report["left"]:
        names = ", ".join(ending.report["left"])
        return ending.refused(
            "wrong",
            "processes_left",
            f"expected: {ending.exercise.function} leaves no process behind\n"
            f"came: still running after it had returned: {names}\n"
            "usually: a process was started and never joined.",
        )
    return None
