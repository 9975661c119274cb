"""What is wrong with the loss that an answer to ``data_parallel.train_step`` returns."""

import copy

import torch

from multigpu.checking import describe
from multigpu.checking.comparing import ROUNDED, told_apart, tolerance


def examine_type(report, step):
    """It is a float."""
    loss = report.steps[step]["loss"]
    if isinstance(loss, float):
        return
    if loss is None:
        raise report.wrong(
            "returned_nothing",
            step,
            "the loss as a float",
            "None",
            "the function ends without `return`.",
        )
    raise report.wrong(
        "not_a_float",
        step,
        "the loss as a Python float",
        describe(loss),
        "a tensor keeps its graph and GPU memory alive. loss.item() is the number in it.",
    )


def examine_loss(report, step):
    """It is the mean over the whole batch, before the step."""
    came, right = report.steps[step]["loss"], report.losses[step]
    if close(came, right, tolerance(torch.float64, share_of=report.rows_until(step))):
        return
    chunks = chunk_losses(report, step)
    known = {
        "rounded": (right, "that is the loss, but it went through a smaller dtype."),
        "loss_after_the_step": (
            loss_with(report, report.weights[step], step),
            "that is the loss with the new weights. Return the one before the step.",
        ),
        "loss_of_chunks": (
            sum(chunks) / len(chunks),
            "that is the mean of the chunks' losses. Small chunks have fewer rows.",
        ),
        "losses_summed": (sum(chunks), "that is the sum of the chunks' losses."),
        "loss_of_last_chunk": (chunks[-1], "that is the last chunk's loss alone."),
        "loss_of_first_chunk": (chunks[0], "that is the first chunk's loss alone."),
        "other_loss": (came, "return the loss of the whole batch before the step."),
    }
    mistake = next(
        name for name, (value, _) in known.items() if close(came, value, ROUNDED[torch.float64])
    )
    found, expected = told_apart(came, right)
    raise report.wrong(mistake, step, f"the loss {expected}", found, known[mistake][1])


def chunk_losses(report, step):
    """The loss of each chunk by itself, before the step."""
    inputs, targets = report.batches[step]
    model = model_with(report, report.weights[step - 1] if step else {})
    pairs = zip(inputs.chunk(report.n), targets.chunk(report.n), strict=True)
    return [report.loss_fn(model(x), y).item() for x, y in pairs]


def loss_with(report, weights, step):
    inputs, targets = report.batches[step]
    return report.loss_fn(model_with(report, weights)(inputs), targets).item()


def model_with(report, weights):
    model = copy.deepcopy(report.model)
    model.load_state_dict(weights, strict=False)
    return model


def close(came, right, tolerance):
    return abs(came - right) <= tolerance * max(1.0, abs(right))
