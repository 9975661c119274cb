"""A pipeline for each size of micro-batch: the last batch of an epoch may have one of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from multigpu.data.feeds import rows_of
from multigpu.training.placing import to_device
from multigpu.training.strategies.pipelining.flows import Autocast, flows_between
from multigpu.training.strategies.pipelining.micro_batches import Layout
from multigpu.training.strategies.pipelining.refusing import refuse_flows
from multigpu.training.strategies.pipelining.runner import Runner, as_arguments


class Runners:
    """The pipelines of this rank, each made when a batch needs it; all ranks see all batches."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        *,
        num_stages: int,
        schedule: str,
        micro_batches: int,
        device: torch.device,
        autocast: Autocast,
    ) -> None:
        """`stages`: this rank's, by their number."""
        self.stages, self.num_stages, self.schedule = stages, num_stages, schedule
        self.micro_batches, self.device, self.autocast = micro_batches, device, autocast
        self.made: dict[Any, Runner] = {}

    def of(self, inputs: Any, *, backward: bool) -> tuple[Runner, Layout]:
        """The pipeline for a batch, and which row stands where in it."""
        layout = Layout.of(rows_of(inputs), self.micro_batches)
        first = first_micro_batch(inputs, self.micro_batches, device=self.device)
        key = (backward, *((tensor.shape, tensor.dtype) for tensor in first))
        if key not in self.made:
            self.made[key] = self._make(first, backward=backward)
        return self.made[key], layout

    def _make(self, first: tuple[Tensor, ...], *, backward: bool) -> Runner:
        flows = flows_between(
            self.stages,
            first,
            num_stages=self.num_stages,
            device=self.device,
            autocast=self.autocast,
        )
        refuse_flows(flows)
        return Runner(
            self.stages,
            flows,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            device=self.device,
            autocast=self.autocast,
            backward=backward,
        )


class Outputs(nn.Module):
    """The pipeline as a model: the whole model's outputs on the last stage's rank, else None."""

    def __init__(self, stages: nn.Module, runners: Callable[..., tuple[Runner, Layout]]) -> None:
        super().__init__()
        self.stages, self.runners = stages, runners

    def forward(self, *inputs: Any) -> Any:
        given = inputs[0] if len(inputs) == 1 else inputs
        runner, layout = self.runners(given, backward=False)
        return runner.evaluate(given, layout)


def first_micro_batch(
    inputs: Any, micro_batches: int, *, device: torch.device
) -> tuple[Tensor, ...]:
    """The first rows of a batch, on `device`."""
    size = Layout.of(rows_of(inputs), micro_batches).size
    return tuple(to_device(tensor[:size], device) for tensor in as_arguments(inputs))
