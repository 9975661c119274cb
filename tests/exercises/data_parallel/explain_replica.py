"""What is wrong inside one replica that ``data_parallel.replicate`` made, in the learner's names.

``right`` is a snapshot of the model, ``replica`` one of replica i; ``wrong`` makes the verdict.
"""

import itertools

from multigpu.checking import Wrong
from multigpu.checking.comparing import largest_difference, same


def examine_numbers(right, i, replica, wrong):
    """Replica i has the numbers of the model."""
    for kind in ("parameters", "buffers"):
        for name, tensor in right[kind].items():
            came = replica[kind][name]
            expected = f"{name} of replica {i} as in the model"
            if came.dtype != tensor.dtype:
                raise wrong(
                    "dtype_changed",
                    f"it is {came.dtype} and not {tensor.dtype}",
                    "the copy was converted, or made new with the default type.",
                    expected,
                )
            if same(came.value, tensor.detach()):
                continue
            difference = f"it {largest_difference(came.value, tensor.detach())}"
            if kind == "parameters":
                raise wrong(
                    "fresh_weights",
                    difference,
                    "a new model was built, and it drew its own random weights.",
                    expected,
                )
            if name == "position":
                raise wrong(
                    "non_persistent_lost",
                    difference,
                    "state_dict() leaves non-persistent buffers out.",
                    expected,
                )
            raise wrong(
                "buffers_reset", difference, "the buffers were initialised again.", expected
            )


def examine_ties(right, i, replica, wrong):
    """What is one parameter in the model is one in replica i."""
    model, objects = right["objects"], replica["objects"]
    for name, other in itertools.combinations(model, 2):
        if (model[name] == model[other]) != (objects[name] == objects[other]):
            raise wrong(
                "untied",
                f"in replica {i} they are two, which will drift apart",
                "each layer was copied by itself. Copy the whole model at once, so that"
                " what is one parameter stays one.",
                f"{name} and {other} are one parameter",
            )


def examine_modes(right, i, replica, wrong):
    """Replica i trains and evaluates, and is trained, where the model is."""
    for name, training in right["training"].items():
        if replica["training"].get(name) != training:
            label = f"{name} of replica {i}" if name else f"replica {i}"
            modes = ["eval", "train"]
            raise wrong(
                "mode_lost",
                f"it is in {modes[not training]} mode",
                "a new module starts in train mode, and train() or eval() sets every layer.",
                f"{label} in {modes[training]} mode, as in the model",
            )
    for name, parameter in right["parameters"].items():
        came = replica["parameters"][name].requires_grad
        if came != parameter.requires_grad:
            raise wrong(
                "requires_grad_lost",
                f"it is {came}",
                "nn.Parameter(...) and requires_grad_() set it to True for every parameter.",
                f"{name}.requires_grad of replica {i} is {parameter.requires_grad}",
            )


def examine_training(module, inputs, i, came, where):
    """Replica i by itself computes the outputs and gradients that the model computes."""
    module.zero_grad()
    output = module(inputs)
    output.sum().backward()
    if not same(came["output"].value, output.detach()):
        raise Wrong(
            "replicate.forward_differs",
            expected=f"replica {i} computes what the model computes",
            came=f"its output {largest_difference(came['output'].value, output.detach())}",
            usually="forward still uses a tensor that was not copied.",
            where=where,
        )
    for name, parameter in module.named_parameters():
        gradient = came["gradients"][name]
        if parameter.requires_grad and (
            gradient is None or not same(gradient.value, parameter.grad)
        ):
            raise Wrong(
                "replicate.not_trainable",
                expected=f"after backward, {name}.grad of replica {i} holds its gradient",
                came="None" if gradient is None else "another gradient",
                usually="the parameter that forward uses is not the one in parameters(), or"
                " autograd sees it as a result of the first model's.",
                where=where,
            )
