"""What the checks of several exercises share: how tensors are compared, the model that they hand
to a learner's code, and mistakes with messages that are under way.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from multigpu.checking.verdicts import Wrong
from multigpu.ranks.calls import Call

Name = TypeVar("Name")

# How far apart numbers may be, relative to the largest. Other types must be equal.
EXACT = {torch.float64: 1e-9, torch.float32: 1e-5}
ROUNDED = EXACT | {torch.float64: 1e-6}  # float32 has come near them
LARGEST = 64  # a factor of n/m is looked for up to this n and m


def same(came: Tensor, expected: Tensor, *, size: float = 0.0, share_of: int = 1) -> bool:
    """Equal in shape, type and numbers, up to the order in which a GPU adds them up.

    ``size`` is that of the numbers they come from, where these may cancel.  ``share_of=n`` says
    that right answers multiply by a share, such as 1/n or rows/n; where there are several, n is
    the product of theirs.
    """
    return _near(came, expected, tolerance(expected.dtype, share_of=share_of), size)


def alike(came: Tensor, expected: Tensor) -> bool:
    """``same``, even if one of them went through float32: enough to name the cause of a mistake."""
    return _near(came, expected, ROUNDED.get(expected.dtype))


def tolerance(dtype: torch.dtype, *, share_of: int = 1) -> float | None:
    """How far apart numbers may be, relative to the largest; None if they must be equal.

    In torch a quotient of int64 tensors is float32, so a right answer may multiply float64 numbers
    by a share in float32.  That is exact where n is a power of two.
    """
    is_power_of_two = share_of & (share_of - 1) == 0
    return (EXACT if is_power_of_two else ROUNDED).get(dtype)


def _near(came: Tensor, expected: Tensor, tolerance: float | None, size: float = 0.0) -> bool:
    if came.shape != expected.shape or came.dtype != expected.dtype:
        return False
    if tolerance is None:
        return torch.equal(came, expected)
    size = max(size, float(expected.abs().max()) if expected.numel() else 0.0, 1e-3)
    return torch.allclose(came, expected, rtol=tolerance, atol=tolerance * size)


def all_same(
    came: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, share_of: int = 1
) -> bool:
    """The same names, and the same tensor under every name."""
    return came.keys() == expected.keys() and all(
        same(came[name], expected[name], share_of=share_of) for name in came
    )


def all_alike(came: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """The same names, and tensors that are alike under every name."""
    return came.keys() == expected.keys() and all(alike(came[n], expected[n]) for n in came)


def factor_between(came: Tensor, expected: Tensor) -> Fraction | None:
    """The simple fraction (2, 1/3, 3/4) by which ``came`` is larger everywhere, else None.

    None too when they are equal, or when all is zero.
    """
    real = came.is_floating_point() and expected.is_floating_point()
    if came.shape != expected.shape or not real:
        return None
    square = float((expected * expected).sum())
    if square == 0 or not torch.isfinite(came).all():
        return None
    ratio = float((came * expected).sum()) / square
    factor = Fraction(ratio).limit_denominator(LARGEST)
    if factor <= 0 or factor == 1 or factor > LARGEST:
        return None
    return factor if alike(came, expected * float(factor)) else None


def is_rounded(came: Tensor, expected: Tensor) -> bool:
    """Whether every number is right up to what float16 or bfloat16 leave of it, or float32.

    Of integers, whether they are too large for float32 and right up to what it leaves of them.
    """
    if came.shape != expected.shape or not expected.numel():
        return False
    exact = not expected.is_floating_point()
    came, expected = came.double(), expected.double()
    largest = float(expected.abs().max())
    if exact:
        return largest > 2**24 and torch.allclose(came, expected, rtol=0, atol=2**-23 * largest)
    # One rounding is 2**-9 of a number; a sum has several, of addends that may be larger than it.
    return torch.allclose(came, expected, rtol=2**-6, atol=2**-9 * largest)


def recognise(came: Tensor, known: Mapping[Name, Tensor]) -> Name | None:
    """The name of the first known value that ``came`` is like."""
    return next((name for name, value in known.items() if alike(came, value)), None)


def largest_difference(came: Tensor, expected: Tensor) -> str:
    """Where two tensors are furthest apart, to follow a name: "at [1, 0] is 3 and not 1"."""
    if came.shape != expected.shape:
        return f"has the shape {tuple(came.shape)} and not {tuple(expected.shape)}"
    if came.dtype != expected.dtype:
        return f"is of type {came.dtype} and not {expected.dtype}"
    apart = (came.double() - expected.double()).abs().nan_to_num(torch.inf)
    index = tuple(int(i) for i in torch.unravel_index(apart.argmax(), came.shape))
    place = f"at {list(index)} is" if index else "is"
    return f"{place} {' and not '.join(told_apart(came[index].item(), expected[index].item()))}"


def told_apart(*numbers: float) -> list[str]:
    """Numbers with as many digits as it takes to see that they differ, six at least."""
    if all(isinstance(number, int) for number in numbers):
        return [str(number) for number in numbers]
    for digits in range(6, 17):
        written = [f"{number:.{digits}g}" for number in numbers]
        if len(set(written)) > 1:
            break
    return written


WIDTH = 3
Made = TypeVar("Made")


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """``make()`` with random numbers of the CPU that are the same each time.

    ``torch.manual_seed`` notes for every kind of GPU, too, from where it was called, and that takes
    longer than making a small model does.
    """
    torch.default_generator.manual_seed(seed)
    return make()


class Gain(nn.Module):
    """Multiplies by one trained number, ``scale``, which has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Keeps the shape."""
        return inputs * self.scale


class Specimen(nn.Module):
    """Rows of 3 numbers in, rows of 3 numbers out, all in float64.

    * ``encode.weight`` and ``decode.weight`` are one parameter (tied);
    * ``frozen`` has no bias, is not trained and is in eval mode;
    * ``gain.scale`` has no dimension;
    * ``running_mean`` is an ordinary buffer, ``batches`` an integer one that forward counts up,
      ``position`` a non-persistent one (not in ``state_dict()``).

    Parameters and buffers depend on ``seed`` only; without one they are random.
    """

    running_mean: Tensor
    batches: Tensor
    position: Tensor

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.encode = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.decode = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.decode.weight = self.encode.weight
        self.gain = Gain()
        self.register_buffer("running_mean", torch.zeros(WIDTH, dtype=torch.float64))
        self.register_buffer("batches", torch.tensor(0))
        position = torch.zeros(WIDTH, dtype=torch.float64)
        self.register_buffer("position", position, persistent=False)
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for tensor in (*self.parameters(), self.running_mean, self.position):
                    tensor.normal_(generator=generator).mul_(0.5)
            self.batches.fill_(10 + seed)
        self.frozen.requires_grad_(False)
        self.frozen.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, 3) to (rows, 3).  Each row is computed by itself."""
        self.batches += 1
        hidden = torch.tanh(self.encode(self.frozen(inputs)) + self.position)  # (rows, 3)
        outputs: Tensor = self.gain(self.decode(hidden)) + self.running_mean  # (rows, 3)
        return outputs


def snapshot(module: nn.Module) -> dict[str, Any]:
    """What a module holds, as a worker can send it to the judge.

    ``parameters`` and ``buffers`` by name, tied ones under every name; ``objects`` tells by number
    which of them are the same object, also across modules of one run; ``training`` has the mode of
    every submodule.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return {
        "parameters": parameters,
        "buffers": buffers,
        "objects": {name: id(tensor) for name, tensor in (parameters | buffers).items()},
        "modules": {name: id(part) for name, part in module.named_modules()},
        "training": {name: part.training for name, part in module.named_modules()},
    }


Teller = Callable[..., Wrong]


def examine_handles(calls: Iterable[Call], wrong: Teller) -> None:
    """Every call was waited for, and nobody wrote into what was on its way."""
    for call in calls:
        if call.is_open:
            raise wrong(
                "not_waited",
                f"{spoken(call)} was started, but nobody waited for it",
                "its handle was thrown away. Until handle.wait() returns, what you receive is not"
                " there, and what you send may not be gone.",
                where=call.place,
            )
        if call.changed and call.op == "recv":
            raise wrong(
                "changed_while_receiving",
                f"the buffer of {spoken(call)} was changed before the message was there",
                "two messages are received into one tensor at the same time, or it is written"
                " before handle.wait(). Give each its own buffer.",
                where=call.place,
            )
        if call.changed:
            raise wrong(
                "changed_while_sending",
                f"the tensor of {spoken(call)} was changed before it had gone",
                "it was received into, added to or cleared before handle.wait(). Who receives it"
                " may get the old numbers, the new ones or some of both.",
                where=call.place,
            )


def spoken(call: Call) -> str:
    """For example "rank 1's isend to rank 2"."""
    if not call.is_message:
        return f"rank {call.rank}'s {call.via}"
    towards = "to" if call.op == "send" else "from"
    peer = "any rank" if call.peer is None else f"rank {call.peer}"
    return f"rank {call.rank}'s {call.via} {towards} {peer}"
