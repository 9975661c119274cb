"""``data_parallel.parallel_apply``: all forwards at the same time, nothing lost on the way.

When a forward runs and what an error says cannot be seen in values, so most of this file are
properties.
"""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from multigpu.checking.declaration import case, exercise, on
from multigpu.checking.encoding import describe
from multigpu.checking.verdicts import numbered
from multigpu.ranks.errors import counted, listed

from .meeting import Fails, Meeting, Scale, kind_of_error

parallel_apply = exercise(
    "data_parallel.parallel_apply",
    expects="a list of {n} outputs: output i is replicas[i](chunks[i]), on its GPU",
    parts="output",
)


@parallel_apply.cases
def cases():
    for n in (3, 2, 4):
        yield together(range(n))
        if n == 3:
            yield together(range(n), 2, example=True)
        if n == 4:
            for chunks, replicas in ((2, 4), (1, 2), (1, 4), (3, 4)):
                yield together(range(replicas), chunks, gpus=4)
            for order in ([3, 1, 0, 2], (1, 0), (2,)):
                yield together(order, gpus=4)
        else:
            yield a_case("in the caller's grad mode", drive_modes, n, range(n))
    yield together(range(5))
    for n in (3, 2, 4):
        what = "each replica raises an error in turn"
        yield a_case(what, drive_errors, n, range(n), alone=True)  # a wrong answer can hang


def together(order, chunks=None, gpus=None, **more):
    """Forwards that wait for each other; replica i is on GPU ``order[i]``."""
    n = chunks or len(order)
    title = f"{counted(n, 'chunk')}, {counted(len(order), 'replica')}"
    return a_case(title, drive_meeting, n, order, gpus=gpus, **more)


def a_case(what, drive, n, order, gpus=None, **more):
    title = f"{what}, on {listed(f'cuda:{i}' for i in order)}"
    factors = [1.0 + i for i in range(len(order))]
    rows = [2] * (n - 1) + [1]  # every product of a factor with a chunk is there only once
    numbers = 0.125 + torch.arange(2 * sum(rows), dtype=torch.float64).reshape(-1, 2) * 31
    order = order if isinstance(order, tuple) else [*order]
    return case(
        title,
        gpus=gpus or len(order),
        drive=drive,
        factors=factors,
        chunks=numbers.split(rows),
        order=order,
        **more,
    )


@parallel_apply.drive
def drive(submission, case, devices):
    kind = type(case.order)  # list or tuple
    chunks = kind(c.to(devices[i]) for c, i in zip(case.chunks, case.order, strict=False))
    return case.drive(submission.parallel_apply, case, kind(devices[i] for i in case.order), chunks)


def drive_meeting(parallel_apply, case, devices, chunks):
    meeting = Meeting(len(case.factors), expected=len(chunks))
    replicas = [Scale(i, f, meeting).to(devices[i]) for i, f in enumerate(case.factors)]
    outputs = parallel_apply(type(chunks)(replicas), chunks)
    return {
        "the result": list(outputs) if isinstance(outputs, list | tuple) else outputs,
        "watched": {
            "finished": sum(meeting.finished),
            "calls": list(meeting.calls),
            "at once": meeting.most_present,
        },
    }


MODES = {
    "ordinary code": contextlib.nullcontext,
    "torch.no_grad()": torch.no_grad,
    "torch.inference_mode()": torch.inference_mode,
}


def drive_modes(parallel_apply, case, devices, chunks):
    """In each grad mode; in ordinary code backward follows."""
    replicas = [Scale(i, f).to(devices[i]) for i, f in enumerate(case.factors)]
    came = {}
    for name, mode in MODES.items():
        with mode():
            outputs = parallel_apply(replicas, chunks)
        came[f"the result in {name}"] = outputs
        for i, output in enumerate(outputs if isinstance(outputs, list | tuple) else ()):
            came[f"requires_grad of output {i} in {name}"] = getattr(output, "requires_grad", None)
            if name == "ordinary code" and isinstance(output, torch.Tensor) and output.grad_fn:
                output.sum().backward()
    return came | {f"the gradient of replica {i}": r.factor.grad for i, r in enumerate(replicas)}


def drive_errors(parallel_apply, case, devices, chunks):
    """One replica fails after the other.  No replica has the number of its GPU."""
    devices = [*devices[1:], devices[0]]
    chunks = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=True)]
    reports = []
    for bad in range(len(chunks)):
        replicas = [
            (Fails(i) if i == bad else Scale(i, 1.0)).to(device) for i, device in enumerate(devices)
        ]
        try:
            reports.append({"returned": parallel_apply(replicas, chunks)})
        except Exception as error:
            reports.append({"raised": [tell(each) for each in family_of(error)]})
    return {"errors": reports}


def family_of(error):
    """An error with its causes and, for a group, its members."""
    family = [error]
    for member in family:
        relatives = [member.__cause__, member.__context__, *getattr(member, "exceptions", ())]
        family += [e for e in relatives if e is not None and e not in family]
    return family


def tell(error):
    notes = [str(note) for note in getattr(error, "__notes__", [])]
    return {"type": type(error).__name__, "texts": [str(error), *notes]}


@parallel_apply.expected
def expected(case):
    if case.drive is drive_errors:
        return {}
    pairs = zip(case.factors, case.chunks, case.order, strict=False)
    outputs = [on(f"cuda:{gpu}", factor * chunk) for factor, chunk, gpu in pairs]
    if case.drive is drive_meeting:
        return {"the result": outputs}
    right: dict[str, Any] = {}
    for name in MODES:
        right[f"the result in {name}"] = outputs
        for i in range(len(outputs)):
            right[f"requires_grad of output {i} in {name}"] = name == "ordinary code"
    gradients = enumerate(chunk.sum() for chunk in case.chunks)
    return right | {f"the gradient of replica {i}": gradient for i, gradient in gradients}


@parallel_apply.words
def words(case):
    return {"n": len(case.chunks)}


# --- when the forwards run -----------------------------------------------------------------------


def meeting_of(run, case):
    """What was noted while forwards waited for each other; None if there is nothing to judge."""
    came = run.came(case)
    met = case.drive is drive_meeting and came["the result"] is not None
    return came["watched"] if met else None


@parallel_apply.holds(
    "does_not_wait",
    expects="the function returns when all {n} forwards have finished",
    usually="the threads were started but not joined.",
    fix="Call join() on every thread after all have started.",
    first=True,
)
def waits_for_all(run, case):
    came = meeting_of(run, case)
    if came and came["finished"] < max(1, sum(came["calls"])):
        return f"it returned when {came['finished']} of {counted(len(case.chunks), 'forward')} had"
    return None


@parallel_apply.holds(
    "one_waits",
    expects="{n} forwards at the same time",
    usually="there is no thread; start() and join(), or submit() and result(), are in one loop; the"
    " calling thread ran a chunk before start() or after join(); or a pool is small.",
    fix="Start all threads, and join them after that. A calling thread runs its chunk in between;"
    " a pool needs {n} workers.",
    first=True,
)
def all_at_once(run, case):
    came = meeting_of(run, case)
    if came and came["at once"] < len(case.chunks):
        return f"at most {came['at once']} at the same time"
    return None


@parallel_apply.holds(
    "replicas_not_used",
    expects="each of the {n} replicas that have a chunk runs once",
    usually="all threads took the same index: a function sees a loop variable as it is later.",
    fix="Pass the index as an argument: args=(i,).",
    first=True,
)
def each_runs_once(run, case):
    came = meeting_of(run, case)
    n = len(case.chunks)
    if came is None or came["calls"] == [1] * n + [0] * (len(case.factors) - n):
        return None
    calls = came["calls"]
    busy, idle = calls.index(max(calls)), [i for i in range(n) if not calls[i]]
    never = f", {numbered('replica', idle)} never" if idle else ""
    return f"replica {busy} ran {counted(calls[busy], 'time')}{never}"


@parallel_apply.holds(
    "completion_order",
    expects="the outputs in the order of the replicas",
    usually="they were collected as they became ready, and replica 0 is the slowest here.",
    fix="Give every output its place: outputs[i] = ...",
    first=True,
)
def in_order(run, case):
    values = run.came(case)["the result"] if meeting_of(run, case) else None
    if not isinstance(values, list) or len(values) != len(case.chunks):
        return None
    right = [factor * chunk for factor, chunk in zip(case.factors, case.chunks, strict=False)]
    order = [next((i for i, r in enumerate(right) if equals(v, r)), None) for v in values]
    if order != sorted(range(len(right))) and set(order) == set(range(len(right))):
        return f"the outputs of replicas {listed(order)}, in this order"
    return None


def equals(came, right):
    value = getattr(came, "value", None)
    return value is not None and torch.equal(value, right)


# --- what an error says --------------------------------------------------------------------------

# "replica 1", "Replica #1", "replicas[1]", "replica number 1", "replica_id=1".  Not a group, as in
# "replicas 0 to 3".
NAMED = re.compile(
    r"replica(?:s\[|(?!s)\D{0,3}|[\W_]{0,3}(?:number|num|no|nr|index|idx|id)[\W_]{0,3})(\d+)",
    re.IGNORECASE,
)
RAISES = "when a replica raises an error, the caller gets it, and it names this replica by number"


def reports_of(run, case):
    """For each replica in turn: its number, what came when it failed, the kinds and the texts."""
    for bad, report in enumerate(run.came(case).get("errors", ())):
        kind, raised = kind_of_error(bad).__name__, report.get("raised", [])
        kinds, texts = [e["type"] for e in raised], [text for e in raised for text in e["texts"]]
        came = f"replica {bad} raised {kind}, and the function "
        came += f"raised {kinds[0]}" if raised else f"returned {describe(report['returned'])}"
        came += f": {'; '.join(raised[0]['texts'])}" if raised else ""
        yield bad, came, kind in kinds or "a row is too long" in " ".join(texts), texts


@parallel_apply.holds(
    "error_swallowed",
    expects=RAISES,
    usually="an error ends its own thread only, the thread caught some kinds of errors only, or a"
    " new error took the place of the first one.",
    fix="Catch errors of any kind in the thread, and raise them after join(): the error itself, or"
    " `raise RuntimeError(...) from error`.",
)
def errors_are_raised(run, case):
    return next((came for _, came, is_there, _ in reports_of(run, case) if not is_there), None)


@parallel_apply.holds(
    "replica_not_named",
    expects=RAISES,
    usually="nothing in the error tells which replica it was, or it names another one, or others.",
    fix='Add it: error.add_note(f"replica {{i}}"), counted from 0, by its place in the list and not'
    " by its GPU. The calling thread may raise one too.",
)
def replicas_are_named(run, case):
    for bad, came, _, texts in reports_of(run, case):
        if {int(number) for text in texts for number in NAMED.findall(text)} != {bad}:
            return came
    return None


@parallel_apply.right
def pool_with_a_new_error(replicas, chunks):
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                return replicas[i](chunks[i])
        except Exception as error:
            raise RuntimeError(f"forward failed on replica {i}") from error

    with ThreadPoolExecutor(len(chunks)) as pool:
        return list(pool.map(forward, range(len(chunks))))


@parallel_apply.right
def calling_thread_takes_the_first(replicas, chunks):
    outputs, errors = [None] * len(chunks), {}
    mode = torch.is_grad_enabled()

    def forward(i):
        torch.set_grad_enabled(mode)
        try:
            outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            errors[i] = error

    threads = [threading.Thread(target=forward, args=[i]) for i in range(1, len(chunks))]
    for thread in threads:
        thread.start()
    forward(0)
    for thread in threads:
        thread.join()
    for i, error in errors.items():
        error.args = (f"replica {i}: {error}",)
        raise error
    return outputs


@parallel_apply.mistake(
    "grad_mode_lost",
    "a new thread begins with gradients on, whatever the mode of the caller is.",
    fix="Ask torch.is_grad_enabled() before you start the threads, and set the same inside.",
)
def threads_with_their_own_grad_mode(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        return list(pool.map(lambda replica, chunk: replica(chunk), replicas, chunks))
