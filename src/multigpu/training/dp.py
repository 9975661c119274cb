"""One process and several GPUs: PyTorch's nn.DataParallel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from multigpu.data.feeds import Batch
from multigpu.devices import current_machine, gpus
from multigpu.ranks.errors import counted
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import Launch
from multigpu.training.loss import LossFn, StepLoss
from multigpu.training.strategy import InAutocast, Sample, Strategy, call, to_device


class DataParallel(Strategy):
    """Each forward sends a chunk of the batch and a replica of the model to every GPU."""

    mode = "dp"
    scales_loss = True

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        if launch.world_size > 1:
            raise ValueError(
                f"mode='dp' in a process of {launch.started_by}: DataParallel uses one process for "
                "several GPUs. Start it with python, or use mode='ddp'."
            )
        count = config.gpus or torch.cuda.device_count()
        if not count:
            raise ValueError(
                "mode='dp', but there is no GPU. Set the number of virtual GPUs, "
                "for example gpus=2, or use mode='single'."
            )
        self.gpus = gpus(count)
        self.device, self.copies = self.gpus[0], count

    @property
    def devices(self) -> list[torch.device]:
        return self.gpus

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = model.to(self.device)
        each: nn.Module = self.plain
        if self.config.precision != "float32":
            each = InAutocast(self.plain, self.autocast)
        # The loss is taken of the gathered outputs on GPU 0, so it is the whole batch's mean.
        self.model = nn.DataParallel(each, device_ids=self.devices)

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        step = StepLoss()
        for part in parts:
            inputs, targets = self.place(part)
            with self.autocast():
                outputs = call(self.model, inputs)  # scattered, computed by each GPU, gathered
                returned = loss_fn(outputs, targets)
            loss = step.add(returned, part.rows, part.global_rows)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.complete_gradients(step)
        return step

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """The inputs stay on the CPU: each chunk goes straight to its GPU from there."""
        return batch.inputs, to_device(batch.targets, self.device)

    @property
    def evaluation_model(self) -> nn.Module:
        return self.model

    def where(self) -> str:
        kind = "virtual GPU" if current_machine().is_virtual else "GPU"
        return f"{counted(len(self.devices), kind)} of one process"
