"""One model over several GPUs, a stage on each: PyTorch's torch.distributed.pipelining.

    torchrun --nproc_per_node 2 -m multigpu train --data text --mode pipeline

The model is cut into stages (training/cutting), rank r gets stage r, and a batch goes through them
in micro-batches, so that all ranks have something to do. Every rank reads the whole batch: rank 0
needs its inputs, the last rank its targets. The parts of this mode are in pipelining/.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from multigpu.data.feeds import Batch
from multigpu.training.agreement import take_from_main_rank
from multigpu.training.config import TrainConfig
from multigpu.training.devices import device_of
from multigpu.training.group import join_group
from multigpu.training.launch import Launch
from multigpu.training.placing import to_device
from multigpu.training.strategies.pipelining.agreeing import (
    Plan,
    plan_alike,
    stages_at,
    what_is_asked,
    write_down,
)
from multigpu.training.strategies.pipelining.ownership import Ownership
from multigpu.training.strategies.pipelining.refusing import (
    refuse_inputs,
    refuse_settings,
)
from multigpu.training.strategies.pipelining.runners import (
    Outputs,
    Runners,
    first_micro_batch,
)
from multigpu.training.strategies.pipelining.tied import Tied, share_within
from multigpu.training.strategies.strategy import LossFn, Sample, Strategy


class Pipeline(Strategy):
    """Each rank has a stage of the model, or several; activations and gradients travel."""

    mode = "pipeline"

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        launch.require_ranks(self.mode)
        refuse_settings(config, ranks=launch.world_size)
        self.backend = join_group(launch, config.backend)
        self.device = device_of(launch)
        self.ranks = launch.world_size
        # One rank has nothing to take turns with: there the model is one stage.
        alone = self.ranks == 1
        self.num_stages = 1 if alone else self.ranks * config.stages_per_rank
        self.schedule = "1f1b" if alone else config.pipeline_schedule

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Cut `model` as rank 0 measures, and keep this rank's stages alone."""
        inputs = sample().inputs
        refuse_inputs(inputs)
        take_from_main_rank([*model.parameters(), *model.buffers()], device=self.device)
        first = first_micro_batch(inputs, self.micro_batches, device=self.device)
        stages = self._cut(model, first)
        mine = range(self.launch.rank, self.num_stages, self.ranks)
        self.parts = {number: stages[number].to(self.device) for number in mine}
        self.owned = Ownership(model, stages, rank=self.launch.rank, ranks=self.ranks)
        share_within(list(self.parts.values()), self.owned.names)
        self.plain = nn.ModuleList(self.parts.values())
        if not any(parameter.requires_grad for parameter in self.plain.parameters()):
            # An optimizer wants a parameter; a stage may have none. This one is never moved.
            self.plain.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
        self.tied = Tied(self.owned.parameters_of(self.plain), self.owned.holders)
        self.runners = Runners(
            self.parts,
            num_stages=self.num_stages,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            device=self.device,
            autocast=self.autocast,
        )
        self.model = Outputs(self.plain, self.runners.of)
        self.kept = False  # whether the plan is written down

    def _cut(self, model: nn.Module, sample: tuple[Tensor, ...]) -> list[nn.Module]:
        """All stages; the caller keeps those of this rank, and lets go of the others."""
        self.plan: Plan | None = None
        if self.num_stages == 1:
            return [model]
        asked = what_is_asked(self.config, num_stages=self.num_stages, rows=len(sample[0]))
        self.plan = plan_alike(model, sample, self.config, asked=asked)
        return stages_at(model, sample, self.plan)

    def gradients(self, parts: Any, loss_fn: LossFn) -> Tensor:
        """As in every mode; the losses are those of the last rank, the others return 0."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in parts:
            runner, layout = self.runners.of(part.inputs, backward=True)
            inputs, targets = self.place(part)
            total += runner.train(inputs, targets, layout, loss_fn, global_rows=part.global_rows)
        self.finish_backward()
        return total

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """The inputs go to the first stage's rank alone, the targets to the last one's."""
        inputs = to_device(batch.inputs, self.device) if 0 in self.parts else batch.inputs
        last = self.num_stages - 1 in self.parts
        return inputs, to_device(batch.targets, self.device) if last else batch.targets

    def finish_backward(self) -> None:
        self.tied.add_up_gradients()

    def clip(self, max_norm: float) -> None:
        """The norm is that of all stages' gradients, with a tied weight counted once."""
        mine = self.owned.owned_of(self.plain)
        gradients = [each.grad for each in mine.values() if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients).to(self.device, torch.float64)
        square = norm**2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(self.plain.parameters(), max_norm, square.sqrt())

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        dist.all_reduce(value)
        return value

    def before_evaluation(self) -> None:
        """Also called before a checkpoint is written: the places of the cuts belong to it."""
        if self.plan is not None and not self.kept:
            write_down(self.plan, self.config)
            self.kept = True

    @property
    def evaluation_model(self) -> nn.Module:
        """Gives the outputs on the last stage's rank and None on the others."""
        return self.model

    @property
    def inputs_device(self) -> torch.device:
        return self.device if 0 in self.parts else torch.device("cpu")

    @property
    def num_parameters(self) -> int:
        return self.owned.num_parameters

    @property
    def micro_batches(self) -> int:
        return self.config.micro_batches

    def where(self) -> str:
        ranks = f"{self.ranks} rank{'s'[: self.ranks > 1]} ({self.backend})"
        return f"{ranks}, {self.num_stages} stage{'s'[: self.num_stages > 1]}, {self.schedule}"

    def remarks(self) -> list[str]:
        return [] if self.plan is None else [f"predicted bubble {self.plan.bubble:.0%}"]

    def details(self) -> str:
        return "" if self.plan is None else self.plan.table

    def model_state(self) -> dict[str, Any]:
        """The whole model's weights on rank 0; tensors without values on the others."""
        return self.owned.model_state(self.parts, device=self.device)

    def load_model_state(self, state: dict[str, Any]) -> None:
        self.owned.load_model_state(self.parts, state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole optimizer's state on rank 0; tensors without values on the others."""
        return self.owned.optimizer_state(optimizer, self.plain, device=self.device)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        self.owned.load_optimizer_state(optimizer, self.plain, state)
