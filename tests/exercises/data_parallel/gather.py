"""``data_parallel.gather``: one tensor from all outputs, and the gradient's way back."""

import torch

from multigpu.checking.declaration import case, exercise, on
from multigpu.ranks.errors import listed

gather = exercise(
    "data_parallel.gather",
    expects="the rows of outputs[0], then those of outputs[1], and so on, as one tensor of shape"
    " {shape} on cuda:{target}; backward gives every output its gradient",
)


def outputs_of(rows, *shape, dtype=torch.float64):
    """Outputs with so many rows each; no number is there twice."""
    numbers = torch.arange(1, 1 + sum(rows) * torch.Size(shape).numel())
    return list(numbers.reshape(sum(rows), *shape).to(dtype).split(rows))


@gather.cases
def cases():
    for n in (3, 2, 4):
        yield a_case(n, outputs_of([2] * n, 3))
        yield a_case(n, outputs_of([3] * (n - 1) + [1], 2))
        yield a_case(n, outputs_of([1, 3, 2, 4][:n], 3), range(n)[::-1], n - 1)
    thirds = [output / 3 for output in outputs_of([2, 2, 1], 2)]
    yield a_case(3, [output.float() for output in thirds])
    yield a_case(3, thirds)
    yield a_case(3, outputs_of([3, 3, 1]))
    yield a_case(3, outputs_of([3, 3, 1], 1, 2, 2, dtype=torch.float32))
    yield a_case(3, outputs_of([3, 3, 1], 2, dtype=torch.int64))
    for homes, target in [
        ([2, 0, 1], 0),
        ([1, 0], 1),
        ([3, 1, 0], 2),
        ([1], 0),
        ([0], 0),
        ([0, 0, 1], 1),
    ]:
        yield a_case(4, outputs_of([2] * (len(homes) - 1) + [1], 2), homes, target)


def a_case(n, outputs, homes=None, target=0):
    """Outputs on the GPUs ``homes`` of n, to be gathered on GPU ``target``."""
    homes = [*(homes or range(n))]
    shapes = listed(tuple(output.shape) for output in outputs)
    gpus = listed(f"cuda:{i}" for i in homes)
    title = f"outputs of shape {shapes} and type {str(outputs[0].dtype)[6:]} on {gpus}"
    example = len({len(output) for output in outputs}) > 1
    return case(title, gpus=n, outputs=outputs, homes=homes, target=target, example=example)


@gather.drive
def drive(submission, case, devices):
    leaves = [
        output.to(devices[home]).detach().requires_grad_(output.is_floating_point())
        for output, home in zip(case.outputs, case.homes, strict=True)
    ]
    result = submission.gather(tuple(2 * leaf for leaf in leaves), devices[case.target])
    weights = weights_of(case)
    if isinstance(result, torch.Tensor) and result.requires_grad and result.shape == weights.shape:
        (result * weights.to(result.device)).sum().backward()
    gradients = {f"the gradient of output {i}": leaf.grad for i, leaf in enumerate(leaves)}
    return {"the result": result} | gradients


def weights_of(case):
    """What the result's gradient is made."""
    joined = torch.cat(case.outputs)
    return torch.linspace(1, 2, joined.numel(), dtype=torch.float64).reshape(joined.shape)


@gather.expected
def expected(case):
    right = {"the result": on(f"cuda:{case.target}", 2 * torch.cat(case.outputs))}
    if not case.outputs[0].is_floating_point():
        return right
    weights = (2 * weights_of(case)).to(case.outputs[0].dtype)
    for i, gradient in enumerate(weights.split([*map(len, case.outputs)])):
        right[f"the gradient of output {i}"] = on(f"cuda:{case.homes[i]}", gradient)
    return right


@gather.words
def words(case):
    return {"shape": tuple(torch.cat(case.outputs).shape), "n": len(case.outputs)}


@gather.right
def row_by_row(outputs, device):
    return torch.stack([row.to(device) for output in outputs for row in output])


@gather.right
def into_a_buffer(outputs, device):
    first = outputs[0]
    rows = sum(output.size(0) for output in outputs)
    result = torch.empty((rows, *first.shape[1:]), dtype=first.dtype, device=device)
    start = 0
    for output in outputs:
        result[start : start + output.size(0)] = output.to(device)
        start += output.size(0)
    return result


@gather.mistake(
    "detached",
    "the way back is cut, so no output gets a gradient.",
    fix="`.detach()`, `.data` and `torch.no_grad()` cut it; `.to(device)` and `torch.cat` keep it.",
)
def detaches(outputs, device):
    return torch.cat([output.detach().to(device) for output in outputs])


@gather.mistake(
    "wrong_gpu",
    "the outputs were brought to the GPU of the first one.",
    fix="Move every output with .to(device), a single one too.",
)
def always_on_the_first(outputs, device):
    return torch.cat([output.to(outputs[0].device) for output in outputs])


@gather.mistake(
    "joined_before_moving",
    "the outputs were joined before they were moved, and torch.cat works on one GPU only.",
    fix="Move every output with .to(device) first.",
    status="crash",
)
def joins_before_it_moves(outputs, device):
    return torch.cat(outputs).to(device)


@gather.mistake(
    "stacked",
    "torch.stack makes a new dimension, and needs outputs of equal shape.",
    fix="torch.cat joins along dimension 0.",
)
def stacks(outputs, device):
    return torch.stack([output.to(device) for output in outputs])


@gather.mistake(
    "device_order",
    "the outputs were sorted by their GPU.",
    fix="The order of the list is the order of the rows.",
)
def sorts_by_gpu(outputs, device):
    ordered = sorted(outputs, key=lambda output: output.device.index)
    return torch.cat([output.to(device) for output in ordered])


@gather.mistake(
    "size_of_the_first",
    "output i was written at row i * len(outputs[0]), so rows were overwritten or left out.",
    fix="Outputs may differ in their number of rows: add up the lengths of those before.",
)
def places_by_the_size_of_the_first(outputs, device):
    size = len(outputs[0])
    rows = sum(len(output) for output in outputs)
    result = outputs[0].new_zeros((rows, *outputs[0].shape[1:]), device=device)
    for i, output in enumerate(outputs):
        result[i * size : i * size + len(output)] = output.to(device)
    return result


@gather.mistake(
    "dtype_changed",
    "the rows were written into a new tensor of the default type, float32.",
    fix="torch.cat keeps the type; a buffer needs dtype=outputs[0].dtype.",
)
def into_a_float_buffer(outputs, device):
    result = torch.zeros(sum(map(len, outputs)), *outputs[0].shape[1:], device=device)
    start = 0
    for output in outputs:
        result[start : start + len(output)] = output.to(device)
        start += len(output)
    return result
