"""What every mode of training can do: place a model, add up gradients, hand out weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from multigpu.data.feeds import Batch
from multigpu.training.config import TrainConfig
from multigpu.training.launch import Launch
from multigpu.training.placing import call, to_device

LossFn = Callable[[Any, Any], Tensor]  # (outputs, targets) -> the mean over the rows
Sample = Callable[[], Batch]  # reads a batch of the training data, for a mode that has to see one


class Strategy:
    """How one mode spreads a model over GPUs. Call `prepare` before anything else."""

    mode: ClassVar[str]
    device: torch.device  # where outputs and targets meet
    model: nn.Module  # what a training step calls
    plain: nn.Module  # the model itself, not wrapped

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        """Choose devices. Raises ValueError where the mode cannot run as things are."""
        self.config, self.launch = config, launch

    @property
    def world_size(self) -> int:
        """Processes that share a global batch."""
        return 1

    @property
    def devices(self) -> list[torch.device]:
        """The devices that this process computes on."""
        return [self.device]

    @property
    def copies(self) -> int:
        """Copies of the model that compute at the same time, each on a GPU of its own."""
        return self.world_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(parameter.numel() for parameter in self.plain.parameters())

    @property
    def micro_batches(self) -> int:
        """Parts of a batch that are computed at the same time, each by another stage."""
        return 1

    def remarks(self) -> list[str]:
        """What else there is to say about the run in its one line."""
        return []

    def details(self) -> str:
        """How the model is divided, as a table; "" where it is whole. The same on every rank."""
        return ""

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Move `model` and wrap it: afterwards `model` and `plain` are there."""
        raise NotImplementedError

    @property
    def trained(self) -> nn.Module:
        """What this process's optimizer steps: the whole model, unless ranks divide it."""
        return self.plain

    def where(self) -> str:
        """On what it runs, for people: "2 ranks (gloo on the CPU)"."""
        raise NotImplementedError

    def gradients(self, parts: Sequence[Batch], loss_fn: LossFn) -> Tensor:
        """Add the gradients of the mean loss over the rows of all ranks to `.grad`.

        `parts` is this rank's batch, in the parts in which it is computed. Returns the sum of
        the losses of this rank's rows: a scalar, detached. Gradients travel with the last part
        alone.
        """
        losses = []
        for number, part in enumerate(parts, start=1):
            with contextlib.nullcontext() if number == len(parts) else self.no_sync():
                inputs, targets = self.place(part)
                with self.autocast():
                    loss = require_mean(loss_fn(call(self.model, inputs), targets))
                weight = part.weight(self.world_size)
                (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
            # A filler row counts nothing, be its loss what it may: 0 · NaN would be NaN.
            losses.append(loss.detach() * part.rows if part.rows else loss.new_zeros(()))
        self.finish_backward()
        return sum(losses[1:], start=losses[0])

    def settle(self, batch: Batch, loss_fn: LossFn) -> None:
        """Called before a run goes on, with any batch; weights and random numbers come after it."""

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """The inputs and targets of a batch where the model and the loss want them."""
        return to_device(batch.inputs, self.device), to_device(batch.targets, self.device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision that forward and loss run in."""
        if self.config.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """Inside it gradients only add up on this rank."""
        return contextlib.nullcontext()

    def finish_backward(self) -> None:
        """Called after the last backward pass of a step."""

    def after_step(self) -> None:
        """Called after the optimizer's step."""

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to a norm of `max_norm` over all parameters."""
        nn.utils.clip_grad_norm_(self.plain.parameters(), max_norm)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum of one number of each rank, on every rank."""
        return value

    def before_evaluation(self) -> None:
        """Called before the model is evaluated or saved, on every rank."""

    @property
    def evaluation_model(self) -> nn.Module:
        """What an evaluation calls; ranks may call it a different number of times."""
        return self.plain

    @property
    def inputs_device(self) -> torch.device:
        """Where `model` wants its inputs."""
        return self.device

    def model_state(self) -> dict[str, Any]:
        """The weights of the whole model, for a checkpoint; every rank calls it."""
        return self.plain.state_dict()

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Put the weights of `model_state` back; every rank calls it."""
        self.plain.load_state_dict(state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state for the whole model, for a checkpoint; every rank calls it.

        In every mode it is numbered as the optimizer of the plain model numbers its parameters, so
        a run can go on in another mode.
        """
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Put the state of `optimizer_state` back; every rank calls it."""
        optimizer.load_state_dict(state)

    def model_shards(self) -> dict[str, Any]:
        """As `model_state`, but what ranks divide stays divided: DTensors, of the whole's shape."""
        return self.model_state()

    def optimizer_shards(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """As `optimizer_state`, but what ranks divide stays divided."""
        return self.optimizer_state(optimizer)

    def place_for(self, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor to read one of a checkpoint into: whole, or this rank's share of it.

        `key` is ``model/NAME`` or ``optimizer/NUMBER/NAME``. `load_model_state` and
        `load_optimizer_state` take both.
        """
        return torch.empty(size, dtype=dtype)


def require_mean(loss: Any) -> Tensor:
    """The loss, if it is one number that backward can begin at.  Raises TypeError."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    what = (
        f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    )
    raise TypeError(
        f"loss_fn returned {what}: it must return the mean over the rows, one tensor ()"
    )
