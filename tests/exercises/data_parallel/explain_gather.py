"""What is wrong with an answer to ``data_parallel.gather``, in the learner's numbers."""

import torch

from multigpu.checking import Returned, Wrong, describe
from multigpu.checking.comparing import factor_between, same
from multigpu.checking.verdicts import count, listed, numbered, times


def examine(outputs, homes, target, result, where):
    """Raise Wrong unless ``result`` is the joined outputs on GPU ``target``."""
    right = torch.cat(outputs)
    rows = listed(map(len, outputs))
    expected = (
        f"one tensor of shape {tuple(right.shape)} on cuda:{target}: the outputs from"
        f" {listed(f'cuda:{home}' for home in homes)} ({rows} rows) one after another"
    )

    def wrong(mistake, came, usually):
        return Wrong(
            f"gather.{mistake}", expected=expected, came=came, usually=usually, where=where
        )

    examine_form(result, wrong)
    examine_shape(outputs, right, result.value, wrong)
    if not same(result.value, right):
        raise wrong_rows(outputs, homes, target, result.value, wrong)
    if result.device == "cpu":
        raise wrong("left_on_cpu", "a tensor on the CPU", "it was joined there and left there.")
    if result.device != f"cuda:{target}":
        raise wrong(
            "wrong_gpu",
            f"a tensor on {result.device}",
            "the outputs were brought to a fixed GPU, or to that of the first one. Use `device`.",
        )


def examine_form(result, wrong):
    if result is None:
        raise wrong("returned_nothing", "None", "the function ends without `return`.")
    if isinstance(result, list | tuple):
        raise wrong(
            "not_a_tensor",
            describe(result),
            "the outputs were moved, but not joined to one tensor.",
        )
    if not isinstance(result, Returned):
        raise wrong("not_a_tensor", describe(result), "return the joined tensor.")


def examine_shape(outputs, right, came, wrong):
    """The shape and type of the joined tensor, with the known ways to get another one."""
    n, rows = len(outputs), max(map(len, outputs))
    shape = tuple(came.shape)
    if shape == tuple(right.shape):
        if came.dtype != right.dtype:
            raise wrong(
                "dtype_changed",
                f"a tensor of {came.dtype}, though the outputs are {right.dtype}",
                "the rows were written into a new tensor that has the default type.",
            )
        return
    found = f"a tensor of shape {shape}"
    tail = tuple(right.shape[1:])
    if shape == (n, rows, *tail):
        raise wrong(
            "stacked",
            found,
            "torch.stack makes a new dimension. torch.cat joins along dimension 0.",
        )
    if tail and shape == (rows, *tail[:-1], n * tail[-1]):
        raise wrong(
            "along_columns",
            found,
            "the outputs were joined along the last dimension. Rows are dimension 0.",
        )
    if shape == (n * rows, *tail):
        raise wrong("padded", found, "short outputs were filled up. They keep their own length.")
    if shape[1:] == tail and len(shape) == right.ndim:
        raise wrong_number_of_rows(outputs, right, came, found, wrong)
    raise wrong("shape_changed", found, "only dimension 0 grows. The others stay as they are.")


def wrong_number_of_rows(outputs, right, came, found, wrong):
    if len(came) in (max(map(len, outputs)), min(map(len, outputs))) and not same(
        came, outputs[0][: len(came)]
    ):
        return wrong("added", found, "the outputs were added up or averaged, not joined.")
    missing = [i for i, row in enumerate(right) if not any((row == held).all() for held in came)]
    if not missing:
        return wrong("shape_changed", found, "some rows came more than once.")
    return wrong(
        "rows_missing",
        f"{found}: {numbered('row', missing)} of the batch {'is' if missing[1:] == [] else 'are'}"
        " not in it",
        "only a part of the outputs was joined. They may have different numbers of rows.",
    )


def wrong_rows(outputs, homes, target, came, wrong):
    """All rows could be there.  Which order is it?"""
    by_gpu = sorted(range(len(outputs)), key=lambda i: homes[i])
    target_first = sorted(range(len(outputs)), key=lambda i: homes[i] != target)
    columns = torch.cat(list(reversed(outputs)))
    for order in (by_gpu, target_first):
        if same(came, torch.cat([outputs[i] for i in order])):
            return wrong(
                "device_order",
                f"outputs {listed(order)} one after another",
                "they were sorted by their GPU. The order of the list is the order of the rows.",
            )
    if same(came, columns):
        return wrong(
            "reversed",
            "the last output's rows first",
            "each output was put in front of the ones before it.",
        )
    longest = max(map(len, outputs))
    dealt = [output[i] for i in range(longest) for output in outputs if i < len(output)]
    if same(came, torch.stack(dealt)):
        return wrong(
            "interleaved",
            "the first row of every output, then the second of every output, ...",
            "the outputs are blocks of rows, one after another.",
        )
    return wrong(
        "values_changed", "other numbers than in the outputs", "the outputs must only be joined."
    )


def examine_gradients(result, right, homes, where):
    """Each output has got its part of the gradient, on its own GPU."""
    gradients = result["gradients"]
    lost = [i for i, gradient in enumerate(gradients) if gradient is None]

    def wrong(mistake, came, usually):
        expected = f"backward brings a gradient to each of {count(len(right), 'output')}"
        return Wrong(
            f"gather.{mistake}", expected=expected, came=came, usually=usually, where=where
        )

    cut = "`.detach()`, `.data`, `torch.no_grad()` or a new tensor from the numbers cut the way"
    if len(lost) == len(right):
        raise wrong("detached", "no output got a gradient", f"{cut} back.")
    if lost:
        kept = [i for i in range(len(right)) if i not in lost]
        raise wrong(
            "partly_detached",
            f"only {numbered('output', kept)} got one; {numbered('output', lost)} did not"
            f" ({listed(f'cuda:{homes[i]}' for i in lost)})",
            f"{cut} back from there.",
        )
    for i, (gradient, expected) in enumerate(zip(gradients, right, strict=True)):
        factor = factor_between(gradient.value, expected)
        if factor is not None:
            raise wrong(
                "gradient_scaled",
                f"the gradient of output {i} is {times(factor)} the right one",
                "something scales it on its way back. Joining does not change gradients.",
            )
        if not same(gradient.value, expected):
            raise wrong(
                "gradient_wrong",
                f"output {i} got a gradient that belongs to other rows",
                "an output was joined in another place or more than once.",
            )
