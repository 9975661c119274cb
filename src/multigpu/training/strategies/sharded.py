"""One process for each GPU, and each keeps a share of the model: ZeRO, as PyTorch's FSDP2 does it.

    zero3: weights, gradients and the optimizer's state are divided among the ranks. A group of
           layers is gathered when its forward or its backward begins, and given up afterwards.
    zero2: the same, but gathered weights stay from forward to backward, so they are sent once.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
FSDP2 is not ZeRO-2 to the letter: between two steps it divides the weights, too.

The whole model is built on every rank first and divided then, so it must fit there once, without
gradients and optimizer. What is gathered together stands in shard_groups.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from multigpu.data.feeds import Batch
from multigpu.training.agreement import take_from_main_rank
from multigpu.training.config import TrainConfig
from multigpu.training.launch import Launch
from multigpu.training.strategies.distributed import Distributed
from multigpu.training.strategies.shard_groups import (
    batch_norms,
    groups_of,
    refuse_other_shapes,
    refuse_other_types,
)
from multigpu.training.strategies.shards import divided_as, divided_optimizer, whole
from multigpu.training.strategies.strategy import LossFn, Sample

UNUSED = "set_reduce_scatter_unused_params"  # a gradient of 0 for what took no part on a rank


class Sharded(Distributed):
    """Each rank computes its share of the batch, and keeps its share of the model."""

    reshard: ClassVar[bool]  # give gathered weights up after forward?

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        if self.device.type == "cuda" and self.backend.name != "nccl":
            raise ValueError(
                f"mode={self.mode!r} on {self.backend}: FSDP's messages between GPUs need nccl, "
                "and that a GPU for every rank. Start fewer ranks, or compute on the CPU with "
                "CUDA_VISIBLE_DEVICES= before the command."
            )
        if config.find_unused_parameters and not hasattr(FSDPModule, UNUSED):
            raise ValueError(
                f"find_unused_parameters=True with mode={self.mode!r} needs PyTorch 2.13, this is "
                f"{torch.__version__}. Freeze what takes no part, or use mode='ddp'."
            )

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Start all ranks from rank 0's weights, and divide them."""
        refuse_other_shapes(model)
        refuse_other_types(model)
        self.plain = self.model = model.to(self.device)
        take_from_main_rank([*model.parameters(), *model.buffers()], device=self.device)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        settings = {"mesh": mesh, "reshard_after_forward": self.reshard}
        lower = self.config.precision != "float32"
        policy = lower_precision() if lower else MixedPrecisionPolicy()
        blocks = groups_of(model)
        norms = batch_norms(model) if lower else []
        for norm in norms:
            fully_shard(norm, mp_policy=MixedPrecisionPolicy(), **settings)  # type: ignore[call-overload]
        for block in blocks:
            if block not in norms:
                fully_shard(block, mp_policy=policy, **settings)  # type: ignore[call-overload]
        # The loss is computed of float32, as under autocast.
        last = replace(policy, output_dtype=torch.float32) if lower else policy
        self.root: FSDPModule = fully_shard(model, mp_policy=last, **settings)  # type: ignore[call-overload]
        if self.config.find_unused_parameters:
            getattr(self.root, UNUSED)(True)

    def gradients(self, parts: Sequence[Batch], loss_fn: LossFn) -> Tensor:
        """As in every mode. A forward gathers weights, so each rank runs as many as the others."""
        take_from_main_rank(self.plain.buffers(), device=self.device)  # as DDP before forward
        wanted = self.config.accumulation_steps
        fillers = [filler(parts[0])] * (wanted - len(parts))
        return super().gradients([*parts, *fillers], loss_fn)

    def settle(self, batch: Batch, loss_fn: LossFn) -> None:
        """Nothing: what is sent together does not change after the first step."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """None: FSDP hands out weights and inputs in 16 bits."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside it a rank adds up gradients of all weights, not of its share alone."""
        self.root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.root.set_requires_gradient_sync(True)

    def before_evaluation(self) -> None:
        super().before_evaluation()
        self.give_up()

    def give_up(self) -> None:
        """Give up what is gathered: after an evaluation zero2 has all weights still."""
        for module in self.plain.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @property
    def evaluation_model(self) -> nn.Module:
        return self.model

    def model_state(self) -> dict[str, Any]:
        self.give_up()
        return whole(self.plain.state_dict())

    def load_model_state(self, state: dict[str, Any]) -> None:
        self.give_up()
        there = self.plain.state_dict()
        self.plain.load_state_dict(
            {name: divided_as(there.get(name), value) for name, value in state.items()}
        )

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return whole(optimizer.state_dict())

    def model_shards(self) -> dict[str, Any]:
        self.give_up()
        return dict(self.plain.state_dict())

    def optimizer_shards(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def place_for(self, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        kind, _, name = key.partition("/")
        if kind == "model":
            there = self.plain.state_dict().get(name)
        else:
            trained = [each for each in self.plain.parameters() if each.requires_grad]
            number = int(name.partition("/")[0])
            there = trained[number] if number < len(trained) else None
        if isinstance(there, DTensor) and there.shape == size:
            return torch.zeros_like(there, dtype=dtype, requires_grad=False)
        return super().place_for(key, size, dtype)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(divided_optimizer(optimizer, state))


class Zero2(Sharded):
    """Gathered weights stay until backward has used them."""

    mode = "zero2"
    reshard = False


class Zero3(Sharded):
    """Gathered weights are given up after forward, and gathered again for backward."""

    mode = "zero3"
    reshard = True


def lower_precision() -> MixedPrecisionPolicy:
    """Weights, activations and messages of weights in bfloat16; gradients are added in float32."""
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def filler(part: Batch) -> Batch:
    """A part of one row that counts nothing. BatchNorm's statistics alone see it once more."""
    from torch.utils._pytree import tree_map

    inputs, targets = tree_map(
        lambda value: value[:1] if isinstance(value, Tensor) else value,
        (part.inputs, part.targets),
    )
    return replace(part, inputs=inputs, targets=targets, rows=0)
