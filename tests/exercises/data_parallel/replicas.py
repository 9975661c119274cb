"""Replicas of a model, as a check makes them, and what they hold."""

import copy


def placed(models, devices, order):
    """A copy of every model, each on its GPU: the cases of a run share their models."""
    return [copy.deepcopy(m).to(devices[i]) for m, i in zip(models, order, strict=True)]


def parameters_of(replicas):
    """All parameters, with names that say whose they are; a tied one under its first name."""
    return {
        f"{name} of replica {i}": parameter
        for i, replica in enumerate(replicas)
        for name, parameter in replica.named_parameters()
    }


def tensors_of(replicas):
    """All parameters and buffers."""
    return parameters_of(replicas) | {
        f"{name} of replica {i}": buffer
        for i, replica in enumerate(replicas)
        for name, buffer in replica.named_buffers()
    }


def leaves_gradients_on(exercise):
    """The caller's grad mode is after the call what it was before."""

    @exercise.holds(
        "grad_mode_changed",
        expects="gradients are on for the caller after the call, as before it",
        usually="torch.set_grad_enabled(False) on a line of its own lasts after the function, for"
        " all code that follows.",
        fix="Write `with torch.no_grad():`.",
    )
    def _(run, case):
        return None if run.gradients_on(case) else "they are off"
