"""Which status a run of a learner's code gets, from how its workers ended.

An Ending is what the server reported about one worker.  ``refuse_bad_endings`` returns only if
every worker gave an answer and ended cleanly; else it raises the verdict: not_started, crash, hang,
or wrong where ranks disagree or the chapter refuses what was used.  Whether an answer is right is
for the checks to say.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from multigpu.checking.catalog import Exercise
from multigpu.checking.verdicts import CheckerFault, Refused, Status, Wrong, by_rank, printable
from multigpu.ranks.errors import (
    Finding,
    line_of_code,
    place,
    ranks_in_words,
    signal_name,
    threads_in,
)
from multigpu.ranks.resource_monitor import Limits
from multigpu.ranks.supervisor import BROKEN
from multigpu.ranks.trace import Trace

OF_A_FINDING: dict[str, Status] = {"deadlock": "hang", "mismatch": "wrong"}
HANGS = {  # what came, and what it usually means, by the limit that was passed
    "busy": (
        "your code used {0.cpu:g} s of processor time and had not finished; "
        "a right answer needs a fraction of a second.",
        "a loop whose condition never becomes false, or far too much work.",
    ),
    "blocked": (
        "your code waited {0.idle:g} s for something that did not happen.",
        "a lock, queue, barrier or join() that never gets its counterpart, or a long sleep().",
    ),
    "slow": (
        "your code had not finished after {0.wall:g} s.",
        "far too much work, or a loop that keeps checking for something that never happens.",
    ),
}


@dataclass(frozen=True)
class Ending:
    """How one worker of a run ended.  ``report`` is what the server said about it."""

    report: dict[str, Any]
    exercise: Exercise
    path: Path
    limits: Limits
    who: str | None = None  # "rank 2", where several workers ran

    @cached_property
    def phases(self) -> dict[str, dict[str, Any]]:
        """What the worker said, by phase."""
        return {header["phase"]: header for header in self.report["said"]}

    @property
    def output(self) -> str:
        """What the learner's code printed."""
        return printable(self.report["output"])

    @property
    def returns(self) -> list[tuple[float, str]]:
        """When the exercise returned, and the return statement; "" if it ended without one."""
        notes = self.phases.get("returning") or self.phases["raised"]
        return [
            (time, f"{self.path.name}:{line}" if line else "") for time, line in notes["returned"]
        ]

    def is_learners(self, file: str) -> bool:
        """Whether a file is the learner's module, or beside it."""
        return Path(file).parent == self.path.parent

    @property
    def stack_line(self) -> str:
        """The learner's line in the stack that faulthandler wrote: the main thread's first."""
        frames = (frame for thread in threads_in(self.report["stack"]) for frame in thread)
        return next((line_of_code(*frame) for frame in frames if self.is_learners(frame[0])), "")

    def refused(
        self, status: Status, message_id: str, text: str = "", *, came: str = "", **parts: Any
    ) -> Refused:
        """The exception that ends the check."""
        if self.who is not None and came:
            came = f"{self.who}: {came}"
        return Refused(status, message_id, text, came=came, output=self.output, **parts)


def refuse_bad_endings(
    endings: Sequence[Ending], finding: Finding | None = None, trace: Trace | None = None
) -> None:
    """Return only if every worker gave an answer and ended cleanly, else raise Refused.

    If several things are wrong, the first in this order is reported, because it causes the others.
    """
    refused = (
        first_of(endings, forbidden)
        or (forbidden_call(endings[0], trace) if trace else None)
        or (of_finding(endings, finding) if finding else None)
        or first_of(endings, worker_failed)
        or first_of(waited_for_first(endings, trace), excess)
        or first_of(endings, exception_of)
        or first_of(endings, died)
        or first_of(endings, unclean)
    )
    if refused is not None:
        if endings[0].who:
            refused.output = by_rank([ending.output for ending in endings])
        refused.finding, refused.trace = finding, trace
        refused.notes = endings[0].phases.get("raised", {}).get("notes", [])
        raise refused


def first_of(
    endings: Iterable[Ending], judge: Callable[[Ending], Refused | None]
) -> Refused | None:
    """The first refusal of a worker, with the rank in it."""
    return next((refused for ending in endings if (refused := judge(ending))), None)


def waited_for_first(endings: Sequence[Ending], trace: Trace | None) -> list[Ending]:
    """The ranks that others wait for come first: not over, and in no call themselves."""
    calls = trace.calls if trace else ()
    waiting = {call.rank for call in calls if call.is_open and call.waited is not None}
    order = sorted(
        range(len(endings)),
        key=lambda rank: (endings[rank].report["status"] is not None, rank in waiting),
    )
    return [endings[rank] for rank in order]


# --- what can be wrong ---------------------------------------------------------------------------


def forbidden(ending: Ending) -> Refused | None:
    """The run went through code that the chapter refuses."""
    used = ending.phases.get("forbidden")
    if used is None:
        return None
    exercise = ending.exercise
    where = used["where"]  # none if the exercise is such code itself
    shown = place(*where) if where else place_of(exercise.function, exercise)
    return refused_name(used["name"], shown, exercise)


def forbidden_call(ending: Ending, trace: Trace) -> Refused | None:
    """Where only messages are allowed: the first other call that the learner's code made."""
    if ending.exercise.chapter.messages_only:
        for call in trace.collectives():
            if ending.is_learners(call.file):
                return refused_name(call.via, call.place, ending.exercise)
    return None


def refused_name(name: str, where: str, exercise: Exercise) -> Refused:
    """The answer to code that uses what the chapter builds by hand."""
    allowed = "Everything else of torch is allowed."
    if exercise.chapter.messages_only:
        allowed = "Use send, recv, isend, irecv or batch_isend_irecv."
    return Wrong(
        "refused_name",
        expected=f"{exercise.function} written by hand",
        came=f"{name} is used",
        usually=f"{name} does the work that you write by hand in this chapter. {allowed}",
        where=where,
    )


def of_finding(endings: Sequence[Ending], finding: Finding) -> Refused | None:
    """The verdict on ranks that got stuck, that do not agree, or of which one ended."""
    if finding.kind not in ("exception", "exit"):
        status = OF_A_FINDING[finding.kind]
        return Refused(status, finding.kind, came=finding.message, usually=finding.usually)
    all_of_them = len(finding.ranks) == len(endings) > 1
    who = "every rank" if all_of_them else ranks_in_words(finding.ranks)
    blamed = [replace(endings[rank], who=who) for rank in finding.ranks]
    return (
        first_of(blamed, exception_of) or first_of(blamed, worker_failed) or first_of(blamed, died)
    )


def worker_failed(ending: Ending) -> Refused | None:
    """The worker's own code failed: that is the learner's doing once the learner's code ran."""
    text = ending.phases.get("fault", {}).get("traceback", "").strip()
    if not text and (ending.report["status"] != BROKEN or "left" in ending.phases):
        return None
    if "importing" not in ending.phases:
        raise CheckerFault(f"the worker could not start:\n{text}")
    return ending.refused(
        "crash",
        "broke_checker",
        came="after your code had run, its result could not be handed over. "
        + text.rpartition("\n")[2],
        usually="the code changed or closed something that belongs to Python or torch itself.",
    )


def excess(ending: Ending) -> Refused | None:
    """The run passed a limit of time, memory or processes."""
    passed, limits = ending.report["excess"], ending.limits
    if passed is None:
        return None
    if {"raised", "ending"} <= ending.phases.keys():  # the exception came before
        return exception_of(ending)
    if passed == "memory":
        return ending.refused(
            "crash",
            "memory",
            came=f"your code asked for more than {limits.host_memory / 2**30:g} GiB of memory.",
            usually="a list that grows in an endless loop, or a tensor with the wrong shape.",
        )
    if passed == "processes":
        came = f"your code started more than {limits.processes} processes."
        return ending.refused("crash", "processes", came=came)
    came, cause = HANGS[passed]
    if "ending" in ending.phases:
        came = f"{ending.exercise.function} returned, but the program does not end: {came}"
        cause = "a thread was started and never joined, or never told to stop."
    return ending.refused(
        "hang",
        f"hang_{passed}",
        came=came.format(limits),
        usually=cause,
        where=ending.stack_line,
    )


def place_of(message_id: str, exercise: Exercise) -> str:
    """The function that a message is about: no line of it is known to be at fault."""
    return f"{message_id.partition('.')[0]} in {exercise.file}"


def exception_of(ending: Ending) -> Refused | None:
    """The learner's code raised an exception, which the worker described as plain data."""
    error = ending.phases.get("raised")
    if error is None:
        return None
    exercise = ending.exercise
    if error["unfit"]:
        message_id, came = error["unfit"]
        if message_id == "signature":
            return Wrong(
                "signature",
                expected=exercise.signature.text,
                came=came,
                usually="a parameter was left out or added. The checks call it as the task "
                "describes.",
            )
        return Wrong(
            "missing_function",
            expected=f"a function {exercise.signature.text} in {ending.path.name}",
            came=f"only these: {came}" if came else "no function at all",
            usually="it was renamed or deleted.",
        )
    frames = [frame for frame in error["frames"] if ending.is_learners(frame[0])]
    if error["type"] == "NotImplementedError" and frames and frames[-1] == error["frames"][-1]:
        return _not_started(ending, frames[-1])
    text = f"{error['type']}: {error['text']}" if error["text"] else str(error["type"])
    if "running" not in ending.phases:
        what = f"{ending.path.name} cannot be imported: {text}"
        return _crash(ending, "import_error", what, error, frames)
    if error["type"] == "Broken":  # of declaration.py
        return _crash(ending, "exception", text, error, frames)
    if not frames:
        if not error["calls"]:
            raise CheckerFault(f"the check failed before it called the exercise: {text}")
        return Wrong(
            "unusable_result",
            expected=f"a result of {exercise.function} that the next step can use",
            came=text,
            usually=explanation(error["text"])
            or "the result has another type or device than the task asks for.",
            where=(ending.returns and ending.returns[-1][1])
            or place_of(exercise.function, exercise),
        )
    if "SystemExit" in error["types"]:
        what = f"your code ended the program with sys.exit({error['status']})"
        return _crash(ending, "exit", what, error, frames)
    if "MemoryError" in error["types"] or "allocate memory" in error["text"]:
        return _crash(ending, "memory", text, error, frames)
    return _crash(ending, "exception", text, error, frames)


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
        "not_started",
        "not_started",
        message,
        where=place(file, line),
        unwritten=function.partition(".")[0],
    )


def _crash(
    ending: Ending, message_id: str, what: str, error: dict[str, Any], frames: list[list[Any]]
) -> Refused:
    # The learner's lines, innermost first; of a deep recursion only three.
    places = [line_of_code(*frame) for frame in frames[::-1][:3]]
    return ending.refused(
        "crash",
        message_id,
        came="\n".join([what, *(f"  {note}" for note in error["notes"])]),
        usually=explanation(error["text"]) or "",
        where="\n       ".join(places),
    )


def died(ending: Ending) -> Refused | None:
    """The process was gone before it had handed over an answer."""
    status = ending.report["status"]
    if status == 0 and "ended" in ending.phases:
        return None
    left = ending.phases.get("left")
    if left is not None:  # the run may have been ended before the process was gone: no status then
        came = f"your code ended the process with os._exit({left['status']})."
        return ending.refused("crash", "exit", came=came, where=place(*left["where"]))
    assert status is not None, "a worker that neither ended nor passed a limit"
    message_id, came = "exit", f"the process ended early, with exit code {status}."
    if status < 0:
        name = signal_name(-status)
        message_id = "segfault" if name in ("SIGSEGV", "SIGBUS", "SIGABRT") else "killed"
        came = f"the process died of {name}."
    return ending.refused("crash", message_id, came=came, where=ending.stack_line)


def unclean(ending: Ending) -> Refused | None:
    """An answer came, but something was left behind."""
    if ending.report["foreign"]:
        return ending.refused(
            "crash",
            "foreign_bytes",
            came=f"{ending.report['foreign']} bytes were written into a pipe of the checker.",
            usually="os.write to a file descriptor that your code did not open.",
        )
    if ending.report["left"]:
        names = ", ".join(ending.report["left"])
        return replace(ending, who=None).refused(  # it is not known which rank started it
            "wrong",
            "processes_left",
            expected=f"{ending.exercise.function} leaves no process behind",
            came=f"still running after it had returned: {names}",
            usually="a process was started and never joined.",
        )
    return None


# --- what an error usually means ------------------------------------------------------------------

# What torch's error messages usually mean.
EXPLANATIONS = (
    (
        r"Expected all tensors to be on the same device",
        "two tensors of one operation are on different devices. Move one of them: x.to(y.device).",
    ),
    (
        r"can't convert cuda:\d+ device type tensor to numpy",
        "numpy can only read the CPU's memory. Call x.cpu() first.",
    ),
    (r"invalid device ordinal", "there are not that many GPUs. They are numbered from 0."),
    (
        r"does not require grad and does not have a grad_fn",
        "the result is not connected to the parameters: detach(), .data, .item(), no_grad or a new "
        "tensor cuts the graph.",
    ),
    (
        r"'NoneType' object has no attribute",
        "a value is None. A gradient is None if the layer was not used, if the replica got no "
        "rows, or if the tensor does not require gradients.",
    ),
    (
        r"unsupported operand type\(s\) for \S+: ('NoneType' and|.* and 'NoneType')",
        "a value is None. A gradient is None if the layer was not used, and .grad is not set yet "
        "in a hook of register_hook. A hook of register_post_accumulate_grad_hook runs later.",
    ),
    (
        r"forward\(\) got an unexpected keyword argument|forward\(\) takes \d+ positional",
        "a model can have several inputs and keyword arguments: forward(self, *inputs, **named) "
        "passes all of them on.",
    ),
    (
        r"leaf Variable that requires grad",
        "a parameter was changed in place while autograd was recording. Change it inside "
        "torch.no_grad().",
    ),
    (
        r"modified by an inplace operation",
        "a tensor that backward still needs was changed in place.",
    ),
    (
        r"Expected parameter `\w+` of type torch\.Tensor\s+but got <class 'NoneType'>",
        "None was passed to torch.distributed. A gradient (.grad) is None if the loss does not use "
        "the parameter or if it is frozen. Send zeros for it, or leave it out on all ranks.",
    ),
    (
        r"Boolean value of Tensor with more than one value",
        "`in`, index, sorted and == on a list of tensors compare their elements. Compare the "
        "objects instead: with `is`, by name, or with tensors as keys of a dict.",
    ),
    (
        r"assigned grad expected to be a Tensor",
        "something other than a tensor was assigned to .grad. sum([]) is the number 0, so leave "
        ".grad as it is if there is no gradient.",
    ),
    (
        r"assign(ed)? (a )?grad(ient)? (with dtype|of size|has data of a different)",
        "a gradient must have the shape and dtype of its parameter. torch.zeros(shape) is float32, "
        "while torch.zeros_like(parameter) has the parameter's dtype and device.",
    ),
    (
        r"cannot register a hook on a tensor that doesn't require gradient",
        "the parameter is frozen (requires_grad is False). It never gets a gradient, so leave it "
        "out.",
    ),
    (
        r"closed by peer|Connection reset",
        "another rank ended or destroyed its process group while this rank still needed the "
        "connection.",
    ),
    (
        r"process group has not been initiali[sz]ed",
        "there is no process group: the task needs none, or the code has destroyed it. The checker "
        "makes and destroys it where one is needed.",
    ),
    (
        r"there is no rank -?\d+ in a group",
        "rank numbers end at world_size - 1. In a ring the next rank is (rank + 1) % world_size.",
    ),
    (
        r"Invalid (destination|source) rank|Pair is not connected",
        "a rank cannot send a message to itself, or receive one from itself.",
    ),
    (
        r"optimizer got an empty parameter list",
        "this rank owns no parameter, and torch's optimizers refuse an empty list. Create no "
        "optimizer on this rank, but let it take part in every message.",
    ),
    (
        r"second time",
        "backward ran twice through the same graph. Compute the outputs again, or add up the "
        "losses.",
    ),
)


def explanation(text: str) -> str | None:
    """The explanation of the first of these messages that ``text`` contains."""
    return next((why for pattern, why in EXPLANATIONS if re.search(pattern, text)), None)
