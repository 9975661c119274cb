"""From how a worker ended to what the learner is told."""

import signal
from dataclasses import replace

from multigpu.checking.catalog import Exercise
from multigpu.checking.ending import Ending
from multigpu.checking.raised import explain_exception
from multigpu.checking.verdicts import CheckerFault, Refused, Wrong
from multigpu.ranks.child_process import BROKEN

HANG_MESSAGES = {
    "busy": "your code used {cpu:g} s of processor time and was not done; "
    "a right answer needs a fraction of a second.",
    "blocked": "your code waited for {idle:g} s for something that never came.",
    "slow": "your code was not done after {wall:g} s.",
}
HANG_CAUSES = {
    "busy": "a loop whose condition never becomes false, or far too much work.",
    "blocked": "a lock, queue, barrier or join that nobody answers, or a long sleep().",
    "slow": "far too much work, or waiting in small steps for something that never comes.",
}

ALL_ELSE = "Everything else of torch is allowed."
MESSAGES_ONLY = "Use send, recv, isend, irecv or batch_isend_irecv."


def refuse_bad_ending(ending: Ending) -> None:
    """Return only if an answer came and the worker ended cleanly, else raise Refused."""
    for judge in (fault, forbidden, excess, explain_exception, died, unclean):
        refused = judge(ending)
        if refused is not None:
            raise refused


def fault(ending: Ending) -> Refused | None:
    text = ending.phases.get("fault", {}).get("traceback", "").strip()
    if not text and (ending.report["status"] != BROKEN or "left" in ending.phases):
        return None
    if "importing" not in ending.phases:
        raise CheckerFault(f"the worker could not start:\n{text}")
    return ending.refused(
        "crash",
        "broke_checker",
        "came: after your code had run, its result could not be handed over. "
        f"{text.rpartition(chr(10))[2]}\n"
        "usually: the code changed or closed something that belongs to Python or torch itself.",
    )


def forbidden(ending: Ending) -> Refused | None:
    for phase in ("raised", "returning"):
        used = ending.phases.get(phase, {}).get("used")
        if used:
            name, file, line = used
            return refused_name(name, ending.place(file, line), ending.exercise)
    return None


def refused_name(name: str, where: str, exercise: Exercise) -> Refused:
    """The answer to code that uses what the chapter builds by hand."""
    usually = f"{name} does the very work that this chapter is about."
    allowed = MESSAGES_ONLY if exercise.chapter.messages_only else ALL_ELSE
    return Wrong(
        "refused_name",
        expected=f"{exercise.function} written by hand",
        came=f"{name} is used",
        usually=f"{usually} {allowed}",
        where=where,
    )


def excess(ending: Ending) -> Refused | None:
    passed, limits = ending.report["excess"], ending.limits
    if passed is None:
        return None
    if passed == "memory":
        return ending.refused("crash", "memory", _memory_message(limits["host_memory"]))
    if passed == "processes":
        message = f"came: your code started more than {limits['processes']} processes."
        return ending.refused("crash", "processes", message)
    came, cause = HANG_MESSAGES[passed].format(**limits), HANG_CAUSES[passed]
    if "ending" in ending.phases:
        came = f"{ending.exercise.function} returned, but the program does not end: " + came
        cause = "a thread was started and never joined, or never told to stop."
    stood = ending.stood
    lines = [f"came: {came}", f"usually: {cause}"] + ([f"where: {stood}"] if stood else [])
    return ending.refused("hang", f"hang_{passed}", "\n".join(lines))


def _memory_message(limit: int) -> str:
    return (
        f"came: your code asked for more than {limit / 2**30:g} GiB of memory.\n"
        "usually: a list that grows in an endless loop, or a tensor with a wrong shape."
    )


def died(ending: Ending) -> Refused | None:
    status = ending.report["status"]
    if status == 0 and "ended" in ending.phases:
        return None
    left = ending.phases.get("left")
    if left is not None:  # the run may have been ended before the process was gone: no status then
        place = ending.place(*left["where"])
        what = f"came: your code ended the process with os._exit({left['status']}).\nwhere: {place}"
        return ending.refused("crash", "exit", what)
    assert status is not None, "a worker that neither ended nor passed a limit"
    stood = ending.stood
    where = f"\nwhere: {stood}" if stood else ""
    if status < 0:
        name = signal.Signals(-status).name
        message_id = "segfault" if name in ("SIGSEGV", "SIGBUS", "SIGABRT") else "killed"
        return ending.refused("crash", message_id, f"came: the process died of {name}.{where}")
    return ending.refused(
        "crash", "exit", f"came: the process ended early, with exit code {status}.{where}"
    )


def unclean(ending: Ending) -> Refused | None:
    if ending.report["foreign"]:
        return ending.refused(
            "crash",
            "foreign_bytes",
            f"came: {ending.report['foreign']} bytes were written into a pipe of the checker.\n"
            "usually: os.write to a file descriptor that your code did not open.",
        )
    if ending.report["left"]:
        names = ", ".join(ending.report["left"])
        return replace(ending, who=None).refused(  # nobody knows which rank started it
            "wrong",
            "processes_left",
            f"expected: {ending.exercise.function} leaves no process behind\n"
            f"came: still running after it had returned: {names}\n"
            "usually: a process was started and never joined.",
        )
    return None
