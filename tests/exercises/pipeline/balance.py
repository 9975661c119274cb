"""``pipeline.balance``: the layers of a model in stages whose largest cost is smallest."""

import itertools
import random
from fractions import Fraction

from multigpu.checking.comparing import Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe
from multigpu.checking.verdicts import numbered
from multigpu.ranks.errors import counted, listed

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
    for layers, most in itertools.product(range(1, 13), (1, 3, 9, 100)):
        costs = [draw.randint(0, most) for _ in range(layers)]
        yield from ((costs, stages) for stages in draw.sample(range(1, 9), 3))
    yield from (([draw.randint(1, 20) for _ in range(24)], 4) for _ in range(4))


@balance.cases
def cases():
    for costs, stages in [*CALLS, *FRACTIONS, *WITHOUT_COST, *FEW_LAYERS, *random_calls()]:
        yield case(f"balance({costs}, {stages})", costs=costs, n=stages)


@balance.drive
def drive(submission, case, devices):
    """A range comes as ("range", start, stop, step)."""
    result = submission.balance(case.costs, case.n)
    if type(result) is not list:
        return result
    return [("range", i.start, i.stop, i.step) if type(i) is range else i for i in result]


def ranges_in(came):
    """The ranges that came; none at all if something else is among them."""
    there = came if isinstance(came, list) else []
    are_ranges = all(isinstance(item, tuple) and item[:1] == ("range",) for item in there)
    return [range(*item[1:]) for item in there] if are_ranges else []


def shown(ranges):
    return listed(map(str, ranges))


def sums_of(case):
    """Of the first layers; exact, so that the order of adding up makes no difference."""
    return [0, *itertools.accumulate(map(Fraction, case.costs))]


def largest(sums, ranges):
    return max(sums[each.stop] - sums[each.start] for each in ranges)


def best_cut(case):
    """Ranges of which the largest cost is smallest, none of them empty while there are layers."""
    cuts, sums = every_cut(len(case.costs), case.n), sums_of(case)
    return min(cuts, key=lambda ranges: largest(sums, ranges))


@balance.words
def words(case):
    best = best_cut(case)
    smallest = f"{float(largest(sums_of(case), best)):g}"
    return {"n": case.n, "layers": len(case.costs), "smallest": smallest, "best": shown(best)}


@balance.expected
def expected(case):
    sums = sums_of(case)
    smallest = largest(sums, best_cut(case))

    def examine(came):
        ranges = ranges_in(came)
        if not ranges:
            return Difference("wrong_type", f"{describe(came)}, and not a list of ranges only")
        if len(ranges) != case.n:
            found = f"{counted(len(ranges), 'range')} ({shown(ranges)}), and not {case.n}"
            return Difference("wrong_count", found)
        reached = largest(sums, ranges)
        if reached > smallest * (1 + ROUNDING):
            found = f"{shown(ranges)}: one stage costs {float(reached):g}"
            return Difference("wrong_values", found)
        return None

    return Rule(examine)


@balance.holds(
    "not_contiguous",
    expects="ranges that hold all {layers} layers, each of which begins where the one before ends",
    usually="a layer is in no stage or in two, or a stage is not one piece of the model:"
    " range(0, 2) holds the layers 0 and 1.",
    fix="Let each stage begin where the one before ends, and the last end with the last layer.",
    first=True,
)
def every_layer_is_in_its_stage(run, case):
    ranges = ranges_in(run.came(case))
    layers = [layer for each in ranges for layer in each]
    return shown(ranges) if ranges and layers != [*range(len(case.costs))] else None


@balance.holds(
    "empty_stage",
    expects="at least one layer for every stage, as in {best}",
    usually="the largest cost is right, but a GPU without a layer only passes on what it receives.",
    fix="With {n} or more layers, give each of the {n} stages at least one.",
)
def every_stage_has_a_layer(run, case):
    ranges = ranges_in(run.came(case))
    empty = [stage for stage, each in enumerate(ranges) if not each]
    if not empty or len(case.costs) < case.n:
        return None
    return f"{shown(ranges)}: {numbered('stage', empty)} without a layer"


# --- right answers -------------------------------------------------------------------------------


def ranges_of(ends):
    return [range(first, end) for first, end in itertools.pairwise([0, *ends])]


def every_cut(layers, stages):
    filled = min(stages, layers)
    for cuts in itertools.combinations(range(1, layers), filled - 1):
        yield ranges_of([*cuts, *[layers] * (stages - filled + 1)])


@balance.right
def tries_every_cut(costs, num_stages):
    def slowest(ranges):
        return max(sum(costs[each.start : each.stop]) for each in ranges)

    return min(every_cut(len(costs), num_stages), key=slowest)


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


def filled_up(costs, num_stages, is_full):
    share, ends, held = sum(costs) / num_stages, [], 0
    for layer, cost in enumerate(costs):
        if held and is_full(held, cost, share) and len(ends) < num_stages - 1:
            ends.append(layer)
            held = 0
        held += cost
    return ranges_of(ends + [len(costs)] * (num_stages - len(ends)))


@balance.mistake("greedy", GREEDY, fix=COMPARE)
def stops_before_the_share(costs, num_stages):
    return filled_up(costs, num_stages, lambda held, cost, share: held + cost > share)


@balance.mistake("greedy", GREEDY, fix=COMPARE)
def fills_to_the_share(costs, num_stages):
    return filled_up(costs, num_stages, lambda held, cost, share: held >= share)
