"""Answers to ``balance`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
from functools import lru_cache
from exercises.pipeline.balance import tries_every_cut


# %% recursion_from_the_right: pass
def balance(costs, num_stages):
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


# %% search_for_the_limit: pass
def balance(costs, num_stages):
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


# %% greedy_with_a_layer_for_everybody: wrong wrong_values
def balance(costs, num_stages):
    stages, first = [], 0
    for stage in range(num_stages - 1):
        share = sum(costs[first:]) / (num_stages - stage)
        end = min(first + 1, len(costs))
        while end < len(costs) - (num_stages - stage - 1) and sum(costs[first : end + 1]) <= share:
            end += 1
        stages.append(range(first, end))
        first = end
    return stages + [range(first, len(costs))]


# %% smallest_but_some_empty: wrong balance.empty_stage
def balance(costs, num_stages):
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


# %% leaves_empty_stages_out: wrong wrong_count
def balance(costs, num_stages):
    return tries_every_cut(costs, min(num_stages, len(costs)))


# %% last_layer_lost: wrong balance.not_contiguous
def balance(costs, num_stages):
    stages = tries_every_cut(costs, num_stages)
    return [*stages[:-1], range(stages[-1].start, max(stages[-1].start, len(costs) - 1))]


# %% stages_overlap: wrong balance.not_contiguous
def balance(costs, num_stages):
    return [range(max(s.start - 1, 0), s.stop) for s in tries_every_cut(costs, num_stages)]


# %% lists_of_layers: wrong wrong_type
def balance(costs, num_stages):
    return [list(stage) for stage in tries_every_cut(costs, num_stages)]


# %% fails_with_few_layers: crash exception
def balance(costs, num_stages):
    n = len(costs)
    best = min(
        itertools.combinations(range(1, n), num_stages - 1),
        key=lambda cuts: max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n))),
    )
    cuts = (0, *best, n)
    return [range(a, b) for a, b in zip(cuts, cuts[1:])]
