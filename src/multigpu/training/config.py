"""The settings of a training run, one frozen dataclass for every mode, and the modes.

`auto` becomes ddp in a process group or under torchrun, dp where one process sees several GPUs, and
single elsewhere (`resolve_mode`).
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigpu.ranks.errors import counted

if TYPE_CHECKING:
    from multigpu.training.distributed import Launch

# Each mode's module and class, in words: FSDP and pipelining are imported only where they are used.
MODES = {
    "single": "single:Single",
    "dp": "dp:DataParallel",
    "ddp": "ddp:Distributed",
    "zero2": "fsdp:Zero2",
    "zero3": "fsdp:Zero3",
    "pipeline": "pipeline:Pipeline",
}
# Settings of mode="pipeline"; the other modes refuse them.
OF_PIPELINE = ("micro_batches", "pipeline_schedule", "stages_per_rank", "balance", "stage_memory")
CHOICES = {
    "optimizer": ("adamw", "adam", "sgd"),
    "lr_scaling": ("none", "linear", "sqrt"),
    "schedule": ("constant", "linear", "cosine"),
    "precision": ("float32", "bfloat16", "float16"),
    "backend": ("gloo", "nccl", None),
    "checkpoints": ("full", "sharded"),
    "pipeline_schedule": ("1f1b", "gpipe", "interleaved"),
    "balance": ("time", "memory", "layers"),
}
# Settings that belong to a run: a checkpoint resumes only with the same ones.
OF_THE_RUN = (
    "batch_size",
    "drop_last",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "lr_scaling",
    "base_batch_size",
    "schedule",
    "warmup_steps",
    "clip_norm",
    "precision",
    "seed",
    "monitor",
)
OF_EACH_RANK = ("folder", "workers", "progress")  # settings that may differ from rank to rank
MAY_BE_0 = ("epochs", "max_steps", "warmup_steps", "patience", "workers", "seed", "weight_decay")


class NeedsTorchrun(ValueError):
    """The requested mode runs only under torchrun, with this many processes.

    ``str(error)`` is for Python, where the program is the reader's own; ``with_program`` is for a
    command that knows what torchrun has to start.
    """

    def __init__(self, before: str, *, processes: int | str, in_python: str = "") -> None:
        self.before = f"{before} `torchrun --nproc_per_node {processes}"
        super().__init__(f"{self.before} ...`{in_python}.")

    def with_program(self, program: str) -> str:
        """The message with what torchrun starts: ``-m multigpu train ...``."""
        return f"{self.before} {program}`."


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of a training run. Raises ValueError for an invalid value.

    The line below a field says what it does; `multigpu train --help` shows the same lines.
    """

    mode: str = "auto"
    """single, dp, ddp, zero2, zero3 or pipeline; auto: ddp under torchrun, dp where one process
    sees several GPUs, else single"""
    gpus: int | None = None
    """how many GPUs dp uses; default: all"""
    batch_size: int = 128
    """rows of one optimizer step, on all GPUs together, in every mode"""
    accumulation_steps: int = 1
    """parts in which each GPU computes its share of a batch, one after the other, to need less
    memory"""
    epochs: int = 10
    """number of passes over the training data"""
    max_steps: int | None = None
    """stop after this many optimizer steps, even if epochs are left"""
    drop_last: bool = False
    """leave out the last batch of an epoch if it has fewer rows than the others"""
    optimizer: str = "adamw"
    """adamw, adam or sgd (with momentum 0.9)"""
    learning_rate: float = 1e-3
    """the learning rate, before lr_scaling"""
    weight_decay: float = 0.0
    """weight decay of the optimizer"""
    lr_scaling: str = "none"
    """none, linear or sqrt: multiply the learning rate by batch_size / base_batch_size, or by its
    square root"""
    base_batch_size: int = 128
    """the batch size that learning_rate was tuned for; lr_scaling needs it"""
    schedule: str = "constant"
    """constant, linear or cosine: how the learning rate falls to 0 after the warm-up"""
    warmup_steps: int = 0
    """number of steps over which the learning rate rises from near 0"""
    clip_norm: float | None = None
    """scale the gradients down when their norm over all parameters is larger than this"""
    precision: str = "float32"
    """float32, or bfloat16 where the device supports it: with autocast; in zero2 and zero3 the
    weights are gathered and used in bfloat16. float16, with a scaled loss, in single, dp and ddp"""
    seed: int = 0
    """seed for the order of rows and for dropout (there each rank adds its rank)"""
    find_unused_parameters: bool | None = None
    """ddp: find the parameters without a gradient in every step; without it all parameters must
    get one. zero2, zero3: a parameter that a rank does not use has the gradient 0 there. Default:
    True in zero2 and zero3, where PyTorch supports it (2.13), else False"""
    deterministic: bool = False
    """use only deterministic algorithms, and raise an error where PyTorch has none"""
    monitor: str = "loss"
    """the evaluation figure that decides which model is best and when to stop early: the smallest
    if the name ends in loss, error, mae, mse, rmse or perplexity, else the largest"""
    evaluate_every: int | None = None
    """steps between two evaluations within an epoch; each epoch also ends with one, which alone
    decides which model is best"""
    patience: int | None = None
    """stop after this many epochs without an improvement"""
    micro_batches: int = 4
    """pipeline: parts of a batch that are under way between the stages at the same time"""
    pipeline_schedule: str = "1f1b"
    """pipeline: 1f1b, gpipe or interleaved: in which order a rank computes its forward and backward
    passes"""
    stages_per_rank: int = 1
    """pipeline: stages of each rank; more than one only with the interleaved schedule"""
    balance: str = "time"
    """pipeline: time, memory or layers: what is divided equally among the stages; time and memory
    are measured"""
    stage_memory: float | None = None
    """pipeline: the most MB that a stage may need for weights, gradients, optimizer and activations
    """
    tensor_parallel: int = 1
    """zero3: number of ranks, next to each other, that divide each layer of the course's GPT among
    themselves and compute the same rows"""
    backend: str | None = None
    """gloo or nccl; default: nccl where every rank has a GPU, else gloo"""
    folder: str | Path | None = None
    """where checkpoints and history go; default: nothing is written"""
    save_every: int | None = None
    """steps between two checkpoints; each epoch also ends with one"""
    keep_last: int | None = None
    """also keep this many of the latest checkpoints under their steps: step-400.pt"""
    checkpoints: str = "full"
    """full: one file that rank 0 writes; sharded: a folder in which each rank writes its share, so
    that no rank gathers the whole model"""
    resume: bool = True
    """resume from the latest checkpoint in the folder, if there is one; otherwise remove it and
    start again"""
    workers: int = 0
    """number of processes per rank that load rows in advance"""
    progress: bool | None = None
    """show a progress bar on rank 0; default: in a terminal"""

    def __post_init__(self) -> None:
        for name, allowed in {"mode": ("auto", *MODES), **CHOICES}.items():
            check_choice(name, getattr(self, name), allowed)
        for field in dataclasses.fields(self):
            name, value, kind = field.name, getattr(self, field.name), str(field.type).split()[0]
            if field.default is None and value is None:
                continue
            if kind == "int":
                check_whole(name, value, at_least=0 if name in MAY_BE_0 else 1)
            elif kind == "float":
                check_number(name, value, zero=name in MAY_BE_0)
            elif kind == "bool":
                check_choice(name, value, (True, False))

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, for a checkpoint or a CSV."""
        fields = dataclasses.asdict(self)
        return fields | {"folder": None if self.folder is None else str(self.folder)}


def check_whole(name: str, value: Any, *, at_least: int) -> None:
    """Raise ValueError unless `value` is a whole number of at least `at_least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {at_least}")


def check_number(name: str, value: Any, *, zero: bool) -> None:
    """Raise ValueError unless `value` is a number above 0, or 0 where `zero` allows it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_number = is_number and value != float("inf")
    if not is_number or not (value > 0 or (zero and value == 0)):
        raise ValueError(f"{name}={value!r}: give a number {'of 0 or more' if zero else 'above 0'}")


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError, with the nearest allowed name, when `value` is not in `allowed`."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value).lower(), [str(word) for word in allowed], n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    words = ", ".join(str(word) for word in allowed)
    raise ValueError(f"{name}={value!r}: choose one of {words}.{meant}")


def resolve_mode(config: TrainConfig, launch: Launch) -> str:
    """The mode that `config.mode` selects in a process with this launch.

    Raises ValueError if a setting belongs to another mode.
    """
    import torch  # a configuration needs none

    mode = config.mode
    if mode == "auto":
        several = (config.gpus or torch.cuda.device_count()) > 1
        mode = "ddp" if launch.is_distributed else "dp" if several else "single"
    if config.tensor_parallel > 1 and mode != "zero3":
        raise ValueError(
            f"tensor_parallel={config.tensor_parallel} with mode={mode!r}: only zero3 can also "
            "divide layers among ranks. Use mode='zero3', or leave tensor_parallel out."
        )
    for name in OF_PIPELINE if mode != "pipeline" else ():
        value = getattr(config, name)
        if value != getattr(TrainConfig, name):  # its default
            raise ValueError(
                f"{name}={value!r} with mode={mode!r}: only a pipeline has {name}. "
                f"Use mode='pipeline', or leave {name} out."
            )
    if config.gpus is not None and config.gpus > 1 and mode == "single":
        raise ValueError(f"gpus={config.gpus} with mode='single': use mode='dp', or gpus=1.")
    return mode


def refuse_batch(config: TrainConfig, *, ranks: int, rows: int) -> None:
    """Raise ValueError if a batch cannot be divided among ranks, or a rank would get no row."""
    if rows < ranks:
        raise ValueError(
            f"{rows} rows of data for {ranks} ranks: each rank needs at least one row. "
            f"Start at most {rows} ranks."
        )
    unit = ranks * config.accumulation_steps
    size = config.batch_size
    if size % unit:
        below, above = size // unit * unit, (size // unit + 1) * unit
        near = f"{below} or {above}" if below else f"{above}"
        parts = f" × accumulation_steps={config.accumulation_steps}"
        divisor = f"{counted(ranks, 'rank')}{parts if config.accumulation_steps > 1 else ''}"
        raise ValueError(
            f"batch_size={size} counts the rows of all ranks together and is not "
            f"divisible by {divisor}. The nearest sizes that are: {near}."
        )
