"""``costs.flops_per_token``: what training on one token takes, counted product by product."""

import random

from multigpu.checking.declaration import case, exercise

from .numbers import near, number

flops_per_token = exercise(
    "costs.flops_per_token",
    expects="three times the FLOPs of forward: {right}",
    everywhere=True,
)

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence")
GPT_2 = (12, 768, 12, 12, 3072, 50_257, 1024)
CALLS = [
    (2, 64, 4, 2, 256, 256, 32),
    (2, 64, 4, 4, 256, 256, 32),
    GPT_2,
    (1, 4, 2, 1, 8, 10, 5),
    (3, 60, 5, 1, 100, 101, 7),
    (1, 1, 1, 1, 1, 1, 1),
    (96, 12_288, 96, 96, 4 * 12_288, 51_200, 2048),  # GPT-3
]
GATED = [(32, 4096, 32, 8, 14_336, 128_256, 8192), (2, 48, 6, 3, 130, 77, 9)]  # Llama 3 8B


def random_sizes():
    draw = random.Random(0)
    for _ in range(12):
        kv_heads, groups, numbers = (draw.randint(1, most) for most in (4, 4, 20))
        heads = kv_heads * groups
        rest = (draw.randint(1, 300) for _ in range(3))
        yield (draw.randint(1, 9), heads * numbers, heads, kv_heads, *rest)


@flops_per_token.cases
def cases():
    for place, numbers in enumerate([*CALLS, *GATED, *random_sizes()]):
        sizes = dict(zip(SIZES, numbers, strict=True))
        if numbers in GATED or (place % 2 and place >= len(CALLS)):
            sizes["gated"] = True
        written = ", ".join(f"{name}={value}" for name, value in sizes.items())
        yield case(f"flops_per_token({written})", sizes=sizes)


@flops_per_token.drive
def drive(submission, case, devices):
    return number(submission.flops_per_token(**case.sizes))


def products(layers, hidden, heads, kv_heads, ffn, vocabulary, sequence, gated=False):
    """Rows by columns of what each token's numbers are multiplied by, in forward."""
    numbers = hidden // heads
    yield from [(hidden, numbers)] * layers * heads  # queries
    yield from [(hidden, numbers)] * layers * kv_heads * 2  # keys, values
    yield from [(numbers, sequence), (sequence, numbers)] * layers * heads  # scores, their sums
    yield from [(hidden, hidden)] * layers
    yield from [(hidden, ffn)] * layers * (2 if gated else 1)
    yield from [(ffn, hidden)] * layers
    yield hidden, vocabulary


def flops(case):
    return 3 * sum(2 * rows * columns for rows, columns in products(**case.sizes))


@flops_per_token.words
def words(case):
    return {"right": f"{flops(case):,}"} | case.sizes


@flops_per_token.expected
def expected(case):
    return near(flops(case), "FLOPs")


# --- right answers -------------------------------------------------------------------------------


@flops_per_token.right
def from_the_weights(*, layers, hidden, heads, kv_heads, ffn, vocabulary, sequence, gated=False):
    share = kv_heads / heads
    weights = layers * (hidden**2 * (2 + 2 * share) + (2 + gated) * hidden * ffn)
    return 6 * (weights + vocabulary * hidden) + 12 * layers * hidden * sequence


@flops_per_token.right
def for_the_whole_sequence_first(**sizes):
    s, h = sizes["sequence"], sizes["hidden"]
    numbers = h // sizes["heads"]

    def product(m, k, n):
        return 2 * m * k * n

    layer = product(s, h, h) + 2 * product(s, h, numbers * sizes["kv_heads"]) + product(s, h, h)
    layer += sizes["heads"] * (product(s, numbers, s) + product(s, s, numbers))
    layer += (3 if sizes.get("gated") else 2) * product(s, h, sizes["ffn"])
    return 3 * (sizes["layers"] * layer + product(s, h, sizes["vocabulary"])) // s


# --- mistakes ------------------------------------------------------------------------------------


def forward_flops(
    *,
    layers,
    hidden,
    heads,
    kv_heads,
    ffn,
    vocabulary,
    sequence,
    gated=False,
    attention=4.0,
    matrices=None,
    share=None,
    embedding=False,
    output=True,
):
    """Forward of one token, with what may be wrong in it."""
    share = kv_heads / heads if share is None else share
    matrices = 2 + gated if matrices is None else matrices
    layer = 2 * hidden**2 * (2 + 2 * share) + attention * sequence * hidden
    layer += 2 * matrices * hidden * ffn
    return layers * layer + 2 * hidden * vocabulary * (output + embedding)


@flops_per_token.mistake(
    "attention_forgotten",
    "only products with weights are counted: 6 FLOPs for each weight.",
    fix="Add attention's two products without weights: queries by keys, and scores by values.",
)
def six_for_each_weight(**sizes):
    return 3 * forward_flops(**sizes, attention=0)


@flops_per_token.mistake(
    "attention_forgotten",
    "this is 6 N: 6 FLOPs for each parameter, also those of the embedding.",
    fix="Leave the embedding out, and add attention's products, which have no weights.",
)
def six_n(**sizes):
    return 3 * forward_flops(**sizes, attention=0, embedding=True)


@flops_per_token.mistake(
    "forward_only",
    "only forward is counted.",
    fix="Backward does two products for each one of forward: multiply by 3.",
)
def without_backward(**sizes):
    return forward_flops(**sizes)


@flops_per_token.mistake(
    "backward_once",
    "backward is counted like forward, or without forward.",
    fix="Backward does two products for each one of forward, so the sum is 3 times forward.",
)
def backward_as_forward(**sizes):
    return 2 * forward_flops(**sizes)


@flops_per_token.mistake(
    "one_for_two",
    "a multiplication and its addition are counted as one operation.",
    fix="Count both: 2 · m · n · k.",
)
def multiplications(**sizes):
    return 1.5 * forward_flops(**sizes)


@flops_per_token.mistake(
    "kv_heads_ignored",
    "keys and values are counted with as many heads as the queries.",
    fix="Their weights are hidden × (hidden / heads · kv_heads).",
)
def all_heads(**sizes):
    return 3 * forward_flops(**sizes, share=1)


@flops_per_token.mistake(
    "kv_heads_ignored",
    "keys and values are counted as one matrix.",
    fix="They are two, each of hidden × (hidden / heads · kv_heads).",
)
def keys_without_values(**sizes):
    return 3 * forward_flops(**sizes, share=sizes["kv_heads"] / sizes["heads"] / 2)


@flops_per_token.mistake(
    "half_of_attention",
    "attention is counted by half: one of its two products, or only tokens that are not masked.",
    fix="Count queries by keys and scores by values, both for all tokens of the sequence.",
)
def one_product(**sizes):
    return 3 * forward_flops(**sizes, attention=2)


@flops_per_token.mistake(
    "half_of_attention",
    "attention is counted for unmasked tokens only, and so for half of them.",
    fix="Count masked scores as well: they are computed and then set to zero.",
)
def one_product_of_half(**sizes):
    return 3 * forward_flops(**sizes, attention=1)


@flops_per_token.mistake(
    "attention_for_each_head",
    "every head is counted as if it had all {hidden} numbers.",
    fix="A head has hidden / heads of them, so all heads together have hidden.",
)
def heads_times_hidden(**sizes):
    return 3 * forward_flops(**sizes, attention=4 * sizes["heads"])


@flops_per_token.mistake(
    "embedding_counted",
    "the embedding is counted like a matrix product.",
    fix="Leave it out: it looks a row up and computes nothing.",
)
def with_embedding(**sizes):
    return 3 * forward_flops(**sizes, embedding=True)


@flops_per_token.mistake(
    "output_forgotten",
    "the output layer is missing.",
    fix="Add its product once, after all layers: hidden × vocabulary.",
)
def without_output(**sizes):
    return 3 * forward_flops(**sizes, output=False)


@flops_per_token.mistake(
    "output_in_each_layer",
    "the output layer is counted {layers} times, once for each layer.",
    fix="Add it after multiplying by the layers.",
)
def output_times_layers(*, layers, **sizes):
    return 3 * layers * forward_flops(layers=1, **sizes)


@flops_per_token.mistake(
    "gate_ignored",
    "the MLP is counted with two matrices, although gated makes it three.",
    fix="Count 3 · hidden · ffn weights with gated, and 2 · hidden · ffn without.",
)
def always_two(**sizes):
    return 3 * forward_flops(**sizes, matrices=2)


@flops_per_token.mistake(
    "gate_ignored",
    "the MLP is counted with three matrices, although it has two without gated.",
    fix="Count 3 · hidden · ffn weights with gated, and 2 · hidden · ffn without.",
)
def always_three(**sizes):
    return 3 * forward_flops(**sizes, matrices=3)


@flops_per_token.mistake(
    "gate_ignored",
    "only one matrix of the MLP is counted.",
    fix="It goes from hidden to ffn and back, and with gated there is a third matrix.",
)
def one_matrix(**sizes):
    return 3 * forward_flops(**sizes, matrices=1)


@flops_per_token.mistake(
    "whole_sequence",
    "this is for a whole sequence of {sequence} tokens.",
    fix="Return the FLOPs of one token.",
)
def for_all_tokens(**sizes):
    return 3 * sizes["sequence"] * forward_flops(**sizes)
