"""Which mode a run gets, and what is refused before it starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from multigpu.training.config import TrainConfig, check_choice
from multigpu.training.launch import Launch
from multigpu.training.metrics import make_metrics

# Settings of mode="pipeline"; the other modes refuse them.
OF_PIPELINE = ("micro_batches", "pipeline_schedule", "stages_per_rank", "balance", "stage_memory")


def resolve_mode(config: TrainConfig, launch: Launch) -> str:
    """The mode that `config.mode` means in a process that was started like this.

    Raises ValueError where a setting is given to a mode that does not take it.
    """
    mode = config.mode
    if mode == "auto":
        several = (config.gpus or torch.cuda.device_count()) > 1
        mode = "ddp" if launch.is_distributed else "dp" if several else "single"
    refuse_pipeline_settings(config, mode)
    if config.gpus is not None and mode in ("ddp", "zero2", "zero3", "pipeline"):
        raise ValueError(
            f"gpus={config.gpus} with mode={mode!r}: there every rank has one GPU. "
            f"Leave gpus out and start `torchrun --nproc_per_node {config.gpus} ...`."
        )
    if config.gpus is not None and config.gpus > 1 and mode == "single":
        raise ValueError(f"gpus={config.gpus} with mode='single': use mode='dp', or gpus=1.")
    return mode


def refuse_pipeline_settings(config: TrainConfig, mode: str) -> None:
    """Raise ValueError where another mode is told how to run a pipeline."""
    if mode == "pipeline":
        return
    for name in OF_PIPELINE:
        value = getattr(config, name)
        if value != TrainConfig.__dataclass_fields__[name].default:
            raise ValueError(
                f"{name}={value!r} with mode={mode!r}: a pipeline alone has {name}. "
                f"Use mode='pipeline', or leave {name} out."
            )


def refuse_kinds(model: Any, config: Any) -> None:
    """Raise TypeError where the first two things that a Trainer is given are something else."""
    if not isinstance(model, nn.Module):
        built = ", not the class: build it with ()" if isinstance(model, type) else ""
        raise TypeError(f"model={model!r}: give an nn.Module{built}")
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config={config!r}: give a TrainConfig, for example TrainConfig(epochs=5)")


def refuse_wrapped(model: nn.Module) -> None:
    """Raise ValueError where a model, or a part of it, is wrapped for several GPUs already."""
    wrappers: tuple[type, ...] = (nn.DataParallel, DistributedDataParallel)
    # Importing FSDP takes seconds; where nobody has, no model is wrapped in it.
    if fsdp := sys.modules.get("torch.distributed.fsdp"):
        wrappers += (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
    for name, module in model.named_modules():
        if isinstance(module, wrappers):
            what = "the model" if not name else f"the model's part {name!r}"
            raise ValueError(
                f"{what} is wrapped in {type(module).__name__} already. The Trainer wraps it "
                "itself, as mode says: give the model as it is inside (its .module)."
            )


def refuse_batch(config: TrainConfig, *, ranks: int, rows: int) -> None:
    """Raise ValueError where a batch cannot be divided among ranks, or a rank would get no row."""
    if rows < ranks:
        raise ValueError(
            f"{rows} rows of data for {ranks} ranks: each needs one at least. "
            f"Start at most {rows} ranks."
        )
    unit = ranks * config.accumulation_steps
    size = config.batch_size
    if size % unit:
        below, above = size // unit * unit, (size // unit + 1) * unit
        near = f"{below} or {above}" if below else f"{above}"
        parts = f" × accumulation_steps={config.accumulation_steps}"
        divisor = f"{ranks} rank{'s'[: ranks > 1]}{parts if config.accumulation_steps > 1 else ''}"
        raise ValueError(
            f"batch_size={size} is the rows of all ranks together, and {divisor} "
            f"do not divide it. The nearest that work: {near}."
        )


def refuse_figures(config: TrainConfig, metrics: Sequence[str], *, evaluated: bool) -> None:
    """Raise ValueError for a metric, or a figure to watch, that is not there."""
    if evaluated:
        make_metrics(metrics)
        check_choice("monitor", config.monitor, ("loss", *metrics))
    elif config.monitor != "loss":
        raise ValueError(
            f"monitor={config.monitor!r}: without eval_data there is the training's loss alone to "
            "watch. Give eval_data, or leave monitor out."
        )


def refuse_targets(metrics: Sequence[str], targets: Any) -> None:
    """Raise ValueError where metrics look for the right class, but the targets are no classes."""
    for target in tree_leaves(targets):
        numbers = isinstance(target, torch.Tensor) and target.is_floating_point()
        if metrics and numbers and not torch.equal(target, target.round()):
            raise ValueError(
                f"metrics={metrics!r} compare scores with the right class of each row, but the "
                f"targets are {target.dtype} numbers with fractions. For a regression give "
                "metrics=(): its loss is evaluated all the same."
            )


def refuse_precision(config: TrainConfig, device: torch.device) -> None:
    """Raise ValueError where the GPU cannot compute in the precision that is asked for."""
    if config.precision == "float32" or device.type != "cuda":
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ValueError(
            f"precision='bfloat16': {torch.cuda.get_device_name(device)} has no bfloat16 "
            "(NVIDIA GPUs have it from Ampere on). Use precision='float32'."
        )
