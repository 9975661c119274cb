"""``costs.flops_per_token``: what training on one token takes, counted product by product."""

import random

from multigpu.checking.declaration import case, exercise

from .numbers import near, number

flops_per_token = exercise(
    "costs.flops_per_token",
    expects="three times the FLOPs of forward: {right}",
    everywhere=True,
)

CALLS = [
    (1000, 2, 8, 10),
    (85_000_000, 12, 768, 1024),
    (7_504_924_672, 32, 4096, 8192),
    (7_504_924_672, 32, 4096, 131_072),
    (174_600_000_000, 96, 12_288, 2048),
    (7, 1, 3, 1),
    (1, 1, 1, 1),
    (331, 3, 5, 7),
]


def random_calls():
    draw = random.Random(0)
    for _ in range(12):
        yield tuple(draw.randint(1, most) for most in (10**6, 12, 300, 400))


@flops_per_token.cases
def cases():
    for parameters, layers, hidden, seq in [*CALLS, *random_calls()]:
        sizes = {"layers": layers, "hidden": hidden, "seq": seq}
        written = ", ".join(f"{name}={value}" for name, value in sizes.items())
        yield case(f"flops_per_token({parameters}, {written})", parameters=parameters, **sizes)


@flops_per_token.drive
def drive(submission, case, devices):
    sizes = (case.parameters, case.layers, case.hidden, case.seq)
    return number(submission.flops_per_token(*sizes))


def flops(case):
    products = [case.parameters, *[case.seq * case.hidden] * (2 * case.layers)]
    return 3 * sum(2 * each for each in products)


@flops_per_token.words
def words(case):
    return {"right": f"{flops(case):,}"}


@flops_per_token.expected
def expected(case):
    return near(flops(case), "FLOPs")


# --- right answers -------------------------------------------------------------------------------


@flops_per_token.right
def six_and_twelve(num_parameters, layers, hidden, seq):
    return 6 * num_parameters + 12 * layers * hidden * seq


@flops_per_token.right
def product_by_product(num_parameters, layers, hidden, seq):
    def product(m, k, n):
        return 2.0 * m * k * n

    forward = product(1, num_parameters, 1)
    for _ in range(layers):
        forward += product(1, hidden, seq) + product(1, seq, hidden)
    return forward + 2 * forward


# --- mistakes ------------------------------------------------------------------------------------

WITHOUT_WEIGHTS = (
    "Add attention's two products without weights: 2 · seq · hidden FLOPs each, per layer."
)
BOTH = "Count queries by keys and scores by values, both for all tokens of the sequence."


@flops_per_token.mistake(
    "attention_forgotten",
    "only products with weights are counted: 6 FLOPs for each weight.",
    fix=WITHOUT_WEIGHTS,
)
def six_n(num_parameters, layers, hidden, seq):
    return 6 * num_parameters


@flops_per_token.mistake(
    "forward_only",
    "only forward is counted.",
    fix="Backward does two products for each one of forward: multiply by 3.",
)
def without_backward(num_parameters, layers, hidden, seq):
    return 2 * num_parameters + 4 * layers * hidden * seq


@flops_per_token.mistake(
    "backward_once",
    "backward is counted like forward, or without forward.",
    fix="Backward does two products for each one of forward, so the sum is 3 times forward.",
)
def backward_as_forward(num_parameters, layers, hidden, seq):
    return 4 * num_parameters + 8 * layers * hidden * seq


@flops_per_token.mistake(
    "one_for_two",
    "a multiplication and its addition are counted as one operation.",
    fix="Count both: 2 · m · n · k.",
)
def multiplications(num_parameters, layers, hidden, seq):
    return 3 * num_parameters + 6 * layers * hidden * seq


@flops_per_token.mistake(
    "half_of_attention",
    "attention is counted by half: one of its two products, or only tokens that are not masked.",
    fix=BOTH,
)
def one_product(num_parameters, layers, hidden, seq):
    return 6 * num_parameters + 6 * layers * hidden * seq


@flops_per_token.mistake(
    "whole_sequence",
    "this is for a whole sequence of {seq} tokens.",
    fix="Return the FLOPs of one token.",
)
def for_all_tokens(num_parameters, layers, hidden, seq):
    return seq * (6 * num_parameters + 12 * layers * hidden * seq)
