"""Wrong answers to ``ring_attention`` whose output is wrong: which keys are seen, and softmax."""

import math

import torch

from multigpu.checking.declaration import Shared

from .ring_answers import Ring, seen_by, shifted

wrong_outputs = Shared()


# --- which keys are seen -------------------------------------------------------------------------


@wrong_outputs.mistake(
    "own_keys_only",
    "no block was received, so the queries saw only the keys of their own rank.",
    fix="Send the block to the next rank, receive one from the rank before, and do so {others}"
    " times.",
)
def stays_at_home(q, k, v, *, causal=False):
    def once(world):
        return 1

    return Ring(causal, visits=once, visits_back=once, onward=lambda t: t)(q, k, v)


@wrong_outputs.mistake(
    "block_missing",
    "the ring is a step short: the last block to come was left out.",
    fix="There are {n} blocks, the own one and {others} that arrive.",
)
def a_step_short(q, k, v, *, causal=False):
    def fewer(world):
        return max(world - 1, 1)

    def last_hop(gradient, world):
        return shifted(gradient) if world > 1 else gradient

    return Ring(causal, visits=fewer, visits_back=fewer, at_home=last_hop)(q, k, v)


@wrong_outputs.mistake(
    "block_twice",
    "the own block came by again after all others, and counts twice.",
    fix="There are {n} blocks, the own one and {others} that arrive.",
)
def a_step_too_many(q, k, v, *, causal=False):
    return Ring(causal, visits=lambda world: world + 1)(q, k, v)


@wrong_outputs.mistake(
    "values_stay",
    "the keys traveled without their values: weights for one rank's keys met the values of another"
    " rank.",
    fix="Send k and v together.",
)
def keys_travel_alone(q, k, v, *, causal=False):
    class Keys(Ring):
        def blocks(self, k, v, visits):
            for owner, keys, _ in super().blocks(k, v, visits):
                yield owner, keys, v

    return Keys(causal)(q, k, v)


@wrong_outputs.mistake(
    "not_causal",
    "causal was ignored, so queries saw later keys.",
    fix="Hide key j from query i where j > i, before softmax.",
)
def without_a_mask(q, k, v, *, causal=False):
    return Ring()(q, k, v)


@wrong_outputs.mistake(
    "local_positions",
    "places in the block were compared, not places in the whole sequence: every block got the same"
    " mask.",
    fix="Queries begin at {mine}, and the keys of a block at the number of its rank times the local"
    " sequence. So earlier blocks are seen in full, and later ones not at all.",
)
def the_same_mask_for_all(q, k, v, *, causal=False):
    return Ring(causal, seen=lambda rank, owner, queries, keys: seen_by(0, 0, queries, keys))(
        q, k, v
    )


@wrong_outputs.mistake(
    "later_blocks_seen",
    "only the own block was masked, and blocks of later ranks were seen in full.",
    fix="A block whose owner has a higher rank holds later keys only: leave it out.",
)
def masks_its_own_block_only(q, k, v, *, causal=False):
    def own_only(rank, owner, queries, keys):
        return seen_by(0, 0 if owner == rank else -1, queries, keys)

    return Ring(causal, seen=own_only)(q, k, v)


@wrong_outputs.mistake(
    "wrong_owner",
    "the mask is for another rank's block than the one that is there.",
    fix="If each rank sends to the next one, rank r has the block of rank (r - step) % {n}.",
)
def counts_the_other_way(q, k, v, *, causal=False):
    return Ring(causal, owner=lambda rank, step, world: (rank + step) % world)(q, k, v)


@wrong_outputs.mistake(
    "own_key_hidden",
    "a query did not see the key at its own place.",
    fix="Key j is seen by query i if j <= i.",
)
def strictly_earlier(q, k, v, *, causal=False):
    def earlier(rank, owner, queries, keys):
        places = torch.arange(queries)[:, None] + rank * queries
        return places > torch.arange(keys) + owner * keys

    return Ring(causal, seen=earlier)(q, k, v)


# --- scores and softmax --------------------------------------------------------------------------


@wrong_outputs.mistake(
    "not_scaled",
    "the scores were not divided by sqrt(width).",
    fix="q @ k.mT / math.sqrt({width}).",
)
def without_a_scale(q, k, v, *, causal=False):
    return Ring(causal, scale=lambda width: 1.0)(q, k, v)


@wrong_outputs.mistake(
    "scaled_by_width",
    "the scores were divided by the width, not by its square root.",
    fix="q @ k.mT / math.sqrt({width}).",
)
def without_a_root(q, k, v, *, causal=False):
    return Ring(causal, scale=lambda width: 1 / width)(q, k, v)


def with_equal_weights(divide):
    def combine(parts):
        outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
        return outs.sum(0) / (len(parts) if divide else 1), lses.logsumexp(0)

    return combine


@wrong_outputs.mistake(
    "averaged",
    "each block has a softmax of its own, and the mean of the {n} results was taken.",
    fix="A block counts as much as the sum of exp of its scores: merge_partial_attention does it.",
)
def mean_of_blocks(q, k, v, *, causal=False):
    return Ring(causal, combine=with_equal_weights(divide=True))(q, k, v)


@wrong_outputs.mistake(
    "added",
    "each block has a softmax of its own, and the {n} results were added.",
    fix="A block counts as much as the sum of exp of its scores: merge_partial_attention does it.",
)
def sum_of_blocks(q, k, v, *, causal=False):
    return Ring(causal, combine=with_equal_weights(divide=False))(q, k, v)


@wrong_outputs.mistake(
    "last_block_only",
    "the result of each block replaced that of the blocks before.",
    fix="Merge it with what is there.",
)
def keeps_the_last(q, k, v, *, causal=False):
    def last(parts):
        return parts[-1][0], torch.stack([lse for _, lse in parts]).logsumexp(0)

    return Ring(causal, combine=last)(q, k, v)


def running(begin, rescale):
    """Online softmax: the largest score so far, which begins as told."""

    def combine(parts):
        out, total = (torch.zeros_like(each) for each in parts[0])
        top = torch.full_like(total, begin)
        for part, lse in parts:
            new_top = torch.maximum(top, lse)
            old, new = torch.exp(top - new_top), torch.exp(lse - new_top)
            if not rescale:
                old = torch.ones_like(old)
            total = total * old + new
            out, top = out * old[..., None] + new[..., None] * part, new_top
        return out / total[..., None], total.log() + top

    return combine


@wrong_outputs.mistake(
    "not_rescaled",
    "when a block brought a larger score, what was summed before was not scaled down to it.",
    fix="Multiply the old sums by exp(old maximum - new maximum).",
)
def forgets_the_old_maximum(q, k, v, *, causal=False):
    return Ring(causal, combine=running(-math.inf, rescale=False))(q, k, v)


@wrong_outputs.mistake(
    "maximum_begins_at_zero",
    "the running maximum began at 0. Where all scores are about -1000, exp(score - 0) is zero, and"
    " zero was divided by zero.",
    fix="Begin with minus infinity, or with the maximum of the first block.",
)
def zero_as_the_first_maximum(q, k, v, *, causal=False):
    return Ring(causal, combine=running(0.0, rescale=True))(q, k, v)


@wrong_outputs.mistake(
    "overflow",
    "exp of a large score is infinite. No maximum was subtracted before.",
    fix="Subtract the largest score of each query, or keep the log-sum-exp of each block.",
)
def plain_exp(q, k, v, *, causal=False):
    class Plain(Ring):
        def partial(self, q, k, v, owner):
            weights = torch.exp(self.scores(q, k, owner))
            return weights @ self.number(v), weights.sum(-1)

    def divided(parts):
        out, total = (sum(each) for each in zip(*parts, strict=True))
        return out / total.unsqueeze(-1), total.log()

    return Plain(causal, combine=divided)(q, k, v)


@wrong_outputs.mistake(
    "sixteen_bits",
    "scores, softmax or sums were computed in the 16 bits of q.",
    fix="Convert with .float() first, and the result back to the dtype of q.",
)
def stays_in_bfloat16(q, k, v, *, causal=False):
    return Ring(causal, number=lambda tensor: tensor)(q, k, v)
