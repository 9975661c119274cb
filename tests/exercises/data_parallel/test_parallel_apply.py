"""Checks of ``data_parallel.parallel_apply``: all forwards at once, nothing lost on the way."""

import contextlib
import re

import pytest
import torch

from multigpu.checking import Returned, Wrong, describe, exercise
from multigpu.checking.comparing import recognise, same
from multigpu.checking.wording import count, listed, numbered

from .meeting import Fails, Meeting, Scale

MODES = {
    "ordinary code": contextlib.nullcontext,
    "torch.no_grad()": torch.no_grad,
    "torch.inference_mode()": torch.inference_mode,
}


def drive(submission, devices, factors, chunks, order):
    """Apply one Scale per factor; chunk i lies on the GPU of replica i, ``devices[order[i]]``."""
    replicas = [Scale(i, f).to(devices[order[i]]) for i, f in enumerate(factors)]
    placed = tuple(chunk.to(devices[i]) for chunk, i in zip(chunks, order, strict=False))
    return submission.parallel_apply(tuple(replicas), placed)


def drive_meeting(submission, devices, factors, chunks):
    """The same with forwards that wait for each other and finish in reverse order."""
    meeting = Meeting(len(factors))
    replicas = [Scale(i, f, meeting).to(devices[i]) for i, f in enumerate(factors)]
    placed = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=True)]
    outputs = submission.parallel_apply(replicas, placed)
    return {
        "outputs": list(outputs) if isinstance(outputs, list | tuple) else outputs,
        "finished": sum(meeting.finished),
        "calls": list(meeting.calls),
        "most_present": meeting.most_present,
    }


def drive_modes(submission, devices, factors, chunks, modes):
    """Apply in each grad mode; in ordinary code go on with backward."""
    replicas = [Scale(i, f).to(devices[i]) for i, f in enumerate(factors)]
    placed = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=True)]
    results = {}
    for name, mode in modes.items():
        with mode():
            results[name] = submission.parallel_apply(replicas, placed)
    for output in results["ordinary code"]:
        if output.requires_grad:
            output.sum().backward()
    return {"outputs": results, "gradients": [replica.factor.grad for replica in replicas]}


def drive_errors(submission, devices, chunks, failing):
    """Let one replica fail after the other, and tell what was raised each time."""
    reports = []
    for bad in failing:
        replicas = [
            (Fails() if i == bad else Scale(i, 1.0)).to(device) for i, device in enumerate(devices)
        ]
        placed = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=True)]
        try:
            reports.append({"returned": submission.parallel_apply(replicas, placed)})
        except Exception as error:
            reports.append({"raised": [tell(e) for e in family_of(error)]})
    return reports


def family_of(error):
    """An error with its causes and, for a group, its members."""
    family = [error]
    for member in family:
        relatives = [member.__cause__, member.__context__, *getattr(member, "exceptions", ())]
        family += [e for e in relatives if e is not None and e not in family]
    return family


def tell(error):
    return {
        "type": type(error).__name__,
        "text": str(error),
        "notes": [str(note) for note in getattr(error, "__notes__", [])],
    }


def factors_and_chunks(n, replicas=None):
    """Every product of a factor with a chunk is there only once."""
    factors = [1.0 + i for i in range(replicas or n)]
    rows = [2] * (n - 1) + [1]
    numbers = 0.125 + torch.arange(2 * sum(rows), dtype=torch.float64).reshape(-1, 2) * 31
    return factors, list(numbers.split(rows))


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize(
    "order", [[0], [0, 1], [0, 1, 2], [3, 1, 0, 2]], ids=lambda order: "".join(map(str, order))
)
def test_replica_i_works_on_chunk_i(learner, order):
    factors, chunks = factors_and_chunks(len(order))
    answer = learner.run(drive, factors, chunks, order, gpus=1 + max(order))
    examine(answer.result, factors, chunks, order, answer.where)


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize(("n", "replicas"), [(1, 2), (2, 3), (1, 4), (3, 4)])
def test_fewer_chunks_than_replicas(learner, n, replicas):
    factors, chunks = factors_and_chunks(n, replicas)
    answer = learner.run(drive, factors, chunks, range(replicas), gpus=replicas)
    examine(answer.result, factors, chunks, range(replicas), answer.where)


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize("n", [3, 4, 2])
def test_all_at_the_same_time_and_in_order(learner, n):
    factors, chunks = factors_and_chunks(n)
    answer = learner.run(drive_meeting, factors, chunks, gpus=n)
    came = answer.result
    examine_concurrency(came, n, answer.where)
    examine(came["outputs"], factors, chunks, range(n), answer.where, calls=came["calls"])


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize("n", [2, 3])
def test_grad_mode_of_the_caller(learner, n):
    factors, chunks = factors_and_chunks(n)
    answer = learner.run(drive_modes, factors, chunks, MODES, gpus=n)
    for mode in MODES:
        outputs = answer.result["outputs"][mode]
        examine(outputs, factors, chunks, range(n), answer.where)
        examine_grad_mode(mode, [output.requires_grad for output in outputs], answer.where)
    for i, (gradient, chunk) in enumerate(zip(answer.result["gradients"], chunks, strict=True)):
        if gradient is None or not same(gradient.value, chunk.sum()):
            raise Wrong(
                "parallel_apply.detached",
                expected=f"backward from output {i} brings a gradient to replica {i}",
                came="none" if gradient is None else "another gradient",
                usually="the output was copied from its numbers, so autograd lost the way.",
                where=answer.where,
            )


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_errors_are_raised_and_name_the_replica(learner, n):
    _, chunks = factors_and_chunks(n)
    answer = learner.run(drive_errors, chunks, range(n), gpus=n)
    for bad, report in enumerate(answer.result):
        examine_error(bad, report, answer.where)


def examine(outputs, factors, chunks, order, where, *, calls=None):
    """Raise Wrong unless output i is what replica i makes of chunk i, on its GPU."""
    n = len(chunks)
    right = [factor * chunk for factor, chunk in zip(factors, chunks, strict=False)]
    expected = f"{count(n, 'output')}: replica i's work on chunk i"
    if len(factors) > n:
        expected += f" ({count(n, 'chunk')}, {count(len(factors), 'replica')})"

    def wrong(mistake, came, usually):
        return Wrong(
            f"parallel_apply.{mistake}", expected=expected, came=came, usually=usually, where=where
        )

    examine_form(outputs, n, len(factors), calls, wrong)
    values = [output.value for output in outputs]
    if not all(map(same, values, right)):
        raise wrong_outputs(values, factors, chunks, right, wrong)
    places = [output.device for output in outputs]
    home = [f"cuda:{i}" for i in order][:n]
    if places != home:
        i = [a == b for a, b in zip(places, home, strict=True)].index(False)
        raise wrong(
            "outputs_moved",
            f"output {i} is on {places[i]}, replica {i} on {home[i]}",
            "the outputs were brought together already. That is the work of gather.",
        )


def examine_form(outputs, n, replicas, calls, wrong):
    if outputs is None:
        raise wrong("returned_nothing", "None", "the function ends without `return`.")
    if not isinstance(outputs, list | tuple):
        raise wrong("not_a_list", describe(outputs), "return all outputs in one list.")
    absent = [i for i, output in enumerate(outputs) if output is None]
    if len(outputs) == replicas != n:
        raise wrong(
            "needs_as_many_chunks",
            f"{count(len(outputs), 'output')}"
            + (f", {numbered('output', absent)} None" if absent else ""),
            "there is a thread for every replica. A small batch has fewer chunks.",
        )
    if calls is not None and 0 in calls:
        idle = [i for i, times in enumerate(calls) if not times]
        busy = calls.index(max(calls))
        raise wrong(
            "replicas_not_used",
            f"replica {busy} ran {count(calls[busy], 'time')}, {numbered('replica', idle)} never",
            "all threads took the same index: a function made in a loop sees the loop variable as"
            " it is later. Pass it as an argument.",
        )
    if absent:
        raise wrong(
            "output_missing",
            f"{numbered('output', absent)} {'is' if len(absent) == 1 else 'are'} None",
            "what a thread's function returns is thrown away. It must store its output.",
        )
    for i, output in enumerate(outputs):
        if not isinstance(output, Returned):
            raise wrong(
                "not_tensors",
                f"output {i} is {describe(output)}",
                "a future is a promise; its .result() is the output.",
            )
    if len(outputs) != n:
        raise wrong("count", count(len(outputs), "output"), "one output per chunk, no more.")


def wrong_outputs(values, factors, chunks, right, wrong):
    """Which replica worked on which chunk?"""
    products = {
        (i, j): factor * chunk
        for i, factor in enumerate(factors)
        for j, chunk in enumerate(chunks)
    }
    pairs = [recognise(value, products) for value in values]
    if None in pairs:
        i = pairs.index(None)
        return wrong(
            "values_changed",
            f"output {i} is no replica's work on any chunk",
            "the outputs were changed after forward, or forward got other rows.",
        )
    used = [i for i, _ in pairs]
    if all(i == j for i, j in pairs):
        return wrong(
            "completion_order",
            f"the outputs of replicas {listed(used)}, in this order",
            "they were collected as they became ready. Replica 0 may be the slowest.",
        )
    return wrong(
        "wrong_chunk",
        "; ".join(f"replica {i} worked on chunk {j}" for i, j in pairs),
        "replicas and chunks were paired in another way than by their index.",
    )


def examine_concurrency(came, n, where):
    def wrong(mistake, found, usually):
        return Wrong(
            f"parallel_apply.{mistake}",
            expected=f"{count(n, 'forward')} at the same time",
            came=found,
            usually=usually,
            where=where,
        )

    if came["finished"] < max(1, sum(came["calls"])):
        raise wrong(
            "does_not_wait",
            f"the function returned when {came['finished']} of {count(n, 'forward')} had finished",
            "the threads were started, but not joined.",
        )
    if came["most_present"] == 1:
        raise wrong(
            "one_after_another",
            "each forward began after the one before it had finished",
            "there is no thread; or start() and join(), or submit() and result(), stand in the"
            " same loop; or the function was called where it should be passed: target=f(i).",
        )
    if came["most_present"] < n:
        raise wrong(
            "one_waits",
            f"at most {came['most_present']} at the same time",
            "the calling thread finished its own chunk before it started the threads, or the pool"
            " has too few workers.",
        )


def examine_grad_mode(mode, requires_grad, where):
    ordinary = mode == "ordinary code"
    if all(flag == ordinary for flag in requires_grad):
        return
    i = requires_grad.index(not ordinary)
    if ordinary:
        raise Wrong(
            "parallel_apply.detached",
            expected="outputs that can be trained, when the caller is in ordinary code",
            came=f"output {i} does not require grad",
            usually="the threads run under no_grad or inference_mode, whatever the caller does.",
            where=where,
        )
    raise Wrong(
        "parallel_apply.grad_mode_lost",
        expected=f"outputs without gradients, when the caller is inside {mode}",
        came=f"output {i} requires grad",
        usually="a new thread begins with gradients on. Ask torch.is_grad_enabled() before you"
        " start it, and set the same inside.",
        where=where,
    )


def examine_error(bad, report, where):
    def wrong(mistake, came, usually):
        return Wrong(
            f"parallel_apply.{mistake}",
            expected=f'replica {bad} raises ValueError("a row is too long"): the caller gets it,'
            f' and it names "replica {bad}"',
            came=came,
            usually=usually,
            where=where,
        )

    if "returned" in report:
        raise wrong(
            "error_swallowed",
            f"no error; the function returned {describe(report['returned'])}",
            "an error ends its own thread only. Catch it there, keep it, and raise it after join.",
        )
    raised = report["raised"]
    texts = [text for error in raised for text in (error["text"], *error["notes"])]
    came = f"{raised[0]['type']}: {'; '.join((raised[0]['text'], *raised[0]['notes']))}"
    if not any(error["type"] == "ValueError" for error in raised) and not any(
        "a row is too long" in text for text in texts
    ):
        raise wrong(
            "cause_lost",
            came,
            "a new error took the place of the first one. Write `raise ... from error`.",
        )
    if any(re.search(rf"(?<!\d){bad}(?!\d)", text) for text in texts):
        return
    named = [match for text in texts for match in re.findall(r"replica\D{0,3}(\d+)", text)]
    if named:
        raise wrong("wrong_replica_named", came, "replicas are counted from 0.")
    raise wrong(
        "replica_not_named",
        came,
        f'nothing tells which replica it was: error.add_note(f"replica {{i}}") does.',
    )
