"""``planning.best_layout``: the fastest layout that fits, tensor parallelism inside a node."""

import math
import operator
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
            found = f"None, although {right[0]} fits" if right else ""
        elif isinstance(came, tuple) and came[:1] == ("layout",):
            found = "" if came[1:] in right else f"{came[1:]}, {flaw(case, came[1:], right)}"
        else:
            return Difference("wrong_type", f"{describe(came)} and not a tuple (dp, tp, pp)")
        return Difference("wrong_values", found) if found else None

    return Rule(examine)


def flaw(case, layout, right):
    """Why a layout does not win."""
    if layout not in case.times:
        return f"which does not use {case.gpus} GPUs"
    if case.node % layout[1]:
        return f"although tp = {layout[1]} does not divide a node of {case.node}"
    if case.needs[layout] > case.memory:
        return f"which needs {case.needs[layout]:g} of {case.memory:g} bytes"
    took, best = case.times[layout], case.times[right[0]]
    if took > best:
        return f"which takes {took:g} s and not {best:g} s"
    return f"as fast as {right[0]} but with more stages"


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


# --- mistakes ------------------------------------------------------------------------------------


def chosen(
    gpus, per_node, memory, time_of, memory_of, *,
    inside=lambda tp, per_node: per_node % tp == 0,
    fits=operator.le,
    key=lambda seconds, needs, dp, tp, pp: (seconds, pp),
):  # fmt: skip
    """Right, and each mistake below changes one argument."""
    every = [each for each in layouts(gpus) if inside(each[1], per_node)]
    fitting = [each for each in every if fits(memory_of(*each), memory)]
    keys = {each: key(time_of(*each), memory_of(*each), *each) for each in fitting}
    return min(fitting, key=keys.__getitem__, default=None)


@best_layout.mistake(
    "across_nodes",
    "tp may be anything.",
    fix="Leave out each tp that does not divide gpus_per_node.",
)
def any_tp(*given):
    return chosen(*given, inside=lambda tp, per_node: True)


@best_layout.mistake(
    "across_nodes",
    "tp is at most gpus_per_node but does not divide it, so some groups reach into another node.",
    fix="Leave out each tp that does not divide gpus_per_node.",
)
def at_most_a_node(*given):
    return chosen(*given, inside=operator.le)


@best_layout.mistake(
    "memory_ignored",
    "the fastest layout is taken, whether it fits or not.",
    fix="Keep only layouts whose memory_of is at most memory.",
)
def fastest_of_all(*given):
    return chosen(*given, fits=lambda needs, memory: True)


@best_layout.mistake(
    "must_be_smaller",
    "a layout that needs exactly all memory is left out.",
    fix="It fits: compare with <=.",
)
def smaller_than_memory(*given):
    return chosen(*given, fits=operator.lt)


@best_layout.mistake(
    "ties",
    "of equally fast layouts the first that was tried is taken.",
    fix="Take one with the fewest stages: compare by time first, and then by pp.",
)
def most_stages_of_equals(*given):
    return chosen(*given, key=lambda seconds, needs, dp, tp, pp: (seconds, dp, -pp))


@best_layout.mistake(
    "fewest_stages_first",
    "layouts are compared by stages first, and by time only among equals.",
    fix="Time decides first. The number of stages only decides between equally fast layouts.",
)
def stages_before_time(*given):
    return chosen(*given, key=lambda seconds, needs, dp, tp, pp: (pp, seconds))
