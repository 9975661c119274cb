"""The Trainer's modes in a loop of one's own.

    run = prepare(model, TrainConfig(mode="ddp", clip_norm=1.0), example=(inputs, targets))
    optimizer = torch.optim.AdamW(run.parameters())
    for inputs, targets in batches:  # those of this rank
        loss = run.backward(inputs, targets, loss_fn=F.cross_entropy)
        run.step(optimizer)
    run.save("model.pt", optimizer)

Of a `TrainConfig` only what concerns a step counts here: batches, epochs, the optimizer, evaluation
and when to save are the loop's own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multigpu.data.feeds import Batch, rows_of
from multigpu.data.replacing import replace_file
from multigpu.training.checkpoint import CheckpointError, packed, read
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import main_rank_does
from multigpu.training.loss import LossFn
from multigpu.training.strategy import Strategy
from multigpu.training.trainer import choose_strategy


class Prepared:
    """A model that is placed, wrapped and ready for the steps of one's own loop."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    @property
    def world_size(self) -> int:
        """The ranks among which a batch is divided.

        It is 1 in one process, also with several GPUs, and in a pipeline, where every rank has the
        whole batch.
        """
        return self.strategy.world_size

    @property
    def share(self) -> int:
        """Which of the ``world_size`` shares of a batch this process computes."""
        return self.strategy.share

    @property
    def device(self) -> torch.device:
        """Where outputs and targets meet. `backward` moves the rows there itself."""
        return self.strategy.device

    @property
    def model(self) -> nn.Module:
        """For an evaluation: every rank calls it as often as the others."""
        self.strategy.before_evaluation_or_save()
        return self.strategy.evaluation_model

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an optimizer updates on this rank."""
        return self.strategy.plain.parameters()

    def backward(
        self, inputs: Any, targets: Any, *, loss_fn: LossFn, global_rows: int | None = None
    ) -> Tensor:
        """Add the gradients of the mean loss over the rows of all ranks to `.grad`.

        `inputs` and `targets` (rows, ...) are this rank's. `global_rows` is the number on all ranks
        together, if they do not have equally many. Returns the mean loss over this rank's rows.
        """
        rows = rows_of(targets)
        batch = Batch(inputs, targets, rows, global_rows or rows * self.world_size)
        parts = batch.parts(self.strategy.config.accumulation_steps)
        return self.strategy.forward_backward(parts, loss_fn).mean

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients if the config says so, update the weights, and clear the gradients."""
        self.strategy.step(optimizer)
        optimizer.zero_grad()

    def save(self, path: str | Path, optimizer: torch.optim.Optimizer) -> None:
        """Write the whole model and the optimizer's state; every rank calls it.

        The file is the same in every mode and on every number of ranks. Raises OSError if it cannot
        be written; an older file of this name then stays as it is.
        """
        self.strategy.before_evaluation_or_save()
        model = self.strategy.model_state()
        state = {"model": model, "optimizer": self.strategy.optimizer_state(optimizer)}
        main_rank_does(lambda: replace_file(Path(path), packed(state)), error=OSError)

    def load(self, path: str | Path, optimizer: torch.optim.Optimizer) -> None:
        """Restore what `save` wrote, in any mode; every rank calls it.  Raises CheckpointError."""
        state = read(Path(path))
        if state is None:
            raise CheckpointError(f"{path} does not exist.")
        self.strategy.load_model_state(state["model"])
        self.strategy.load_optimizer_state(optimizer, state["optimizer"])


def prepare(model: nn.Module, config: TrainConfig, *, example: tuple[Any, Any]) -> Prepared:
    """Place and wrap `model` as the Trainer does in this mode; under torchrun every rank calls it.

    The model is put into training mode once, here: then the loop may put a frozen part into
    evaluation mode, and after an evaluation it calls `run.model.train()` again. `example` is a
    batch (inputs, targets) of a rank's usual size; the pipeline measures with it where to cut.

    Raises ValueError for settings that cannot work here.
    """
    strategy = choose_strategy(model, config)
    rows = rows_of(example[1])
    batch = Batch(*example, rows, rows * strategy.world_size)
    strategy.prepare(model, sample=lambda: batch)
    strategy.plain.train()
    return Prepared(strategy)
