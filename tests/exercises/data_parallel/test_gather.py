"""Checks of ``data_parallel.gather``: one tensor from many, and the gradient's way back."""

import pytest
import torch

from multigpu.checking import Foreign, Returned, Wrong, exercise
from multigpu.checking.comparing import factor_between, same
from multigpu.checking.wording import count, listed, numbered, times


def drive(submission, devices, outputs, homes, target):
    """Gather outputs from the GPUs ``homes`` on the GPU ``target``."""
    placed = [output.to(devices[home]) for output, home in zip(outputs, homes, strict=True)]
    return submission.gather(placed, devices[target])


def drive_backward(submission, devices, outputs, homes, target, weights):
    """The same, then the gradients that arrive at the outputs when the result has ``weights``."""
    leaves = [
        output.to(devices[home]).detach().requires_grad_()
        for output, home in zip(outputs, homes, strict=True)
    ]
    result = submission.gather(tuple(2 * leaf for leaf in leaves), devices[target])
    if isinstance(result, torch.Tensor) and result.requires_grad:
        (result * weights.to(result.device)).sum().backward()
    return {"result": result, "gradients": [leaf.grad for leaf in leaves]}


def outputs_of(rows, *shape, dtype=torch.float64):
    """Outputs with so many rows each; no number comes twice."""
    numbers = torch.arange(1, 1 + sum(rows) * torch.Size(shape).numel())
    return list(numbers.reshape(sum(rows), *shape).to(dtype).split(rows))


@exercise("data_parallel.gather")
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_outputs_of_equal_size(learner, n):
    outputs = outputs_of([2] * n, 3)
    answer = learner.run(drive, outputs, range(n), 0, gpus=n)
    examine(outputs, range(n), 0, answer.result, answer.where)


@exercise("data_parallel.gather")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_outputs_of_different_size(learner, n):
    outputs = outputs_of([3] * (n - 1) + [1], 2)
    answer = learner.run(drive, outputs, range(n), 0, gpus=n)
    examine(outputs, range(n), 0, answer.result, answer.where)


@exercise("data_parallel.gather")
@pytest.mark.parametrize(
    ("homes", "target"), [([1, 0], 1), ([2, 0, 1], 0), ([3, 1, 0], 2), ([1], 0), ([0, 0, 1], 1)]
)
def test_gpus_in_any_order(learner, homes, target):
    outputs = outputs_of([2] * (len(homes) - 1) + [1], 2)
    answer = learner.run(drive, outputs, homes, target, gpus=1 + max(*homes, target))
    examine(outputs, homes, target, answer.result, answer.where)


@exercise("data_parallel.gather")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), torch.float64), ((1, 2, 2), torch.float32), ((2,), torch.int64)],
    ids=["one number per row", "images", "integers"],
)
def test_any_shape_and_type(learner, shape, dtype):
    outputs = outputs_of([3, 3, 1], *shape, dtype=dtype)
    answer = learner.run(drive, outputs, range(3), 0, gpus=3)
    examine(outputs, range(3), 0, answer.result, answer.where)


@exercise("data_parallel.gather")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_gradients_flow_back(learner, n):
    homes = list(reversed(range(n)))
    outputs = outputs_of([2] * (n - 1) + [1], 3)
    weights = torch.linspace(1, 2, sum(map(torch.numel, outputs)), dtype=torch.float64)
    weights = weights.reshape(-1, 3)
    answer = learner.run(drive_backward, outputs, homes, n - 1, weights, gpus=n)
    doubled = [2 * output for output in outputs]
    examine(doubled, homes, n - 1, answer.result["result"], answer.where)
    rows = list(map(len, outputs))
    examine_gradients(answer.result, (2 * weights).split(rows), homes, answer.where)


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
            "the outputs were brought to a fixed GPU, or to that of the first output. Use `device`.",
        )


def examine_form(result, wrong):
    if result is None:
        raise wrong("returned_nothing", "None", "the function ends without `return`.")
    if isinstance(result, list | tuple):
        raise wrong(
            "not_a_tensor",
            f"{count(len(result), 'object')} in a {type(result).__name__}",
            "the outputs were moved, but not joined to one tensor.",
        )
    if not isinstance(result, Returned):
        kind = result.type_name if isinstance(result, Foreign) else type(result).__name__
        raise wrong("not_a_tensor", f"an object of type {kind}", "return the joined tensor.")


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
            "stacked", found, "torch.stack makes a new dimension. torch.cat joins along dimension 0."
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
    missing = [i for i, row in enumerate(right) if not (came == row).flatten(1).all(1).any()]
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

    cut = "`.detach()`, `.data`, `torch.no_grad()` or a new tensor made from the numbers cut the way"
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
