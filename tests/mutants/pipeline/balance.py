"""Answers to ``balance``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import itertools
from functools import lru_cache

from harness import right, wrong


@wrong("balance.equal_layers")
def same_number_of_layers(costs, num_stages):
    share, rest = divmod(len(costs), num_stages)
    stages, first = [], 0
    for stage in range(num_stages):
        end = first + share + (stage < rest)
        stages.append(range(first, end))
        first = end
    return stages


@wrong("wrong_values")
def greedy_with_a_layer_for_everybody(costs, num_stages):
    stages, first = [], 0
    for stage in range(num_stages - 1):
        share = sum(costs[first:]) / (num_stages - stage)
        end = min(first + 1, len(costs))
        while end < len(costs) - (num_stages - stage - 1) and sum(costs[first : end + 1]) <= share:
            end += 1
        stages.append(range(first, end))
        first = end
    return stages + [range(first, len(costs))]


@wrong("wrong_values")
def largest_smallest_cost(costs, num_stages):
    n = len(costs)
    filled = min(num_stages, n)
    best = max(
        itertools.combinations(range(1, n), filled - 1),
        key=lambda cuts: min(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n))),
    )
    cuts = (0, *best, n)
    stages = [range(a, b) for a, b in zip(cuts, cuts[1:])]
    return stages + [range(n, n)] * (num_stages - filled)


@wrong("balance.empty_stage")
def smallest_but_some_empty(costs, num_stages):
    n = len(costs)

    @lru_cache(None)
    def best(first, stages):
        if stages == 1:
            return sum(costs[first:]), (n,)
        return min(
            (max(sum(costs[first:end]), best(end, stages - 1)[0]), (end, *best(end, stages - 1)[1]))
            for end in range(first, n + 1)
        )

    ends = (0, *best(0, num_stages)[1])
    return [range(a, b) for a, b in zip(ends, ends[1:])]


@wrong("balance.empty_stage")
def closes_stages_only_when_full(costs, num_stages):
    """The smallest largest cost is right, but stages at the end stay empty."""
    n = len(costs)
    sums = sorted({sum(costs[a:b]) for a in range(n) for b in range(a + 1, n + 1)})
    for limit in sums:
        stages, first = [], 0
        while first < n and len(stages) <= num_stages:
            end = first
            while end < n and sum(costs[first : end + 1]) <= limit:
                end += 1
            if end == first:
                break
            stages.append(range(first, end))
            first = end
        if first == n and len(stages) <= num_stages:
            return stages + [range(n, n)] * (num_stages - len(stages))


@wrong("wrong_count")
def leaves_empty_stages_out(costs, num_stages):
    return right_ranges(costs, min(num_stages, len(costs)))


@wrong("balance.layers_missing")
def last_layer_lost(costs, num_stages):
    stages = right_ranges(costs, num_stages)
    return [*stages[:-1], range(stages[-1].start, max(stages[-1].start, len(costs) - 1))]


@wrong("balance.layers_missing")
def ends_are_inclusive(costs, num_stages):
    return [range(s.start, max(s.start, s.stop - 1)) for s in right_ranges(costs, num_stages)]


@wrong("balance.not_contiguous")
def stages_overlap(costs, num_stages):
    return [range(max(s.start - 1, 0), s.stop) for s in right_ranges(costs, num_stages)]


@wrong("balance.not_contiguous")
def dealt_in_turn(costs, num_stages):
    return [range(s, len(costs), num_stages) for s in range(num_stages)]


@wrong("wrong_type")
def lists_of_layers(costs, num_stages):
    return [list(stage) for stage in right_ranges(costs, num_stages)]


@wrong("wrong_type")
def costs_instead_of_layers(costs, num_stages):
    return [[costs[i] for i in stage] for stage in right_ranges(costs, num_stages)]


@wrong("wrong_type")
def pairs_of_numbers(costs, num_stages):
    return [(stage.start, stage.stop) for stage in right_ranges(costs, num_stages)]


@wrong("wrong_type")
def generates(costs, num_stages):
    return (stage for stage in right_ranges(costs, num_stages))


@wrong("returned_nothing")
def prints_it(costs, num_stages):
    print(right_ranges(costs, num_stages))


@wrong("wrong_values")
def whole_numbers_only(costs, num_stages):
    return right_ranges([int(cost) for cost in costs], num_stages)


@wrong("exception", status="crash")
def fails_with_few_layers(costs, num_stages):
    n = len(costs)
    best = min(
        itertools.combinations(range(1, n), num_stages - 1),
        key=lambda cuts: max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n))),
    )
    cuts = (0, *best, n)
    return [range(a, b) for a, b in zip(cuts, cuts[1:])]


def right_ranges(costs, num_stages):
    n = len(costs)
    filled = min(num_stages, n)
    best = min(
        itertools.combinations(range(1, n), filled - 1),
        key=lambda cuts: max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n))),
    )
    cuts = (0, *best, n)
    return [range(a, b) for a, b in zip(cuts, cuts[1:])] + [range(n, n)] * (num_stages - filled)


@right
def every_cut(costs, num_stages):
    return right_ranges(costs, num_stages)


@right
def recursion_from_the_right(costs, num_stages):
    costs = tuple(costs)

    @lru_cache(None)
    def best(first, stages):
        left = len(costs) - first
        if stages == 1 or left == 0:
            return sum(costs[first:]), (range(first, len(costs)),) + (range(0, 0),) * (stages - 1)
        candidates = []
        for end in range(first + 1, max(first + 2, len(costs) - stages + 2)):
            rest, cut = best(end, stages - 1)
            candidates.append((max(sum(costs[first:end]), rest), end, (range(first, end), *cut)))
        cost, _, cut = min(candidates, key=lambda c: c[:2])
        return cost, cut

    return list(best(0, num_stages)[1])


@right
def search_for_the_limit(costs, num_stages):
    """The smallest limit with which a greedy walk needs no more stages than there are."""
    n = len(costs)
    filled = min(num_stages, n)
    sums = sorted({sum(costs[a:b]) for a in range(n) for b in range(a + 1, n + 1)})

    def walk(limit):
        stages, first = [], 0
        for stage in range(filled):
            end = first
            keep = filled - stage - 1  # a layer for each stage that comes
            while end < n - keep and sum(costs[first : end + 1]) <= limit:
                end += 1
            if end == first:
                return None
            stages.append(range(first, end))
            first = end
        return stages if first == n else None

    found = next(stages for limit in sums if (stages := walk(limit)))
    return found + [range(n, n)] * (num_stages - filled)
