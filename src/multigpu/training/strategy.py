"""What every way to train shares: rows on their device, the step, whole weights.

One class per mode, each in a file of its own: single.py, dp.py, ddp.py, fsdp.py (zero2 and zero3),
pipeline.py; own.py trains with a learner's classes. Each has its own forward and backward in
`forward_backward`. To add a mode, write a subclass of `Strategy` and name it in MODES of config.py.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from multigpu.data.feeds import Batch
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import Launch
from multigpu.training.loss import LossFn, StepLoss

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]
Sample = Callable[[], Batch]  # reads a batch of the training data, for a mode that has to see one


class Strategy:
    """How one mode spreads a model over GPUs. Call `prepare` before anything else."""

    mode: ClassVar[str]
    scales_loss: ClassVar[bool] = False  # with `scaler`, which float16 needs
    device: torch.device  # where outputs and targets meet
    model: nn.Module  # what a training step calls
    plain: nn.Module  # the model itself, not wrapped; what the optimizer updates
    world_size: int = 1  # processes that share a global batch, or groups that compute the same rows
    copies: int = 1  # of the model that compute at the same time, each on its own GPU
    micro_batches: int = 1  # parts of a batch that are computed at the same time, each by a stage
    share: int = 0  # which of the `world_size` shares of a batch this process computes
    remarks: Sequence[str] = ()  # further details for the run's one-line description
    details: str = ""  # how the model is divided, as a table, the same on every rank

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        """Choose devices. Raises ValueError if the mode cannot run here."""
        self.config, self.launch = config, launch

    @property
    def devices(self) -> list[torch.device]:
        """The devices that this process computes on."""
        return [self.device]

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Move `model` and wrap it: afterwards `model` and `plain` are there."""
        raise NotImplementedError

    def where(self) -> str:
        """The devices in words: "2 ranks (gloo on the CPU)"."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The mode and the devices, in words."""
        return f"{self.mode} on {self.where()}"

    def shares(self) -> str:
        """How a batch is divided, " = 2 ranks × 64 rows" for example."""
        config, what = self.config, "ranks" if self.world_size > 1 else "GPUs"
        counted = [
            (self.copies, "groups" if config.tensor_parallel > 1 else what),
            (config.accumulation_steps, "parts"),
            (self.micro_batches, "micro-batches"),
        ]
        factors = [f"{number} {name}" for number, name in counted if number > 1]
        if not factors:
            return ""
        divisor = math.prod(number for number, _ in counted)
        most = "at most " if config.batch_size % divisor else ""
        rows = -(-config.batch_size // divisor)
        return " = " + " × ".join([*factors, f"{most}{rows} rows"])

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        """Add the gradients of the mean loss over the rows of all ranks to `.grad`.

        `parts` is this rank's batch, in the parts in which it is computed. Gradients are sent only
        with the last part.
        """
        raise NotImplementedError

    def complete_gradients(self, loss: StepLoss) -> None:
        """Called after the last backward, on every rank: `.grad` is the mean's gradient afterwards.

        Here gradients of sums are divided by the weight of the whole batch.
        """
        if not loss.of_sums:
            return
        weight = torch.as_tensor(loss.weight, dtype=torch.float64).to(self.device)
        whole = self.sum_over_ranks(weight.clone())  # a tensor: the CPU need not wait
        whole = whole.where(whole != 0, 1.0)  # 0: no target counts, and gradients are 0
        for parameter in self.plain.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(whole)

    def rebuild_buckets(self, batch: Batch, loss_fn: LossFn) -> None:
        """Called before a run resumes, with any batch; the state is restored later."""

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """The inputs and targets of a batch where the model and the loss want them."""
        return to_device(batch.inputs, self.device), to_device(batch.targets, self.device)

    def refuse_precision(self) -> None:
        """Raise ValueError if the mode or the GPU does not support the requested precision."""
        precision = self.config.precision
        if precision == "float16" and not self.scales_loss:
            raise ValueError(
                f"precision='float16' with mode={self.mode!r}: the loss is scaled only in single, "
                "dp and ddp. Use precision='bfloat16', which needs no scaling."
            )
        if precision != "bfloat16" or self.device.type != "cuda":
            return
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ValueError(
                f"precision='bfloat16': {torch.cuda.get_device_name(self.device)} does not support "
                "bfloat16 (NVIDIA GPUs do since Ampere). Use precision='float32'."
            )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision that forward and loss run in."""
        if self.config.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.config.precision))

    @functools.cached_property
    def scaler(self) -> torch.amp.GradScaler:
        """Multiplies the loss in float16, whose smallest gradients would be 0, and skips the steps
        whose gradients are infinite. Changes nothing in other precisions."""
        return torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "float16")

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients, if the config says so, and update the weights."""
        if self.config.clip_norm is not None:
            self.scaler.unscale_(optimizer)
            self.clip(self.config.clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        self.after_step()

    def after_step(self) -> None:
        """Called after the optimizer's step."""

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to a norm of `max_norm` over all parameters."""
        nn.utils.clip_grad_norm_(self.plain.parameters(), max_norm)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum of one number of each rank, on every rank."""
        return value

    def before_evaluation_or_save(self) -> None:
        """Called before the model is evaluated or saved, on every rank."""

    @property
    def evaluation_model(self) -> nn.Module:
        """The model for an evaluation; ranks may call it a different number of times.

        So it must not send anything, as the wrapper of DDP does with buffers.
        """
        return self.plain

    def model_state(self, *, whole: bool = True) -> dict[str, Any]:
        """The weights of the model, for a checkpoint; every rank calls it.

        Unless `whole`, what ranks divide stays divided: DTensors, or only this rank's stages.
        """
        return self.plain.state_dict()

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Restore the weights of `model_state`; every rank calls it."""
        self.plain.load_state_dict(state)

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, *, whole: bool = True
    ) -> dict[str, Any]:
        """The optimizer's state, for a checkpoint; every rank calls it. `whole` as in model_state.

        In every mode it is numbered as the optimizer of the plain model numbers its parameters, so
        a run can resume in another mode.
        """
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Restore the state of `optimizer_state`; every rank calls it."""
        optimizer.load_state_dict(state)


class InAutocast(nn.Module):
    """A model that enters autocast itself, for a caller that does not: a thread of DataParallel
    inherits that autocast is on, but not its dtype, and would compute in float16.
    """

    def __init__(self, inner: nn.Module, autocast: Autocast) -> None:
        super().__init__()
        self.inner, self.autocast = inner, autocast

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self.autocast():
            return self.inner(*inputs, **named)


class CallsFunction(nn.Module):
    """A model whose forward is a function of a strategy."""

    def __init__(self, plain: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.plain, self.function = plain, function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """`model` on its inputs: a tuple or list as several arguments, a dict by name."""
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(inputs)


def to_device(values: Any, device: torch.device) -> Any:
    """Every tensor in `values` on `device`; tuples, lists and dicts are kept.

    From pinned memory the copy is asynchronous: the program does not wait for it.
    """

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device == device:
            return value
        return value.to(device, non_blocking=value.is_pinned())

    if isinstance(values, Tensor):  # most often; tree_map would take 5 µs to find that out
        return moved(values)
    return tree_map(moved, values)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work, because kernels are started asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards each module of `model` is in training or evaluation mode as it was before.

    `train(mode)` of the whole model is not enough, because a frozen part may have been in
    evaluation mode.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
