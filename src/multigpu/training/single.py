"""One process with one GPU, or the CPU if there is none: the baseline of all other modes."""

from collections.abc import Sequence

import torch
from torch import nn

from multigpu.data.feeds import Batch
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import Launch
from multigpu.training.loss import LossFn, StepLoss
from multigpu.training.strategy import Sample, Strategy, call


class Single(Strategy):
    """The model on one device."""

    mode = "single"
    scales_loss = True

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        if launch.world_size > 1:
            raise ValueError(
                f"mode='single' in one of {launch.world_size} ranks: each would train the whole "
                "model by itself. Use mode='ddp', or start one process with python."
            )
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = self.model = model.to(self.device)

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        step = StepLoss()
        for part in parts:
            inputs, targets = self.place(part)
            with self.autocast():
                returned = loss_fn(call(self.model, inputs), targets)
            loss = step.add(returned, part.rows, part.global_rows)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.complete_gradients(step)
        return step

    def where(self) -> str:
        if self.device.type == "cpu":
            return "the CPU"
        return f"1 GPU ({torch.cuda.get_device_name(self.device)})"
