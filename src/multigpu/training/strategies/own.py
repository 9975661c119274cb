"""Training with wrappers written by hand: the exercises' classes in the place of PyTorch's.

    own = load_own(Path("exercises"), "ddp")      # the module distributed_data_parallel
    Trainer(model, TrainConfig(mode="ddp"), data.train, own=own).fit()

dp strings together `split`, `replicate`, `parallel_apply`, `gather`, `sum_gradients` and
`broadcast` of exercises/data_parallel.py; ddp uses `BucketedDDP` of
exercises/distributed_data_parallel.py. Where to run, and who gets which rows, stays as in the modes
of PyTorch, whose classes are the bases here. own_file.py finds the exercises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from multigpu.training.config import TrainConfig
from multigpu.training.launch import Launch
from multigpu.training.strategies.data_parallel import DataParallel, InEveryThread
from multigpu.training.strategies.distributed import Distributed
from multigpu.training.strategies.own_file import (
    exercise,
    name_of,
    refuse_other_modes,
    to_be_written,
)
from multigpu.training.strategies.strategy import Sample


def make_own(
    mode: str, config: TrainConfig, launch: Launch, own: ModuleType
) -> OwnDataParallel | OwnDistributed:
    """The strategy of `mode` with the wrapper of `own`.  Raises ValueError for other modes."""
    refuse_other_modes(mode, name_of(own))
    return (OwnDataParallel if mode == "dp" else OwnDistributed)(config, launch, own)


class OwnDataParallel(DataParallel):
    """One process and several GPUs, every movement by the functions of `own`."""

    def __init__(self, config: TrainConfig, launch: Launch, own: ModuleType) -> None:
        super().__init__(config, launch)
        self.own = own

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = model.to(self.device)
        replicas = self._do("replicate", self.plain, self.devices)
        if not (
            isinstance(replicas, list | tuple)
            and len(replicas) == len(self.devices)
            and replicas[0] is self.plain
        ):
            raise ValueError(
                f"replicate must return one module for each of the {len(self.devices)} GPUs, the "
                "first one the model itself: `multigpu check data_parallel.replicate` says more."
            )
        self.replicas: Sequence[nn.Module] = replicas
        self.called = self.replicas
        if self.config.precision != "float32":  # a new thread begins without autocast
            self.called = [InEveryThread(replica, self.autocast) for replica in replicas]
        self.model = Calls(self.plain, self._forward)

    def _forward(self, inputs: Any) -> Any:
        """The outputs for a whole batch, on GPU 0."""
        if not isinstance(inputs, Tensor):
            raise ValueError(f"split takes one tensor, and the model wants {type(inputs).__name__}")
        for replica in self.replicas[1:]:  # model.eval() has reached the first one only
            for mine, first in zip(replica.modules(), self.plain.modules(), strict=True):
                mine.training = first.training
        chunks = self._do("split", inputs, self.devices)
        outputs = self._do("parallel_apply", self.called, chunks)
        return self._do("gather", outputs, self.device)

    def finish_backward(self) -> None:
        self._do("sum_gradients", self.replicas)
        for replica in self.replicas[1:]:  # the optimizer clears those of the first one
            replica.zero_grad()

    def after_step(self) -> None:
        self._do("broadcast", self.replicas)

    def load_model_state(self, state: dict[str, Any]) -> None:
        super().load_model_state(state)
        self._do("broadcast", self.replicas)

    def where(self) -> str:
        return f"{super().where()}, by {name_of(self.own)}"

    def _do(self, name: str, *values: Any) -> Any:
        """Call the function `name` of the exercises."""
        with to_be_written(self.own, name):
            return exercise(self.own, name)(*values)


class OwnDistributed(Distributed):
    """One process for each GPU; gradients are averaged by `BucketedDDP` of `own`."""

    def __init__(self, config: TrainConfig, launch: Launch, own: ModuleType) -> None:
        super().__init__(config, launch)
        self.own = own

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = model.to(self.device)
        with to_be_written(self.own, "BucketedDDP"):
            self.wrapper: Any = exercise(self.own, "BucketedDDP")(self.plain)
        self.model = Calls(self.plain, self._forward)

    def _forward(self, *inputs: Any, **named: Any) -> Any:
        with to_be_written(self.own, "BucketedDDP"):
            return self.wrapper(*inputs, **named)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        with to_be_written(self.own, "BucketedDDP"):
            context: contextlib.AbstractContextManager[Any] = self.wrapper.no_sync()
            return context

    def finish_backward(self) -> None:
        with to_be_written(self.own, "BucketedDDP"):
            self.wrapper.sync_gradients()

    def where(self) -> str:
        return f"{super().where()}, by {name_of(self.own)}"


class Calls(nn.Module):
    """A model whose forward is a function of a strategy."""

    def __init__(self, plain: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.plain, self.function = plain, function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named)
