"""Checks of ``data_parallel.train_step``: the same training as on one GPU, step after step."""

import pytest
import torch
from torch import nn

from multigpu.checking import Wrong, describe, exercise
from multigpu.checking.comparing import all_same, largest_difference, same
from multigpu.checking.specimens import WIDTH, Specimen, snapshot
from multigpu.checking.wording import count, listed

from .one_gpu import LEARNING_RATE, MOMENTUM, mistakes, train

USUALLY = {
    "gradients_not_summed": "the optimizer stepped with replica 0's own gradients. They must be"
    " summed after backward and before the step.",
    "first_chunk_only": "only the first chunk was used, the other rows never trained anything.",
    "mean_of_chunk_means": "the loss is a mean over chunks of different sizes, so rows in small"
    " chunks count more. Take one loss on the gathered outputs, or weigh each chunk by its rows.",
    "losses_added": "each chunk's loss is a mean already, and their gradients were added up. Take"
    " one loss on the gathered outputs, or weigh each chunk by its rows.",
    "gradients_divided": "the summed gradients were divided once more. The mean is in the loss.",
    "gradients_never_cleared": "nothing clears .grad in replica 0 between two steps, so gradients"
    " of all steps add up.",
    "old_gradients_in_replicas": "optimizer.zero_grad() clears replica 0 only. Other replicas still"
    " hold gradients of an earlier step, also those without rows this time.",
    "momentum_lost": "the step was made without the optimizer's memory: by hand, or with a new"
    " optimizer. Call optimizer.step().",
    "two_steps": "optimizer.step() ran twice.",
    "no_step": "optimizer.step() was not called, or there were no gradients any more when it was.",
    "rows_dropped": "the rows that do not divide by the number of GPUs were left out.",
}


def drive(submission, devices, model_of, batches, loss_fn):
    """Train, and tell after each step what every replica holds."""
    replicas = [model_of().to(device) for device in devices]
    optimizer = torch.optim.SGD(replicas[0].parameters(), LEARNING_RATE, momentum=MOMENTUM)
    steps = []
    for inputs, targets in batches:
        loss = submission.train_step(replicas, inputs, targets, loss_fn, optimizer)
        steps.append(
            {
                "loss": float(loss) if isinstance(loss, float) else loss,
                "replicas": [copy_of(snapshot(replica)) for replica in replicas],
            }
        )
    return steps


def copy_of(snap):
    return {
        kind: {name: tensor.detach().clone() for name, tensor in snap[kind].items()}
        for kind in ("parameters", "buffers")
    }


def model():
    """A new model that is the same each time."""
    return Specimen(seed=7)


def batches_of(*rows):
    generator = torch.Generator().manual_seed(sum(rows))
    return [
        tuple(torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for _ in "xy")
        for n in rows
    ]


def squares(outputs, targets):
    """A loss of your own: a mean over rows."""
    return (outputs - targets).square().sum(dim=1).mean()


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_one_step(learner, n):
    check(learner, n, batches_of(2 * n))


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_steps_with_momentum(learner, n):
    check(learner, n, batches_of(2 * n, 2 * n + 1, 3 * n - 1, 2 * n))


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_fewer_rows_than_gpus(learner, n):
    check(learner, n, batches_of(2 * n + 1, 1, n - 1, 2 * n))


@exercise("data_parallel.train_step")
def test_any_loss_that_is_a_mean_over_rows(learner):
    check(learner, 2, batches_of(5, 3), squares)
    labelled = [(inputs, targets.argmax(1)) for inputs, targets in batches_of(7, 5)]
    check(learner, 3, labelled, nn.CrossEntropyLoss())


def check(learner, n, batches, loss_fn=nn.functional.mse_loss):
    answer = learner.run(drive, model, batches, loss_fn, gpus=n)
    report = Report(n, batches, loss_fn, answer)
    for step in range(len(batches)):
        report.examine(step)


class Report:
    """What training on n GPUs came to, and what is wrong with it."""

    def __init__(self, n, batches, loss_fn, answer):
        self.n, self.batches, self.loss_fn = n, batches, loss_fn
        self.weights, self.losses = train(model(), batches, loss_fn, n)
        self.steps = answer.result
        self.where = answer.where

    def wrong(self, mistake, step, expected, came, usually):
        rows = [len(inputs) for inputs, _ in self.batches[: step + 1]]
        situation = f" (step {step + 1} on {count(self.n, 'GPU')}, batches of {listed(rows)} rows)"
        return Wrong(
            f"train_step.{mistake}",
            expected=expected + situation,
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self, step):
        self.examine_type(step)
        self.examine_weights(step)
        self.examine_agreement(step)
        self.examine_loss(step)

    def examine_type(self, step):
        loss = self.steps[step]["loss"]
        if isinstance(loss, float):
            return
        if loss is None:
            raise self.wrong(
                "returned_nothing",
                step,
                "the loss as a float",
                "None",
                "the function ends without `return`.",
            )
        raise self.wrong(
            "not_a_float",
            step,
            "the loss as a Python float",
            describe(loss),
            "a tensor keeps its graph and GPU memory alive. loss.item() is the number in it.",
        )

    def examine_weights(self, step):
        """Replica 0 has the weights that one GPU would have."""
        right = self.weights[step]
        came = {
            name: tensor.value
            for name, tensor in self.steps[step]["replicas"][0]["parameters"].items()
            if name in right
        }
        if all_same(came, right):
            return
        expected = "weights of replica 0 as after the same step on one GPU"
        known = mistakes(model(), self.batches[: step + 1], self.loss_fn, self.n)
        for name, weights in known.items():
            if all_same(came, weights[step]):
                mistake = name.partition(" ")[0]
                raise self.wrong(
                    mistake, step, expected, self.difference(came, right), USUALLY[mistake]
                )
        raise self.wrong(
            "other_weights",
            step,
            expected,
            self.difference(came, right),
            "a movement is missing or in the wrong place. Compare with the order in the task.",
        )

    def difference(self, came, right):
        name = next(name for name in right if not same(came[name], right[name]))
        return f"in {name}, {largest_difference(came[name], right[name])}"

    def examine_agreement(self, step):
        """All replicas hold what replica 0 holds."""
        first, *rest = self.steps[step]["replicas"]
        for kind, mistake, usually in (
            (
                "parameters",
                "replicas_stale",
                "the new weights were never sent to the other replicas, or before the step.",
            ),
            ("buffers", "buffers_stale", "only parameters were sent. Buffers belong to it too."),
        ):
            for i, replica in enumerate(rest, 1):
                for name, right in first[kind].items():
                    came = replica[kind][name]
                    if not same(came.value, right.value):
                        raise self.wrong(
                            mistake,
                            step,
                            "after the step all replicas agree",
                            f"{name} of replica {i} is not that of replica 0:"
                            f" {largest_difference(came.value, right.value)}",
                            usually,
                        )

    def examine_loss(self, step):
        came, right = self.steps[step]["loss"], self.losses[step]
        if close(came, right):
            return
        inputs, targets = self.batches[step]
        before = model()
        if step:
            before.load_state_dict(self.weights[step - 1], strict=False)
        chunks = [
            self.loss_fn(before(x), y).item()
            for x, y in zip(inputs.chunk(self.n), targets.chunk(self.n), strict=True)
        ]
        after = model()
        after.load_state_dict(self.weights[step], strict=False)
        known = {
            "loss_after_the_step": (
                self.loss_fn(after(inputs), targets).item(),
                "the loss was computed again with the new weights.",
            ),
            "loss_of_chunks": (
                sum(chunks) / len(chunks),
                "that is the mean of the chunks' losses. Chunks of different sizes weigh the same.",
            ),
            "losses_summed": (sum(chunks), "that is the sum of the chunks' losses."),
            "loss_of_last_chunk": (chunks[-1], "that is the last chunk's loss alone."),
            "loss_of_first_chunk": (chunks[0], "that is the first chunk's loss alone."),
        }
        for mistake, (value, usually) in known.items():
            if close(came, value):
                break
        else:
            mistake, usually = "other_loss", "return the loss of the whole batch before the step."
        raise self.wrong(mistake, step, f"the loss {right:.6f}", f"{came:.6f}", usually)


def close(a, b):
    return abs(a - b) <= 1e-9 * max(1.0, abs(b))
