"""What sharding saves and costs: memory per GPU by ZeRO stage, and the bytes that travel.

    memory_per_gpu(7_500_000_000, stage=2, gpus=64).total / 1e9        # 16.6 GB
    traffic_per_step(7_500_000_000, stage=3)                           # 3 times the elements

Stage 0 is DDP: every GPU holds all. Stage 1 divides the optimizer's state among the GPUs, stage 2
also the gradients, stage 3 also the parameters. Activations and buffers come on top.
Source: Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054 (figure 1, sections 5 and 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from multigpu.scaling.speed_up import at_least_one

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

STAGES = (0, 1, 2, 3)
STATE = {"sgd": 0, "momentum": 1, "adam": 2}  # float32 numbers that it keeps for a parameter
PRECISIONS = ("float32", "mixed")


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU, the one that holds most."""

    parameters: int
    gradients: int
    optimizer: int  # its state; in mixed precision with the float32 copy of the parameters
    gathered: int = 0  # parameters of others that are there for the moment

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """The bytes by name, without what is nothing; for a picture."""
        sizes = {field.name: int(getattr(self, field.name)) for field in fields(self)}
        return {name: size for name, size in sizes.items() if size}


def memory_per_gpu(
    parameters: int,
    *,
    stage: int,
    gpus: int,
    optimizer: str = "adam",
    precision: str = "mixed",
    gathered: int = 0,
) -> Memory:
    """Bytes that one of `gpus` GPUs holds of a model of `parameters` trained elements.

    * `stage`: 0 to 3, what is divided.
    * `optimizer`: "sgd", "momentum" or "adam" (AdamW is the same): 0, 1 or 2 numbers per parameter.
    * `precision`: "float32", or "mixed" as in the paper: parameters and gradients of 2 bytes, and
      a float32 copy of the parameters in the optimizer. (PyTorch's autocast keeps parameters and
      gradients in float32, so that one is "float32" here.)
    * `gathered`: elements of other GPUs' parameters that are there for the moment: with stage 3 one
      or two layers, with `fully_shard(…, reshard_after_forward=False)` all the others.

    Raises ValueError for a stage, optimizer or precision that is none of these.
    """
    require_stage(stage)
    at_least_one(gpus)
    if optimizer not in STATE:
        raise ValueError(f"optimizer={optimizer!r}: choose one of {', '.join(STATE)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: choose one of {', '.join(PRECISIONS)}")
    part = -(-parameters // gpus)  # the first GPU's; the last may have less
    number = 2 if precision == "mixed" else 4
    kept = 4 * STATE[optimizer] + (4 if precision == "mixed" else 0)
    return Memory(
        parameters=number * (part if stage >= 3 else parameters),
        gradients=number * (part if stage >= 2 else parameters),
        optimizer=kept * (part if stage >= 1 else parameters),
        gathered=number * gathered,
    )


def traffic_per_step(
    parameters: int, *, stage: int, gpus: int | None = None, bytes_per_element: int = 1
) -> float:
    """Elements that one GPU sends in a step: 2 Ψ up to stage 2, 3 Ψ with stage 3.

    An all-reduce is a reduce-scatter (Ψ) and an all-gather (Ψ). Stages 1 and 2 reduce-scatter the
    gradients and all-gather the new parameters. Stage 3 all-gathers the parameters twice, for
    forward and for backward, and reduce-scatters the gradients. With `gpus` it is what a ring sends
    for that, (n - 1)/n as much. `bytes_per_element=4` gives the bytes of float32.
    """
    require_stage(stage)
    passes = 3 if stage == 3 else 2
    ring = 1.0
    if gpus is not None:
        at_least_one(gpus)
        ring = (gpus - 1) / gpus
    return passes * ring * parameters * bytes_per_element


def require_stage(stage: int) -> None:
    """Raise ValueError unless it is a stage."""
    if stage not in STAGES:
        raise ValueError(
            f"stage={stage!r}: 0 divides nothing (DDP), 1 the optimizer's state, 2 also the "
            "gradients, 3 also the parameters"
        )


def held_by(model: nn.Module, optimizer: Optimizer) -> Memory:
    """Bytes that this process holds of a model in training: what the formulas speak of, measured.

    Storages are counted, each once: a view holds all of the tensor that it is a part of. Of a
    sharded tensor (DTensor) this rank's part counts. Gradients are those of the model and of what
    the optimizer steps; ask while they are there, before `zero_grad`.
    """
    seen: set[int] = set()
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    weights = [*model.parameters(), *stepped]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return Memory(
        parameters=sum(_new_bytes(weights, seen)),
        gradients=sum(_new_bytes(gradients, seen)),
        optimizer=sum(_new_bytes(states, seen)),
    )


def _new_bytes(values: Iterable[Any], seen: set[int]) -> Iterator[int]:
    """The bytes of each storage that was not seen before."""
    from torch import Tensor

    for value in values:
        if not isinstance(value, Tensor):
            continue
        storage = _own(value).untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.nbytes()


def _own(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
