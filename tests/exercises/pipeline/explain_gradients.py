"""What is wrong with the gradients, or the loss, of an answer to ``pipeline.run``."""

import math

from multigpu.checking import describe
from multigpu.checking.comparing import all_same, factor_between, largest_difference, same
from multigpu.checking.verdicts import times

from .observed import recognised

GRADIENTS = "the gradients of the uncut model on the whole batch"


def known_weights(step, num_stages):
    """By mistake: how much the mean loss of each micro-batch counts, and which code does that."""
    count, shares, rows = len(step.rows), step.shares, step.rows
    one = [1.0] * count
    return {
        "not_scaled": (
            one,
            "the mean loss of each micro-batch counts in full, so the gradients are too large by"
            " the number of micro-batches. Multiply it by its share of all rows before backward.",
        ),
        "mean_of_means": (
            [1 / count] * count,
            "the micro-batches have different numbers of rows, and each counts the same. Weigh each"
            " by its rows: len(inputs) / rows of all.",
        ),
        "rows_never_divided": (
            rows,
            "each micro-batch was multiplied by its rows, and nothing was divided by all of them.",
        ),
        "scaled_twice": (
            [share / count for share in shares],
            "the loss was scaled, and the gradients once more.",
        ),
        "scaled_twice, both": ([1 / count**2] * count, "the loss was scaled twice."),
        "divided_by_stages": (
            [1 / num_stages] * count,
            "it was divided by the number of stages. There is one batch, whatever their number.",
        ),
        "divided_by_stages, too": (
            [share / num_stages for share in shares],
            "it was divided by the number of stages, too. There is one batch, whatever their"
            " number.",
        ),
        "one_microbatch_only": (
            [*[0.0] * (count - 1), shares[-1]],
            "only the last micro-batch is left: gradients add up from backward to backward, and"
            " must not be cleared or overwritten in between.",
        ),
        "one_microbatch_only, unscaled": (
            [*[0.0] * (count - 1), 1.0],
            "only the last micro-batch is left: gradients must not be cleared in between.",
        ),
    }


def examine_gradients(side):
    """Rank by rank, from the last one: a mistake there goes on to all before it."""
    came, right = of(side), side.right.right[side.rank]
    if all_same(came, right):
        return
    examine_added(side, came, right)
    for mistake, (weights, usually) in known_weights(side.right, len(side.case.table)).items():
        if not side.is_last and not mistake.startswith("one"):  # the loss is right: it is later
            continue
        if all_same(came, side.right.weighed(side.rank, weights)):
            name = mistake.partition(",")[0]
            raise side.wrong(name, GRADIENTS, difference(came, right), usually)
    if side.is_last:
        raise other(side, came, right)
    examine_arrived(side)
    raise other(side, came, right)


def examine_added(side, came, right):
    """What was in ``.grad`` before is still in it."""
    before = side.case.before
    if before and all_same({n: added + before for n, added in came.items()}, right):
        raise side.wrong(
            "earlier_gradients_lost",
            "the gradients of the batch are added to what is in .grad",
            f"on rank {side.rank} what was there before run is lost",
            "run sets the gradients to zero, or puts its own in their place. Whoever calls it"
            " calls optimizer.zero_grad().",
        )


def of(side):
    """The gradients that run has added, by name.  Raises where there are none."""
    missing = [name for name, gradient in side.gradients.items() if gradient is None]
    if missing:
        raise side.wrong(
            "no_gradients",
            GRADIENTS,
            f"on rank {side.rank} {missing[0]}.grad is None",
            "backward was not called on what the stage has returned, or the gradients were"
            " computed and never put into .grad.",
        )
    return {n: gradient.value - side.case.before for n, gradient in side.gradients.items()}


def examine_arrived(side):
    """The stages after this one are right: is what came back from the next one?"""
    shares = side.right.shares
    known = [
        share * gradient
        for share, gradient in zip(shares, side.right.output_gradients[side.rank], strict=True)
    ]
    for (kind, m), event in side.actions:
        if kind == "forward" or same(event["tensor"].value, known[m]):
            continue
        arrived, other_one = event["tensor"], recognised(event["tensor"], known)
        expected = f"backward of micro-batch {m} on rank {side.rank} begins with its gradient"
        if other_one is not None:
            raise side.wrong(
                "wrong_microbatch_paired",
                expected,
                f"it began with that of micro-batch {other_one}",
                "messages come in the order in which the next stage sends them. Look up what"
                " belongs to a micro-batch by its number.",
            )
        if is_ones(arrived.value):
            raise side.wrong(
                "gradient_of_ones",
                expected,
                "it began with ones",
                "outputs.sum().backward(), or a gradient of ones, is not what the next stage has"
                " sent: outputs.backward(received).",
            )
        factor = factor_between(arrived.value, known[m])
        found = f"{times(factor)} that" if factor else "something else"
        raise side.wrong(
            "scaled_again" if factor else "other_gradient_arrived",
            expected,
            f"it began with {found}",
            "the loss is scaled once, on the last stage. Other stages send on what they have."
            if factor
            else "what is sent back is the gradient of what the stage was given:"
            " received.grad, after backward.",
        )


def is_ones(tensor):
    return bool((tensor == 1).all())


def other(side, came, right):
    factors = {factor_between(came[name], right[name]) for name in right}
    factor = factors.pop() if len(factors) == 1 else None
    if factor is not None:
        return side.wrong(
            "scaled_wrongly",
            GRADIENTS,
            f"{times(factor)} them on rank {side.rank}",
            "the loss of each micro-batch is to be weighed by its share of all rows, once.",
        )
    return side.wrong(
        "other_gradients",
        GRADIENTS,
        f"rank {side.rank}: {difference(came, right)}",
        "a micro-batch is left out or counts more than once, or two of them were mixed up.",
    )


def difference(came, right):
    """The first parameter that differs, and how."""
    for name, expected in right.items():
        if not same(came[name], expected):
            factor = factor_between(came[name], expected)
            if factor:
                return f"{name}.grad is {times(factor)} that"
            return f"{name}.grad {largest_difference(came[name], expected)}"
    return "nothing differs"


def examine_returned(side):
    """The mean loss on the last rank, None elsewhere."""
    came, step = side.returned, side.right
    if not side.is_last:
        if came is not None:
            raise side.wrong(
                "loss_on_other_ranks",
                f"None on rank {side.rank}: only the last stage knows the loss",
                describe(came),
                "return the loss on the last rank, and None on all others.",
            )
        return
    expected = f"{step.loss:.6g} on rank {side.rank}, the mean loss of the whole batch"
    if came is None:
        raise side.wrong(
            "returned_nothing",
            expected,
            "None",
            "the function ends without `return` there, or another rank has the loss: the last one"
            " is dist.get_world_size() - 1.",
        )
    if type(came) is not float:
        raise side.wrong(
            "not_a_float",
            expected,
            describe(came),
            "a tensor of one number becomes a float by .item().",
        )
    if not close(came, step.loss):
        raise wrong_loss(side, came, expected)


def wrong_loss(side, came, expected):
    step = side.right
    count, losses = len(step.rows), step.losses
    known = {
        "loss_only_added": (sum(losses), "the sum of the micro-batches' mean losses."),
        "loss_of_means": (
            sum(losses) / count,
            "the mean of the micro-batches' means: a row of a small one counts more.",
        ),
        "loss_of_one_microbatch": (losses[-1], "the loss of the last micro-batch alone."),
        "loss_of_one_microbatch, its share": (
            losses[-1] * step.shares[-1],
            "the share of the last micro-batch alone.",
        ),
        "loss_scaled_twice": (step.loss / count, "divided by the number of micro-batches twice."),
    }
    for mistake, (value, usually) in known.items():
        if close(came, value):
            return side.wrong(
                mistake.partition(",")[0], expected, f"{came:.6g}", f"it is {usually}"
            )
    return side.wrong(
        "other_loss",
        expected,
        f"{came:.6g}",
        "add up the losses of the micro-batches, each weighed by its share of all rows.",
    )


def close(came, right):
    return math.isclose(came, right, rel_tol=1e-5)
