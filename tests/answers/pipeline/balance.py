"""Answers to ``balance`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from itertools import combinations


def right_ranges(costs, num_stages):
    n = len(costs)
    filled = min(num_stages, n)
    best = min(
        itertools.combinations(range(1, n), filled - 1),
        key=lambda cuts: max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n))),
    )
    cuts = (0, *best, n)
    return [range(a, b) for a, b in zip(cuts, cuts[1:])] + [range(n, n)] * (num_stages - filled)


# %% every_cut: pass


def balance(costs, num_stages):
    return right_ranges(costs, num_stages)


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


# %% six_dp: pass

# style: dynamic programming


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    n = len(costs)
    pre = [0, *accumulate(costs)]
    full = min(n, num_stages)
    INF = float("inf")
    best = [[INF] * (n + 1) for _ in range(full + 1)]
    back = [[0] * (n + 1) for _ in range(full + 1)]
    best[0][0] = 0
    for k in range(1, full + 1):
        for j in range(k, n + 1):
            for i in range(k - 1, j):
                worst = max(best[k - 1][i], pre[j] - pre[i])
                if worst < best[k][j]:
                    best[k][j], back[k][j] = worst, i
    cuts, j = [n], n
    for k in range(full, 0, -1):
        j = back[k][j]
        cuts.append(j)
    cuts.reverse()
    ranges = [range(a, b) for a, b in zip(cuts, cuts[1:])]
    return ranges + [range(n, n)] * (num_stages - full)


# %% six_threshold: pass

# style: the smallest sum of neighbours that fits as a limit, filled greedily


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    """Try all sums of neighbours as the limit, smallest first; fill greedily."""
    n = len(costs)
    limits = sorted({sum(costs[i:j]) for i in range(n) for j in range(i + 1, n + 1)})

    def fill(limit):
        parts, start = [], 0
        while start < n:
            end = start
            while end < n and sum(costs[start : end + 1]) <= limit:
                end += 1
            if end == start:
                return None
            parts.append(range(start, end))
            start = end
        return parts

    for limit in limits:
        parts = fill(limit)
        if parts is not None and len(parts) <= num_stages:
            break
    # split parts with several layers until there are enough stages
    while len(parts) < min(n, num_stages):
        i = next(i for i, p in enumerate(parts) if len(p) > 1)
        p = parts[i]
        parts[i : i + 1] = [range(p.start, p.start + 1), range(p.start + 1, p.stop)]
    return parts + [range(n, n)] * (num_stages - len(parts))


# %% six_empty_at_zero: pass

# mistake: the empty stages are range(0), not where the last layer ends


def balance(costs, num_stages):
    n = len(costs)
    full = min(n, num_stages)
    best = None
    for cuts in combinations(range(1, n), full - 1):
        ends = [0, *cuts, n]
        worst = max(sum(costs[a:b]) for a, b in zip(ends, ends[1:]))
        if best is None or worst < best[0]:
            best = worst, ends
    ends = best[1]
    return [range(a, b) for a, b in zip(ends, ends[1:])] + [
        range(0) for _ in range(num_stages - full)
    ]


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
    return right_ranges(costs, min(num_stages, len(costs)))


# %% last_layer_lost: wrong balance.layers_missing


def balance(costs, num_stages):
    stages = right_ranges(costs, num_stages)
    return [*stages[:-1], range(stages[-1].start, max(stages[-1].start, len(costs) - 1))]


# %% stages_overlap: wrong balance.not_contiguous


def balance(costs, num_stages):
    return [range(max(s.start - 1, 0), s.stop) for s in right_ranges(costs, num_stages)]


# %% lists_of_layers: wrong wrong_type


def balance(costs, num_stages):
    return [list(stage) for stage in right_ranges(costs, num_stages)]


# %% prints_it: wrong returned_nothing


def balance(costs, num_stages):
    print(right_ranges(costs, num_stages))


# %% fails_with_few_layers: crash exception


def balance(costs, num_stages):
    n = len(costs)
    best = min(
        itertools.combinations(range(1, n), num_stages - 1),
        key=lambda cuts: max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n))),
    )
    cuts = (0, *best, n)
    return [range(a, b) for a, b in zip(cuts, cuts[1:])]


# %% six_forgets_few_layers: crash exception

# mistake: fails where there are fewer layers than stages


def balance(costs, num_stages):
    n = len(costs)
    best = None
    for cuts in combinations(range(1, n), num_stages - 1):
        ends = [0, *cuts, n]
        worst = max(sum(costs[a:b]) for a, b in zip(ends, ends[1:]))
        if best is None or worst < best[0]:
            best = worst, ends
    ends = best[1]
    return [range(a, b) for a, b in zip(ends, ends[1:])]
