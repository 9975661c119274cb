"""What is wrong with an answer to ``data_parallel.train_step``, in the learner's numbers."""

import math

from multigpu.checking import Wrong
from multigpu.checking.comparing import all_alike, all_same, largest_difference, same
from multigpu.checking.verdicts import count, listed

from .explain_train_step_loss import examine_loss, examine_type
from .one_gpu import mistakes, train

# By mistake: what the weights are exactly equal to, and which code usually does that.
KNOWN = {
    "rounded": (
        "a step with rounded gradients",
        "they were moved or added up in a smaller dtype. Sum them up as they are.",
    ),
    "gradients_not_summed": (
        "a step with replica 0's own gradients only",
        "the gradients must be summed after backward and before the step.",
    ),
    "first_chunk_only": (
        "training on the first chunk only",
        "the loss was taken from one chunk. The other rows trained nothing.",
    ),
    "mean_of_chunk_means": (
        "training with the mean of the chunks' losses",
        "the last chunk is smaller, so each of its rows counts more. Take one loss on the gathered"
        " outputs, or weigh each chunk by its rows.",
    ),
    "losses_added": (
        "training with the sum of the chunks' losses",
        "each of them is a mean already. Take one loss on the gathered outputs, or weigh each"
        " chunk by its rows.",
    ),
    "gradients_divided": (
        "a step with the summed gradients divided once more",
        "the mean is in the loss already.",
    ),
    "gradients_never_cleared": (
        "a step with the gradients of all steps so far",
        "nothing clears .grad of replica 0 between two steps.",
    ),
    "old_gradients_in_replicas": (
        "a step in which other replicas add gradients of an earlier step",
        "optimizer.zero_grad() clears replica 0 only. Clear all, also those without rows.",
    ),
    "momentum_lost": (
        "a step without momentum",
        "the weights were changed by hand, or by a new optimizer. Call optimizer.step().",
    ),
    "two_steps": ("two steps instead of one", "optimizer.step() ran twice."),
    "no_step": (
        "no step at all",
        "optimizer.step() was not called, or the gradients had been cleared when it was.",
    ),
    "rows_dropped": (
        "training without the last rows",
        "the rows that do not divide by the number of GPUs were left out.",
    ),
    "unused_layer_moved": (
        "a step in which layers that it did not use have gradients of zeros",
        "old gradients were filled with zeros, so momentum goes on moving these layers. Set them"
        " to None, as zero_grad() does.",
    ),
}


class Report:
    """What training on the GPUs ``order`` came to, and what is wrong with it."""

    def __init__(self, order, model, batches, loss_fn, answer):
        self.n, self.model, self.batches, self.loss_fn = len(order), model, batches, loss_fn
        self.gpus = [f"cuda:{i}" for i in order]
        self.weights, self.losses = train(model, batches, loss_fn, self.n)
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
        examine_type(self, step)
        self.examine_weights(step)
        self.examine_agreement(step)
        examine_loss(self, step)
        self.examine_gpus(step)
        self.examine_arguments(step)

    def examine_weights(self, step):
        """Replica 0 has the weights that one GPU would have."""
        right = self.weights[step]
        came = {
            name: tensor.value
            for name, tensor in self.steps[step]["replicas"][0]["parameters"].items()
            if name in right
        }
        if all_same(came, right, share_of=self.rows_until(step)):
            return
        expected = "weights of replica 0 as after the same step on one GPU"
        known = {"rounded": self.weights}
        known |= mistakes(self.model, self.batches[: step + 1], self.loss_fn, self.n)
        difference = self.difference(came, right, step)
        for name, weights in known.items():
            if all_alike(came, weights[step]):
                mistake = name.partition(" ")[0]
                like, usually = KNOWN[mistake]
                raise self.wrong(
                    mistake,
                    step,
                    expected,
                    f"exactly the weights after {like}: {difference}",
                    usually,
                )
        raise self.wrong(
            "other_weights",
            step,
            expected,
            difference,
            "a movement is missing or in the wrong place. Compare with the order in the task.",
        )

    def rows_until(self, step):
        """Whoever weighs chunks by their rows takes shares of these numbers, step by step."""
        return math.prod(len(inputs) for inputs, _ in self.batches[: step + 1])

    def difference(self, came, right, step):
        rows = self.rows_until(step)
        name = next(n for n in right if not same(came[n], right[n], share_of=rows))
        return f"{name} {largest_difference(came[name], right[name])}"

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
                            f"in replica {i}, {name} {largest_difference(came.value, right.value)}",
                            usually,
                        )

    def examine_gpus(self, step):
        """Every GPU has run its model, if there are rows for all of them."""
        chunks = self.batches[step][0].chunk(self.n)
        idle = [gpu for gpu in self.gpus if gpu not in self.steps[step]["busy"]]
        if idle and len(chunks) == self.n:
            raise self.wrong(
                "one_gpu_only" if len(idle) == self.n - 1 else "idle_gpus",
                step,
                "every GPU runs the forward pass of its rows",
                f"the numbers are right, but {listed(idle)} ran no layer of the model",
                "the whole batch went through one replica, or some replicas got no rows. Split the"
                " batch over all replicas.",
            )

    def examine_arguments(self, step):
        changed = self.steps[step]["changed"]
        if changed:
            raise self.wrong(
                "rows_changed",
                step,
                "inputs and targets stay as they are",
                f"{listed(changed)} of the caller changed",
                "something wrote into them in place. A method with _ at its end does that.",
            )
