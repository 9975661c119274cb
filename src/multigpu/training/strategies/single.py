"""One process, one GPU, or the CPU where there is none."""

import torch
from torch import nn

from multigpu.training.config import TrainConfig
from multigpu.training.launch import Launch
from multigpu.training.strategies.strategy import Sample, Strategy


class Single(Strategy):
    """The model on one device: what all the other modes are compared with."""

    mode = "single"

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

    def where(self) -> str:
        if self.device.type == "cpu":
            return "the CPU"
        return f"1 GPU ({torch.cuda.get_device_name(self.device)})"
