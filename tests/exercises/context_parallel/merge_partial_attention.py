"""``context_parallel.merge_partial_attention``: two results of attention become one."""

import math

import torch

from multigpu.checking.declaration import case, exercise

from .numbers import both

merge_partial_attention = exercise(
    "context_parallel.merge_partial_attention",
    expects="out and lse of attention over all keys of both sets",
    parts="tensor",
    keeps=["out_a", "lse_a", "out_b", "lse_b"],
)

SHAPES = [(2, 3, 5, 4), (1, 1, 1, 1), (2, 2, 4, 4), (3, 4), (2, 6, 3), (1, 8, 1, 16)]


@merge_partial_attention.cases
def cases():
    """Shapes with as many queries as channels, too: a weight without a dimension fits there."""
    for dtype in (torch.float64, torch.float32):
        for shape in SHAPES:
            yield a_case(shape, dtype)
        yield a_case((2, 3, 5, 4), dtype, base=1000.0, what="scores of 1000")
        yield a_case((2, 3, 5, 4), dtype, base=-1000.0, what="scores of -1000")
        yield a_case((2, 3, 5, 4), dtype, spread=400.0, what="queries with scores far apart")
        yield a_case((2, 3, 5, 4), dtype, ahead=200.0, what="much higher scores in one set")
        yield a_case((2, 3, 8, 4), dtype, empty=True, what="queries without keys")
        yield a_case((8, 4), dtype, empty=True, base=-300.0, what="no keys, scores of -300")
    for dtype in (torch.bfloat16, torch.float16):
        yield a_case((2, 3, 5, 4), dtype, base=100.0, what="lse in float32")
        yield a_case((2, 8, 4), dtype, empty=True, base=40.0, what="lse in float32, no keys")


def a_case(shape, dtype, what="", **given):
    """``base`` is added to all scores, ``spread`` to some queries', ``ahead`` to one set's."""
    title = f"shape {shape}, {str(dtype)[6:]}"
    title = f"{title}, {what}" if what else title
    given = {"base": 0.0, "spread": 0.0, "ahead": 0.0, "empty": False} | given
    return case(title, shape=shape, dtype=dtype, given=given)


def parts_of(case):
    """The two partial results, from scores and values for 3 and 2 keys."""
    *front, queries, width = case.shape
    draw, parts = torch.Generator().manual_seed(queries + 10 * width), []
    base = case.given["base"] + case.given["spread"] * torch.linspace(-1, 1, queries).double()
    for part, keys in enumerate((3, 2)):
        scores = torch.randn(*front, queries, keys, generator=draw, dtype=torch.float64)
        values = torch.randn(*front, keys, width, generator=draw, dtype=torch.float64)
        # A set is far ahead for some queries, and the other set for the others.
        ahead = case.given["ahead"] * (torch.arange(queries) % 2 == part)
        scores = scores + (base + ahead).unsqueeze(-1)
        out, lse = scores.softmax(-1) @ values, scores.logsumexp(-1)
        if case.given["empty"]:  # by turns: both have keys, a has none, b has none, both have none
            none = torch.arange(queries) // 2 % 2 == 1 if part else torch.arange(queries) % 2 == 1
            lse = lse.masked_fill(none, -math.inf)
            out = out.masked_fill(none.unsqueeze(-1), 0)
        of_lse = torch.float32 if case.dtype.itemsize == 2 else case.dtype
        parts += [out.to(case.dtype), lse.to(of_lse)]
    return parts


@merge_partial_attention.arguments
def arguments(case, devices):
    return tuple(parts_of(case))


@merge_partial_attention.expected
def expected(case):
    out_a, lse_a, out_b, lse_b = parts_of(case)
    lses = torch.stack((lse_a, lse_b)).double()
    lse = lses.logsumexp(0)
    weights = lses.softmax(0).nan_to_num(0.0).unsqueeze(-1)
    out = weights[0] * out_a.double() + weights[1] * out_b.double()
    return both(out.to(out_a.dtype), lse.to(lse_a.dtype))


# --- right answers -------------------------------------------------------------------------------


def with_a_top(top, out_a, lse_a, out_b, lse_b):
    """Subtracts ``top`` before exp."""
    sum_a, sum_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    both = sum_a + sum_b
    safe = both.clamp_min(torch.finfo(both.dtype).tiny)
    out = ((sum_a / safe)[..., None] * out_a + (sum_b / safe)[..., None] * out_b).to(out_a.dtype)
    return out, torch.log(both) + top


@merge_partial_attention.right
def with_a_maximum(out_a, lse_a, out_b, lse_b):
    top = torch.maximum(lse_a, lse_b)
    top = torch.where(top == -math.inf, torch.zeros_like(top), top)
    return with_a_top(top, out_a, lse_a, out_b, lse_b)


@merge_partial_attention.right
def with_a_sigmoid(out_a, lse_a, out_b, lse_b):
    """As ring-flash-attention and picotron do, with care for nothing minus nothing."""
    ahead = (lse_b - lse_a).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    share = torch.sigmoid(ahead).unsqueeze(-1)
    out = out_a.to(share.dtype) - share * (out_a.to(share.dtype) - out_b.to(share.dtype))
    higher, lower = torch.maximum(lse_a, lse_b), torch.minimum(lse_a, lse_b)
    gained = torch.nn.functional.softplus((lower - higher).nan_to_num(0.0, 0.0, -math.inf))
    return out.to(out_a.dtype), higher + gained


@merge_partial_attention.right
def as_a_softmax_of_two(out_a, lse_a, out_b, lse_b):
    lses = torch.stack([lse_a, lse_b], dim=-1)
    weights = torch.nan_to_num(torch.softmax(lses, dim=-1), nan=0.0)
    outs = torch.stack([out_a, out_b], dim=-1).to(weights.dtype)
    merged = torch.einsum("...dn,...n->...d", outs, weights)
    return merged.to(out_a.dtype), torch.logsumexp(lses, dim=-1)


# --- mistakes ------------------------------------------------------------------------------------


WEIGHTS = "The weight of a set is exp(its lse - the new lse)."


@merge_partial_attention.mistake(
    "averaged",
    "both partial results count the same, though one set may have more keys, or higher scores.",
    fix=WEIGHTS,
)
def mean_of_both(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


@merge_partial_attention.mistake(
    "added",
    "the partial results were added. Each is divided by the sum of its own set already.",
    fix=WEIGHTS,
)
def plain_sum(out_a, lse_a, out_b, lse_b):
    return out_a + out_b, torch.logaddexp(lse_a, lse_b)


@merge_partial_attention.mistake(
    "lse_added",
    "the two lse were added. They are logarithms of sums, and the sums must be added.",
    fix="torch.logaddexp(lse_a, lse_b) is log(exp(lse_a) + exp(lse_b)), without overflow.",
)
def adds_the_logarithms(out_a, lse_a, out_b, lse_b):
    out, _ = as_a_softmax_of_two(out_a, lse_a, out_b, lse_b)
    return out, lse_a + lse_b


@merge_partial_attention.mistake(
    "lse_of_the_larger",
    "the new lse is the larger of the two, so the keys of the other set are lost later.",
    fix="torch.logaddexp(lse_a, lse_b) is log(exp(lse_a) + exp(lse_b)), without overflow.",
)
def keeps_the_maximum(out_a, lse_a, out_b, lse_b):
    out, _ = as_a_softmax_of_two(out_a, lse_a, out_b, lse_b)
    return out, torch.maximum(lse_a, lse_b)


@merge_partial_attention.mistake(
    "maximum_not_added",
    "the largest lse was subtracted before exp and not added again after log.",
    fix="log(exp(a - m) + exp(b - m)) + m.",
)
def forgets_the_maximum(out_a, lse_a, out_b, lse_b):
    out, lse = as_a_softmax_of_two(out_a, lse_a, out_b, lse_b)
    top = torch.maximum(lse_a, lse_b)
    return out, lse - top.masked_fill(top == -math.inf, 0)


@merge_partial_attention.mistake(
    "overflow",
    "exp(lse) is infinite for a large lse, and zero for a very small one.",
    fix="Subtract the larger lse before exp, or use torch.logaddexp.",
)
def exp_of_all(out_a, lse_a, out_b, lse_b):
    return with_a_top(torch.zeros_like(lse_a), out_a, lse_a, out_b, lse_b)


@merge_partial_attention.mistake(
    "nan_without_keys",
    "where neither set has a key, minus infinity minus minus infinity is NaN.",
    fix="Where the new lse, or the larger one, is minus infinity, subtract 0 instead.",
)
def infinity_minus_infinity(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a - lse)[..., None], torch.exp(lse_b - lse)[..., None]
    return (weight_a * out_a + weight_b * out_b).to(out_a.dtype), lse


@merge_partial_attention.mistake(
    "nan_without_keys",
    "where neither set has a key, sigmoid got minus infinity minus minus infinity, which is NaN.",
    fix="Look where both are minus infinity: there out is zero, and lse minus infinity.",
)
def sigmoid_of_nan(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    lse = lse_a - torch.nn.functional.logsigmoid(lse_a - lse_b)
    return (out_a - share * (out_a - out_b)).to(out_a.dtype), lse


@merge_partial_attention.mistake(
    "other_dimension",
    "the weights have one dimension less than out, and met its width instead of its queries.",
    fix="weight.unsqueeze(-1), or weight[..., None].",
    status="crash",
)
def without_a_dimension(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a - lse), torch.exp(lse_b - lse)
    return (weight_a * out_a + weight_b * out_b).to(out_a.dtype), lse


@merge_partial_attention.mistake(
    "lse_rounded",
    "lse was converted to the 16 bits of out. At 100 the distance between two bfloat16 numbers is"
    " 0.5, so the weights are wrong by half.",
    fix="Compute with lse in float32, and round only the new out.",
)
def in_sixteen_bits(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.to(out_a.dtype), lse_b.to(out_a.dtype)
    lse = torch.logaddexp(a, b)
    base = lse.masked_fill(lse == -math.inf, 0)
    weight_a, weight_b = torch.exp(a - base)[..., None], torch.exp(b - base)[..., None]
    return weight_a * out_a + weight_b * out_b, lse.to(lse_a.dtype)
