"""One process for each GPU: PyTorch's DistributedDataParallel."""

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from multigpu.data.feeds import Batch
from multigpu.ranks.errors import counted
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import Launch, join_group, take_from_main_rank
from multigpu.training.loss import LossFn, StepLoss
from multigpu.training.strategy import Sample, Strategy, call


class Distributed(Strategy):
    """Each rank computes its share of the batch; gradients are averaged during backward."""

    mode = "ddp"
    scales_loss = True
    model: Any  # DistributedDataParallel, or what a subclass wraps with
    group: dist.ProcessGroup | None = None  # of ranks with different rows; None: all ranks

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        launch.require_ranks(self.mode, gpus=config.gpus)
        self.backend = join_group(launch, config.backend)
        self.device = launch.device
        self.world_size = self.copies = launch.world_size
        self.share = launch.rank

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = model.to(self.device)
        self.model = self.wrap(self.plain)

    def wrap(self, model: nn.Module) -> Any:
        """Start all ranks from rank 0's weights and average gradients from now on."""
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            find_unused_parameters=bool(self.config.find_unused_parameters),
            gradient_as_bucket_view=True,  # gradients live in the buckets: one copy less
        )

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        step = StepLoss(averaged_over=self.world_size)
        for number, part in enumerate(parts, start=1):
            # Gradients travel with the last part; until then each rank adds up its own.
            with contextlib.nullcontext() if number == len(parts) else self.model.no_sync():
                inputs, targets = self.place(part)
                with self.autocast():
                    returned = loss_fn(call(self.model, inputs), targets)
                loss = step.add(returned, part.rows, part.global_rows)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.complete_gradients(step)
        return step

    def rebuild_buckets(self, batch: Batch, loss_fn: LossFn) -> None:
        """After its first backward pass DDP divides the gradients into buckets again, in the order
        in which they became ready. A resumed run must begin with those buckets, because the order
        of summing three or more numbers depends on their place in a bucket.
        """
        self.forward_backward(batch.parts(self.config.accumulation_steps)[:1], loss_fn)
        self.plain.zero_grad()

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        dist.all_reduce(value, group=self.group)
        return value

    def before_evaluation_or_save(self) -> None:
        """Give all ranks rank 0's buffers (BatchNorm's statistics), as every forward does."""
        take_from_main_rank(self.plain.buffers(), device=self.device)

    def where(self) -> str:
        return f"{counted(self.launch.world_size, 'rank')} ({self.backend})"
