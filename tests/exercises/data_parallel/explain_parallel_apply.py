"""What is wrong with an answer to ``data_parallel.parallel_apply``, in the learner's numbers."""

import re

from multigpu.checking import Returned, Wrong, describe
from multigpu.checking.comparing import recognise, same
from multigpu.checking.verdicts import count, listed, numbered

from .meeting import kind_of_error

# "replica 1", "Replica #1", "replicas[1]", "replica number 1", "replica_id=1".  Not a group, as in
# "replicas 0 to 3".
NAMED = re.compile(
    r"replica(?:s\[|(?!s)\D{0,3}|[\W_]{0,3}(?:number|num|no|nr|index|idx|id)[\W_]{0,3})(\d+)",
    re.IGNORECASE,
)


def examine_meeting(came, factors, chunks, where):
    """All forwards ran at the same time, and nothing came of it but the right outputs."""
    n = len(chunks)
    if came["outputs"] is not None:
        examine_concurrency(came, n, where)
        examine_calls(came["calls"], n, where)
    examine(came["outputs"], factors, chunks, range(n), where)


def examine(outputs, factors, chunks, order, where):
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

    examine_form(outputs, n, len(factors), wrong)
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


def examine_form(outputs, n, replicas, wrong):
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
        (i, j): factor * chunk for i, factor in enumerate(factors) for j, chunk in enumerate(chunks)
    }
    pairs = []
    for i, value in enumerate(values):
        pair = recognise(value, products)
        if pair is None:
            return wrong(
                "values_changed",
                f"output {i} is no replica's work on any chunk",
                "the outputs were changed after forward, or forward got other rows.",
            )
        pairs.append(pair)
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


def examine_calls(calls, n, where):
    """Each of the first n replicas, those that have a chunk, has run once."""
    if calls == [1] * n + [0] * (len(calls) - n):
        return
    busy, idle = calls.index(max(calls)), [i for i, times in enumerate(calls[:n]) if not times]
    raise Wrong(
        "parallel_apply.replicas_not_used",
        expected=f"{numbered('replica', range(n))} {'runs' if n == 1 else 'run'} once",
        came=f"replica {busy} ran {count(calls[busy], 'time')}"
        + (f", {numbered('replica', idle)} never" if idle else ""),
        usually="all threads took the same index. A function made in a loop sees the loop variable"
        " as it is later: pass it as an argument.",
        where=where,
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
    kind = kind_of_error(bad).__name__

    def wrong(mistake, came, usually):
        return Wrong(
            f"parallel_apply.{mistake}",
            expected=f'replica {bad} raises {kind}("a row is too long"): the caller gets it,'
            f' and it names "replica {bad}"',
            came=came,
            usually=usually,
            where=where,
        )

    if "returned" in report:
        raise wrong(
            "error_swallowed",
            f"no error; the function returned {describe(report['returned'])}",
            "an error ends its own thread only. Catch it there, of any kind, keep it, and raise"
            " it after join.",
        )
    raised = report["raised"]
    texts = [text for error in raised for text in (error["text"], *error["notes"])]
    came = f"{raised[0]['type']}: {'; '.join((raised[0]['text'], *raised[0]['notes']))}"
    if not any(error["type"] == kind for error in raised) and not any(
        "a row is too long" in text for text in texts
    ):
        raise wrong(
            "cause_lost",
            came,
            "a new error took the place of the first one. Write `raise ... from error`.",
        )
    named = {int(number) for text in texts for number in NAMED.findall(text)}
    if named == {bad}:
        return
    if named:
        raise wrong(
            "wrong_replica_named",
            came,
            "replicas are counted from 0, by their place in the list and not by their GPU.",
        )
    raise wrong(
        "replica_not_named",
        came,
        'nothing tells which replica it was: error.add_note(f"replica {i}") does.',
    )


def examine_gradients(gradients, chunks, where):
    """The gradient of factor i is the sum over chunk i, if output i is trained on."""
    for i, (gradient, chunk) in enumerate(zip(gradients, chunks, strict=True)):
        if gradient is None or not same(gradient.value, chunk.sum()):
            raise Wrong(
                "parallel_apply.detached",
                expected=f"backward from output {i} brings a gradient to replica {i}",
                came="none" if gradient is None else "another gradient",
                usually="the output was copied from its numbers, so autograd lost the way.",
                where=where,
            )
