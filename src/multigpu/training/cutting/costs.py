"""What a stage costs: seconds, parameters, bytes. Plain records, and how pieces add up to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from multigpu.training.cutting.measuring import Seconds
from multigpu.training.cutting.program import Program, at_rows


@dataclass(frozen=True)
class StageCost:
    """One stage, for one micro-batch of `rows` rows."""

    modules: tuple[str, ...]  # the names of the modules that it calls, in order
    forward: float  # seconds
    backward: float  # seconds
    parameters: int  # numbers, each once; those of tied weights in each stage that uses them
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int  # kept from forward to backward
    handed_bytes: int  # what it receives from the stage before it
    in_flight: int  # micro-batches whose activations it holds at the same time
    layers: int  # calls of modules with parameters

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward + self.backward

    @property
    def memory(self) -> int:
        """Bytes in all, with the activations of all micro-batches in flight."""
        fixed = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return fixed + self.in_flight * self.activation_bytes


SCHEDULES = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True)
class Setting:
    """For what training the stages are chosen."""

    num_stages: int
    rows: int  # of a micro-batch
    micro_batches: int
    schedule: str = "1f1b"
    optimizer_state: float = 2.0  # numbers that the optimizer keeps per parameter

    def in_flight(self, stage: int) -> int:
        """Micro-batches that stage `stage` has begun and not yet carried back, at most."""
        if self.schedule == "1f1b":
            return min(self.micro_batches, self.num_stages - stage)
        return self.micro_batches


class Costs:
    """The costs of every stage that could be made of the pieces."""

    def __init__(
        self, model: nn.Module, program: Program, places: Sequence[int], seconds: Sequence[Seconds]
    ) -> None:
        self.program, self.places, self.seconds = program, tuple(places), tuple(seconds)
        named = dict(model.named_parameters(remove_duplicate=False))
        self.tensors = named | dict(model.named_buffers(remove_duplicate=False))
        self.own = [self._own(model, step) for step in range(len(program.steps))]
        self.stateful = [
            bool(step.module and any(True for _ in model.get_submodule(step.module).parameters()))
            or any(isinstance(self.tensors.get(n), nn.Parameter) for n in step.held)
            for step in program.steps
        ]

    def _own(self, model: nn.Module, place: int) -> list[str]:
        """The names of the parameters and buffers that a step uses."""
        step = self.program.steps[place]
        names = [name for name in step.held if name in self.tensors]
        if step.module is not None:
            module = model.get_submodule(step.module)
            inside = [*module.named_parameters(), *module.named_buffers()]
            names += [f"{step.module}.{name}" for name, _ in inside]
        return names

    def stage(self, number: int, first: int, last: int, setting: Setting) -> StageCost:
        """Stage `number` made of the pieces from `first` up to `last`, without it."""
        begin, end = self.places[first], self.places[last]
        steps = self.program.steps[begin:end]
        held = {
            id(self.tensors[name]): self.tensors[name]
            for place in range(begin, end)
            for name in self.own[place]
        }
        parameters = [one for one in held.values() if isinstance(one, nn.Parameter)]
        trained = [one for one in parameters if one.requires_grad]
        received = self.program.crossing(begin) if begin else list(self.program.inputs)
        return StageCost(
            modules=tuple(dict.fromkeys(step.module for step in steps if step.module)),
            forward=sum(one.forward for one in self.seconds[first:last]),
            backward=sum(one.backward for one in self.seconds[first:last]),
            parameters=sum(one.numel() for one in parameters),
            weight_bytes=sum(map(_bytes, held.values())),
            gradient_bytes=sum(map(_bytes, trained)),
            optimizer_bytes=round(setting.optimizer_state * sum(map(_bytes, trained))),
            activation_bytes=self._activations(begin, end, received, setting.rows),
            handed_bytes=self._size(received, setting.rows) if begin else 0,
            in_flight=setting.in_flight(number),
            layers=sum(self.stateful[begin:end]),
        )

    def _size(self, values: Sequence[int], rows: int) -> int:
        return sum(self.program.shapes[number].bytes(rows) for number in values)

    def _activations(self, begin: int, end: int, received: Sequence[int], rows: int) -> int:
        """Bytes of all that backward needs, what is received and handed on included; each once."""
        kept = {
            storage: size
            for step in self.program.saved[begin:end]
            for storage, size in step.items()
        }
        sizes = {storage: int(at_rows(size, rows)) for storage, size in kept.items()}
        handed = self.program.crossing(end) if end < len(self.program.steps) else []
        for number in (*received, *handed):
            shape = self.program.shapes[number]
            sizes.setdefault(shape.storage, shape.bytes(rows))
        return sum(sizes.values())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
