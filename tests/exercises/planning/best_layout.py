"""``planning.best_layout``: the fastest layout that fits, tensor parallelism inside a node."""

import math
import random

from multigpu.checking.comparing import Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe

best_layout = exercise(
    "planning.best_layout",
    expects="{best}",
    everywhere=True,
)


def layouts(gpus):
    """Every (dp, tp, pp) that uses all GPUs."""
    return [
        (gpus // tp // pp, tp, pp)
        for tp in range(1, gpus + 1)
        for pp in range(1, gpus + 1)
        if gpus % (tp * pp) == 0
    ]


def made(gpus, per_node, memory, time_of, memory_of):
    times = {each: float(time_of(*each)) for each in layouts(gpus)}
    needs = {each: float(memory_of(*each)) for each in layouts(gpus)}
    title = f"{gpus} GPUs, {per_node} per node, {memory:g} of memory"
    return case(title, gpus=gpus, node=per_node, memory=memory, times=times, needs=needs)


@best_layout.cases
def cases():
    def stages(dp, tp, pp):
        return 1.0 + pp

    def held(dp, tp, pp):
        return 64 / (tp * pp)

    for memory in (16.0, 8.0, 4.0, 64.0):
        yield made(8, 4, memory, stages, held)
    yield made(1, 1, 64.0, stages, held)
    yield made(1, 8, 63.0, stages, held)  # nothing fits
    yield made(16, 8, 8.0, lambda dp, tp, pp: 1.0 / tp, held)  # a node's whole width
    yield made(64, 8, 64.0, lambda dp, tp, pp: 5.0, held)  # all equally fast
    yield made(64, 8, 2.0, lambda dp, tp, pp: 5.0, held)
    yield made(24, 8, 16.0, lambda dp, tp, pp: abs(tp - 3) + pp / 9, held)  # 3 in no node of 8
    yield made(12, 4, 8.0, lambda dp, tp, pp: dp, held)
    yield made(12, 6, 8.0, lambda dp, tp, pp: dp, held)
    yield made(4, 8, 32.0, lambda dp, tp, pp: 1 / tp, held)  # not a whole node
    yield made(8, 8, 32.0, lambda dp, tp, pp: math.inf if pp > 2 else 9 - pp, held)
    draw = random.Random(0)
    for gpus, per_node in ((8, 8), (16, 4), (24, 8), (36, 6), (64, 8), (48, 4), (30, 5), (64, 8)):
        times = {each: draw.randint(1, 6) / 4 for each in layouts(gpus)}
        needs = {each: draw.randint(10, 99) for each in layouts(gpus)}
        for memory in (30, 55, 99, 9):
            yield made(gpus, per_node, memory, lambda *each, t=times: t[each],
                       lambda *each, m=needs: m[each])  # fmt: skip


@best_layout.drive
def drive(submission, case, devices):
    """A tuple comes as ("layout", ...): what else is returned must not look like one."""

    def looked_up(values, name):
        def value_of(dp, tp, pp):
            if (dp, tp, pp) not in values:
                raise ValueError(
                    f"{name}({dp}, {tp}, {pp}): these are {dp * tp * pp} GPUs, not {case.gpus}"
                )
            return values[dp, tp, pp]

        return value_of

    result = submission.best_layout(
        case.gpus, case.node, case.memory,
        looked_up(case.times, "time_of"), looked_up(case.needs, "memory_of"),
    )  # fmt: skip
    if result is None:
        return "nothing fits"
    return ("layout", *result) if type(result) in (tuple, list) else result


def right_ones(case):
    """All layouts that win: as fast, and with as few stages."""
    fitting = [
        each for each, needs in case.needs.items()
        if needs <= case.memory and case.node % each[1] == 0
    ]  # fmt: skip
    ranks = {each: (case.times[each], each[2]) for each in fitting}
    return [each for each in fitting if ranks[each] == min(ranks.values())]


@best_layout.words
def words(case):
    right = right_ones(case)
    if not right:
        return {"best": "None, because no layout fits"}
    best = " or ".join(map(str, right))
    return {"best": f"{best}, the fastest (dp, tp, pp) that fits with tp inside a node"}


@best_layout.expected
def expected(case):
    right = right_ones(case)

    def examine(came):
        if came == "nothing fits":
            if not right:
                return None
            return Difference("wrong_values", f"None, although {right[0]} fits")
        if not (isinstance(came, tuple) and came[:1] == ("layout",)):
            return Difference("wrong_type", f"{describe(came)} and not a tuple (dp, tp, pp)")
        layout = came[1:]
        if layout in right:
            return None
        if layout not in case.times:
            return Difference("wrong_values", f"{layout}, which does not use {case.gpus} GPUs")
        if case.node % layout[1]:
            what = f"{layout}, although tp = {layout[1]} does not divide a node of {case.node}"
            return Difference("wrong_values", what)
        if case.needs[layout] > case.memory:
            needs = f"{case.needs[layout]:g} of {case.memory:g}"
            return Difference("wrong_values", f"{layout}, which needs {needs} bytes")
        if not right:
            return Difference("wrong_values", f"{layout}, and not None")
        took, best = case.times[layout], case.times[right[0]]
        if took > best:
            return Difference(
                "wrong_values", f"{layout}, which takes {took:g} s and not {best:g} s"
            )
        return Difference("wrong_values", f"{layout}, as fast as {right[0]} but with more stages")

    return Rule(examine)


# --- right answers -------------------------------------------------------------------------------


@best_layout.right
def three_loops(gpus, gpus_per_node, memory, time_of, memory_of):
    best, key = None, (math.inf, math.inf)
    for dp in range(1, gpus + 1):
        for tp in range(1, gpus_per_node + 1):
            for pp in range(1, gpus + 1):
                if dp * tp * pp != gpus or gpus_per_node % tp:
                    continue
                if memory_of(dp, tp, pp) > memory:
                    continue
                this = (time_of(dp, tp, pp), pp)
                if best is None or this < key:
                    best, key = (dp, tp, pp), this
    return best


@best_layout.right
def sorted_layouts(gpus, gpus_per_node, memory, time_of, memory_of):
    every = [
        (gpus // tp // pp, tp, pp)
        for tp in range(gpus_per_node, 0, -1)
        for pp in range(gpus, 0, -1)
        if gpus_per_node % tp == 0 and gpus % (tp * pp) == 0
    ]
    every.sort(key=lambda each: (time_of(*each), each[2]))
    return next((each for each in every if memory_of(*each) <= memory), None)


# --- mistakes ------------------------------------------------------------------------------------


def chosen(gpus, time_of, memory_of, *, fits, inside=lambda tp: True, key=None):
    every = [
        (gpus // tp // pp, tp, pp)
        for tp in range(1, gpus + 1)
        for pp in range(1, gpus + 1)
        if gpus % (tp * pp) == 0 and inside(tp)
    ]
    every = [each for each in every if fits(memory_of(*each))]
    return min(every, key=key or (lambda each: (time_of(*each), each[2])), default=None)


@best_layout.mistake(
    "across_nodes",
    "tp may be anything.",
    fix="Leave out each tp that does not divide gpus_per_node.",
)
def any_tp(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(gpus, time_of, memory_of, fits=lambda needs: needs <= memory)


@best_layout.mistake(
    "across_nodes",
    "tp is at most gpus_per_node but does not divide it, so some groups reach into another node.",
    fix="Leave out each tp that does not divide gpus_per_node.",
)
def at_most_a_node(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs <= memory, inside=lambda tp: tp <= gpus_per_node,
    )  # fmt: skip


@best_layout.mistake(
    "memory_ignored",
    "the fastest layout is taken, whether it fits or not.",
    fix="Keep only layouts whose memory_of is at most memory.",
)
def fastest_of_all(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: True, inside=lambda tp: gpus_per_node % tp == 0,
    )  # fmt: skip


@best_layout.mistake(
    "must_be_smaller",
    "a layout that needs exactly all memory is left out.",
    fix="It fits: compare with <=.",
)
def smaller_than_memory(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs < memory, inside=lambda tp: gpus_per_node % tp == 0,
    )  # fmt: skip


@best_layout.mistake(
    "ties",
    "of equally fast layouts the first that was tried is taken.",
    fix="Take one with the fewest stages: compare by time first, and then by pp.",
)
def most_stages_of_equals(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs <= memory, inside=lambda tp: gpus_per_node % tp == 0,
        key=lambda each: (time_of(*each), each[0], -each[2]),
    )  # fmt: skip


@best_layout.mistake(
    "slowest",
    "the layout that takes longest is taken.",
    fix="time_of gives seconds: the smallest is the fastest.",
)
def longest(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs <= memory, inside=lambda tp: gpus_per_node % tp == 0,
        key=lambda each: -time_of(*each),
    )  # fmt: skip


@best_layout.mistake(
    "least_memory",
    "the layout that needs least memory is taken.",
    fix="Memory only has to fit. Among layouts that fit, the time decides.",
)
def smallest(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs <= memory, inside=lambda tp: gpus_per_node % tp == 0,
        key=lambda each: (memory_of(*each), time_of(*each)),
    )  # fmt: skip


@best_layout.mistake(
    "fewest_stages_first",
    "layouts are compared by stages first, and by time only among equals.",
    fix="Time decides first. The number of stages only decides between equally fast layouts.",
)
def stages_before_time(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs <= memory, inside=lambda tp: gpus_per_node % tp == 0,
        key=lambda each: (each[2], time_of(*each)),
    )  # fmt: skip


@best_layout.mistake(
    "order_of_sizes",
    "the three sizes come in another order.",
    fix="Return (dp, tp, pp).",
)
def pipeline_first(gpus, gpus_per_node, memory, time_of, memory_of):
    found = chosen(
        gpus, time_of, memory_of,
        fits=lambda needs: needs <= memory, inside=lambda tp: gpus_per_node % tp == 0,
    )  # fmt: skip
    return found and found[::-1]


@best_layout.mistake(
    "order_of_sizes",
    "time_of and memory_of were called with the sizes in another order.",
    fix="Call them as time_of(dp, tp, pp) and memory_of(dp, tp, pp).",
)
def asks_for_stages_first(gpus, gpus_per_node, memory, time_of, memory_of):
    return chosen(
        gpus, lambda dp, tp, pp: time_of(dp, pp, tp), lambda dp, tp, pp: memory_of(dp, pp, tp),
        fits=lambda needs: needs <= memory, inside=lambda tp: gpus_per_node % tp == 0,
    )  # fmt: skip
