"""What cannot be trained as a pipeline, said before anything is cut."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from multigpu.training.config import TrainConfig
from multigpu.training.strategies.pipelining.flows import Flows
from multigpu.training.strategies.pipelining.runner import as_arguments


def refuse_settings(config: TrainConfig, *, ranks: int) -> None:
    """Raise ValueError where schedule, stages and micro-batches do not fit together."""
    count, each = config.micro_batches, config.stages_per_rank
    if config.pipeline_schedule != "interleaved":
        if each > 1:
            raise ValueError(
                f"stages_per_rank={each} with pipeline_schedule={config.pipeline_schedule!r}: "
                "there each rank has one stage. Use pipeline_schedule='interleaved', or leave "
                "stages_per_rank out."
            )
        if config.pipeline_schedule == "1f1b" and count < ranks:
            raise ValueError(
                f"micro_batches={count} with {ranks} stages: 1f1b begins with a micro-batch for "
                f"each stage. Use micro_batches={ranks} or more (4 times as many keep the bubble "
                "below 20 %), or pipeline_schedule='gpipe', which takes any number."
            )
        return
    if each < 2:
        raise ValueError(
            "pipeline_schedule='interleaved' with stages_per_rank=1: there is nothing to "
            "interleave. Use stages_per_rank=2 or more, or pipeline_schedule='1f1b'."
        )
    if count % ranks:
        below, above = count // ranks * ranks, (count // ranks + 1) * ranks
        near = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"micro_batches={count} on {ranks} ranks: the interleaved schedule works through them "
            f"in rounds of {ranks}. The nearest that work: {near}."
        )


def refuse_inputs(inputs: Any) -> None:
    """Raise ValueError for inputs that cannot be divided into micro-batches."""
    if isinstance(inputs, dict):
        raise ValueError(
            f"mode='pipeline' and inputs by name ({', '.join(map(str, inputs))}): a stage is "
            "called with tensors in their order. Give rows (first, second, ..., target)."
        )
    for each in as_arguments(inputs):
        if not isinstance(each, Tensor):
            raise ValueError(
                f"mode='pipeline' and an input that is a {type(each).__name__}: give tensors, "
                "whose first dimension counts the rows"
            )


def refuse_flows(flows: Flows) -> None:
    """Raise ValueError where a value without a gradient has to travel and PyTorch is too old.

    Until it took `input_grads`, PipelineStage asked for a gradient of everything it received, which
    whole numbers cannot have.
    """
    if "input_grads" in inspect.signature(PipelineStage).parameters:
        return
    for number, flow in enumerate(flows[1:-1], start=1):
        for each in flow:
            if not each.requires_grad:
                raise ValueError(
                    f"stage {number} receives a tensor {each.shape} of {each.dtype} that has no "
                    f"gradient, and the pipelines of torch {torch.__version__} cannot pass one on: "
                    "use torch 2.13 or later, or compute it anew in the layers that need it."
                )
