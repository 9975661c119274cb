"""``pipeline.balance``: the layers of a model in stages whose largest cost is smallest."""

import itertools
import random
from fractions import Fraction

from multigpu.checking.comparing import Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe
from multigpu.checking.verdicts import count, listed, numbered

balance = exercise(
    "pipeline.balance",
    expects="{n} ranges of layers with a largest cost of {smallest}, such as {best}",
    everywhere=True,
)
ROUNDING = 1e-9  # of a sum of floats

CALLS = [
    ([4, 4, 4, 4, 4], 3),
    ([1, 1, 1, 3], 2),
    ([3, 1, 1, 1], 2),
    ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3),
    ([4, 1, 1, 1, 1, 4], 3),
    ([5, 3, 1, 1, 3, 5], 4),
    ([7, 2, 5, 10, 8], 2),
    ([2, 3, 4], 1),
]
FRACTIONS = [((0.25, 0.5, 0.125, 0.125), 3), ([1e-9, 2e-9, 3e-9, 4e-9], 2), ([2.5e9, 1, 1.5], 2)]
WITHOUT_COST = [([0, 0, 5], 2), ([0, 0, 0, 0], 3), ([3, 0, 0, 0, 3, 0], 4), ([10, 1, 1], 3)]
FEW_LAYERS = [([5, 1], 3), ([1], 4), ([2, 2, 2], 5), ([0.5], 2)]


def random_calls():
    """Few and many different costs, up to eight stages."""
    draw = random.Random(0)
    for layers in range(1, 13):
        for most in (1, 3, 9, 100):
            costs: list[float] = [draw.randint(0, most) for _ in range(layers)]
            yield from ((costs, stages) for stages in draw.sample(range(1, 9), 3))
        costs = [round(draw.random(), 3) for _ in range(layers)]
        yield from ((costs, stages) for stages in draw.sample(range(1, 9), 3))
    yield from (([draw.randint(1, 20) for _ in range(24)], 4) for _ in range(4))


@balance.cases
def cases():
    for costs, stages in [*CALLS, *FRACTIONS, *WITHOUT_COST, *FEW_LAYERS, *random_calls()]:
        yield case(f"balance({costs}, {stages})", costs=costs, n=stages)


@balance.drive
def drive(submission, case, devices):
    """A range comes as ("range", start, stop), with its step if that matters."""
    result = submission.balance(case.costs, case.n)
    if type(result) is not list:
        return result
    return [ends_of(item) if type(item) is range else item for item in result]


def ends_of(item):
    ends = ("range", item.start, item.stop)
    return ends if item.step == 1 or len(item) < 2 else (*ends, item.step)


def best_cut(costs, stages):
    """Ranges of which the largest cost is smallest, none of them empty while there are layers."""
    total = [Fraction(0), *itertools.accumulate(map(Fraction, costs))]
    filled = min(stages, len(costs))
    best: dict[int, tuple[Fraction, tuple[int, ...]]]
    best = {k: (total[k], (k,)) for k in range(1, len(costs) + 1)}
    for number in range(2, filled + 1):
        best = {
            k: min(
                (max(best[j][0], total[k] - total[j]), (*best[j][1], k))
                for j in range(number - 1, k)
            )
            for k in range(number, len(costs) + 1)
        }
    ends = best[len(costs)][1] + (len(costs),) * (stages - filled)
    return list(itertools.pairwise((0, *ends)))


def largest(costs, cut):
    """Exact, so that the order of adding up makes no difference."""
    return max(sum(map(Fraction, costs[first:end])) for first, end in cut)


def shown(cut):
    return listed(f"range({first}, {end})" for first, end in cut)


@balance.words
def words(case):
    cut = best_cut(case.costs, case.n)
    smallest = f"{float(largest(case.costs, cut)):g}"
    return {"n": case.n, "layers": len(case.costs), "smallest": smallest, "best": shown(cut)}


@balance.expected
def expected(case):
    def examine(came):
        if not isinstance(came, list):
            return Difference("wrong_type", f"{describe(came)} and not a list of ranges")
        for item in came:
            if not (isinstance(item, tuple) and item[:1] == ("range",)):
                return Difference("wrong_type", f"a list with {describe(item)} in it, not ranges")
        cut = cut_of(came)
        if len(cut) != case.n:
            found = f"{count(len(cut), 'range')} ({shown(cut)}), and not {case.n}"
            return Difference("wrong_count", found)
        if any(end > len(case.costs) for first, end in cut if first < end):
            found = f"{shown(cut)}, but there are only {count(len(case.costs), 'layer')}"
            return Difference("wrong_values", found)
        reached, smallest = (
            largest(case.costs, each) for each in (cut, best_cut(case.costs, case.n))
        )
        if reached > smallest * (1 + ROUNDING):
            return Difference("wrong_values", f"{shown(cut)}: one stage costs {float(reached):g}")
        return None

    return Rule(examine)


def cut_of(came):
    """The starts and ends of the ranges; none at all if it is not a list of ranges."""
    if not isinstance(came, list):
        return []
    ranges = [item for item in came if isinstance(item, tuple) and item[:1] == ("range",)]
    return [item[1:3] for item in ranges] if len(ranges) == len(came) else []


@balance.holds(
    "not_contiguous",
    expects="every range begins where the one before ends",
    usually="a layer is in two stages, or a stage is not one piece of the model.",
    fix="Use range(first, end) with a step of 1, and let the next stage begin at end.",
    first=True,
)
def each_range_is_one_piece(run, case):
    came = run.came(case)
    cut = cut_of(came)
    if cut and any(len(item) > 3 for item in came):
        return "a range with a step, which leaves layers out or counts backward"
    layers = [layer for first, end in cut for layer in range(first, end)]
    return shown(cut) if layers != sorted(set(layers)) else None


@balance.holds(
    "layers_missing",
    expects="ranges that hold all {layers} layers",
    usually="a range ends before its end: range(0, 2) holds the layers 0 and 1.",
    fix="Let each stage begin where the one before ends, and the last end with the last layer.",
    first=True,
)
def no_layer_is_missing(run, case):
    cut = cut_of(run.came(case))
    there = {layer for first, end in cut for layer in range(first, end)}
    missing = sorted(set(range(len(case.costs))) - there)
    return f"{shown(cut)}: {numbered('layer', missing)} in no stage" if cut and missing else None


@balance.holds(
    "empty_stage",
    expects="at least one layer for every stage, as in {best}",
    usually="the largest cost is right, but a GPU without a layer only passes on what it receives.",
    fix="With {n} or more layers, give each of the {n} stages at least one.",
)
def every_stage_has_a_layer(run, case):
    cut = cut_of(run.came(case))
    empty = [stage for stage, (first, end) in enumerate(cut) if end <= first]
    if not empty or len(case.costs) < case.n:
        return None
    return f"{shown(cut)}: {numbered('stage', empty)} without a layer"


# --- right answers -------------------------------------------------------------------------------


def ranges_of(ends):
    return [range(first, end) for first, end in itertools.pairwise([0, *ends])]


@balance.right
def tries_every_cut(costs, num_stages):
    n = len(costs)
    filled = min(num_stages, n)
    best = min(
        itertools.combinations(range(1, n), filled - 1),
        key=lambda cuts: max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, n))),
    )
    return ranges_of([*best, *[n] * (num_stages - filled + 1)])


@balance.right
def empty_ones_first(costs, num_stages):
    filled = min(num_stages, len(costs))
    return [range(0)] * (num_stages - filled) + tries_every_cut(costs, filled)


# --- mistakes ------------------------------------------------------------------------------------

EQUAL = "the stages have equal numbers of layers."
COSTS = "Make their costs equal: layers differ, and the slowest stage sets the pace."
GREEDY = (
    "each stage is filled up to an equal share of the whole cost, and the last one takes the rest."
)
COMPARE = (
    "Compare all places of each cut: the best cut of the first k layers into s stages follows from"
    " the best cuts into s - 1 stages."
)


@balance.mistake("equal_layers", EQUAL, fix=COSTS)
def first_stages_take_one_more(costs, num_stages):
    share, rest = divmod(len(costs), num_stages)
    return ranges_of(itertools.accumulate(share + (s < rest) for s in range(num_stages)))


@balance.mistake("equal_layers", EQUAL, fix=COSTS)
def rounds_down(costs, num_stages):
    share = len(costs) // num_stages
    return ranges_of([*(share * s for s in range(1, num_stages)), len(costs)])


@balance.mistake("greedy", GREEDY, fix=COMPARE)
def stops_before_the_share(costs, num_stages):
    share, ends, held = sum(costs) / num_stages, [], 0
    for layer, cost in enumerate(costs):
        if held and held + cost > share and len(ends) < num_stages - 1:
            ends.append(layer)
            held = 0
        held += cost
    return ranges_of(ends + [len(costs)] * (num_stages - len(ends)))


@balance.mistake("greedy", GREEDY, fix=COMPARE)
def fills_to_the_share(costs, num_stages):
    share, ends, held = sum(costs) / num_stages, [], 0
    for layer, cost in enumerate(costs, 1):
        held += cost
        if held >= share and len(ends) < num_stages - 1:
            ends.append(layer)
            held = 0
    return ranges_of(ends + [len(costs)] * (num_stages - len(ends)))
