"""One model over several GPUs, a stage on each: PyTorch's torch.distributed.pipelining.

    torchrun --nproc_per_node 2 -m multigpu train --data text --mode pipeline

The model is cut into stages (partition.py), rank r gets stage r, and a batch goes through them in
micro-batches, so that all ranks have something to do. Every rank reads the whole batch: rank 0
needs its inputs, the last rank its targets. All micro-batches have as many rows, because PyTorch's
stages receive into buffers of one shape: a smaller batch is padded with its last row, and the
padding is dropped before the loss. A checkpoint is that of the plain model, so any mode, and a
pipeline with another number of stages, can resume from it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.data.feeds import Batch, rows_of
from multigpu.data.replacing import replace_file
from multigpu.ranks.errors import counted
from multigpu.ranks.recorder import Current
from multigpu.ranks.stage_spans import WatchedStage
from multigpu.training.checkpoint import CheckpointError
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import (
    Launch,
    all_gather_object,
    from_main_rank,
    join_group,
    main_rank_does,
    require_nccl_between_gpus,
    restarted,
    take_from_main_rank,
)
from multigpu.training.loss import LossFn, StepLoss
from multigpu.training.partition import cut, stages_at
from multigpu.training.strategy import (
    CallsFunction,
    InAutocast,
    Sample,
    Strategy,
    modes_kept,
    to_device,
)

FILE = "stages.json"  # in the run's folder
OPTIMIZER_STATE = {"adamw": 2.0, "adam": 2.0, "sgd": 1.0}  # numbers kept per parameter
SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class PartitionPlan(NamedTuple):
    """Where a model is cut, with what rank 0 measured."""

    places: list[int]  # steps of the model at which a stage begins, and the number of steps
    bubble: float  # predicted share of a step in which a rank waits
    table: str
    asked: dict[str, Any]  # what it depends on, besides the model and the machine


class Pipeline(Strategy):
    """Each rank has one or more stages; activations and gradients are sent between them."""

    mode = "pipeline"

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        launch.require_ranks(self.mode, gpus=config.gpus)
        if (config.stages_per_rank > 1) != (config.pipeline_schedule == "interleaved"):
            raise ValueError(
                f"stages_per_rank={config.stages_per_rank} with pipeline_schedule="
                f"{config.pipeline_schedule!r}: 'interleaved' has two or more stages per rank, and "
                "the other schedules have one."
            )
        self.backend = join_group(launch, config.backend)
        self.device = launch.device
        require_nccl_between_gpus(self.mode, self.backend, self.device)
        self.ranks, self.micro_batches = launch.world_size, config.micro_batches
        # On one rank nothing can run at the same time, so the model is one stage.
        alone = self.ranks == 1
        self.num_stages = 1 if alone else self.ranks * config.stages_per_rank
        self.schedule = "1f1b" if alone else config.pipeline_schedule

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Cut `model` as rank 0 measures, and keep only this rank's stages."""
        inputs = as_arguments(sample().parts(self.config.accumulation_steps)[0].inputs)
        take_from_main_rank([*model.parameters(), *model.buffers()], device=self.device)
        self.size = -(-rows_of(inputs) // self.micro_batches)  # rows of every micro-batch
        first = tuple(to_device(tensor[: self.size], self.device) for tensor in inputs)
        self.plan = None if self.num_stages == 1 else self._plan_alike(model, first)
        stages = [model] if self.plan is None else stages_at(model, first, self.plan.places)
        self._keep_own(model, stages)
        self.has_first, self.has_last = 0 in self.parts, self.num_stages - 1 in self.parts
        if self.plan is not None:
            self.remarks = [f"predicted bubble {self.plan.bubble:.0%}"]
            self.details = self.plan.table
        self.flows = self._flows(first)
        self.training = self._schedule(loss_fn=self._loss)
        self.evaluation = self._schedule(loss_fn=None)
        self.model = CallsFunction(self.plain, self._outputs)
        # Not written yet: the folder is locked, and perhaps cleared, only when training begins.
        self.plan_is_written = False
        self.of_sums: bool | None = None  # whether loss_fn returns sums and weights

    def _plan_alike(self, model: nn.Module, sample: tuple[Tensor, ...]) -> PartitionPlan:
        """Where to cut `model`, the same on every rank: rank 0 measures, as ranks would differ.

        In a run with a folder the places are written down, and a resumed run is cut there again,
        because otherwise dropout would draw its numbers in another order.

        An error of rank 0 is raised there; the other ranks then raise ValueError.
        """
        config = self.config
        setting: dict[str, Any] = {
            "micro_batches": config.micro_batches,
            "schedule": "gpipe" if config.pipeline_schedule == "gpipe" else "1f1b",
            "stages_per_rank": config.stages_per_rank,
            "balance": config.balance,
            "memory": None if config.stage_memory is None else round(config.stage_memory * 1e6),
            "optimizer_state": OPTIMIZER_STATE[config.optimizer],
        }
        asked = {"num_stages": self.num_stages, "rows": len(sample[0])} | setting
        plans: list[PartitionPlan] = []

        def read_or_measure() -> None:
            plan = self._written_plan()
            if plan is None or plan.asked != asked:
                stages = cut(model, sample, self.num_stages, device=self.device, **setting)
                bubble = stages.bubble(config.micro_batches)
                plan = PartitionPlan(list(stages.places), bubble, str(stages), asked)
            plans.append(plan)

        main_rank_does(read_or_measure, error=ValueError)
        found: PartitionPlan = from_main_rank(plans[0] if plans else None)
        return found

    def _written_plan(self) -> PartitionPlan | None:
        """The plan in the run's folder, if the run resumes."""
        folder = self.config.folder
        if folder is not None and (self.config.resume or restarted()):
            with contextlib.suppress(OSError, ValueError, TypeError):
                return PartitionPlan(**json.loads((Path(folder) / FILE).read_text("utf-8")))
        return None

    def _flows(self, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """What goes into each stage, and out of the last one: tensors on the device "meta".

        PyTorch's PipelineStage would find it out in the first step by calling the stages in
        training mode, so that BatchNorm would count rows that do not exist, and a resumed run would
        count them again. The dtype depends on autocast.
        """
        gpus = [self.device] if self.device.type == "cuda" else []
        flows = [zeros_on(inputs, "meta")]
        with torch.random.fork_rng(devices=gpus), modes_kept(self.plain), torch.enable_grad():
            self.plain.eval()
            for number in range(self.num_stages):
                box: list[Any] = [None]
                if number in self.parts:
                    given = inputs if number == 0 else zeros_on(flows[-1], self.device)
                    with self.autocast():
                        outputs = self.parts[number](*given)
                    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
                    for each in outputs:
                        if not isinstance(each, Tensor):
                            raise TypeError(
                                "mode='pipeline' with a model that returns a "
                                f"{type(each).__name__}: its output must be a tensor or a tuple "
                                "of tensors"
                            )
                    box[0] = zeros_on(outputs, "meta")
                dist.broadcast_object_list(box, src=number % self.ranks)
                flows.append(box[0])
        return flows

    def _schedule(self, *, loss_fn: Any) -> Any:
        """PyTorch's schedule of this rank's stages, for training or, without a loss, evaluation."""
        pieces = []
        for number, stage in self.parts.items():
            part: nn.Module = InAutocast(stage, self.autocast)
            if Current.recorder is not None:  # the trace shows each forward and backward
                label = number if len(self.parts) > 1 else None
                part = WatchedStage(part, micro_batches=self.micro_batches, number=label)
            pieces.append(
                PipelineStage(
                    part,
                    number,
                    self.num_stages,
                    self.device,
                    input_args=self.flows[number],
                    output_args=self.flows[number + 1],
                )
            )
        return SCHEDULES[self.schedule](
            pieces if self.schedule == "interleaved" else pieces[0],
            self.micro_batches,
            loss_fn=loss_fn,
            scale_grads=False,  # each loss is weighted by its rows, see _loss
        )

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        """As in every mode; the losses are those of the last rank, the others have none."""
        step = StepLoss()
        for part in parts:
            inputs, targets = self.place(part)
            self.computed = part.rows, part.global_rows, targets, loss_fn, step  # see _loss
            self.training.step(
                *(self._padded(as_arguments(inputs)) if self.has_first else ()),
                target=torch.arange(self.size * self.micro_batches) if self.has_last else None,
                return_outputs=False,
            )
        self._add_up_tied_gradients()
        if self.of_sums is None:  # only the last rank knows what loss_fn returns
            self.of_sums = any(all_gather_object(step.of_sums))
        step.of_sums = self.of_sums
        self.complete_gradients(step)
        return step

    def _loss(self, outputs: Any, row_numbers: Tensor) -> Tensor:
        """One micro-batch's share of the mean over the global batch.

        The schedule passes on its targets, which here are the numbers of the rows in the batch.
        """
        rows, global_rows, targets, loss_fn, step = self.computed
        begin = int(row_numbers[0])
        count = min(self.size, rows - begin)
        if count <= 0:  # only padding
            return 0 * torch.stack([leaf.sum() for leaf in tree_leaves(outputs)]).sum()
        if count < self.size:
            outputs = tree_map(lambda each: without_padding(each, count, self.size), outputs)
        with self.autocast():
            returned = loss_fn(outputs, tree_map(lambda each: each[begin : begin + count], targets))
        return step.add(returned, count, global_rows)

    def _outputs(self, *inputs: Any) -> Any:
        """The whole model's outputs on the last stage's rank, else None."""
        rows, most = rows_of(inputs), self.size * self.micro_batches
        found = []
        for begin in range(0, rows, most):
            given = self._padded([each[begin : begin + most] for each in inputs])
            found.append(self.evaluation.step(*(given if self.has_first else ())))
        if not self.has_last:
            return None
        return tree_map(lambda *each: torch.cat(each)[:rows], *found)

    def _padded(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs with the last row repeated, so that they fill all micro-batches."""
        missing = self.size * self.micro_batches - rows_of(inputs)
        if not missing:
            return list(inputs)
        return [torch.cat([each, each[-1:].expand(missing, *each.shape[1:])]) for each in inputs]

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """The inputs go only to the first stage's rank, the targets to the last one's."""
        inputs = to_device(batch.inputs, self.device) if self.has_first else batch.inputs
        return inputs, to_device(batch.targets, self.device) if self.has_last else batch.targets

    def clip(self, max_norm: float) -> None:
        """The norm is that of all stages' gradients, with a tied weight counted once."""
        gradients = [
            each.grad
            for name, each in self.parameters.items()
            if self._saves(name) and each.grad is not None
        ]
        norm = nn.utils.get_total_norm(gradients).to(self.device, torch.float64)
        square = norm**2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(self.plain.parameters(), max_norm, square.sqrt())

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        dist.all_reduce(value)
        return value

    def before_evaluation_or_save(self) -> None:
        """Write the places of the cuts into the folder once, because a checkpoint needs them."""
        if self.plan is not None and self.config.folder is not None and not self.plan_is_written:
            path = Path(self.config.folder) / FILE
            content = json.dumps(self.plan._asdict(), indent=1).encode()
            main_rank_does(lambda: replace_file(path, content), error=CheckpointError)
            self.plan_is_written = True

    @property
    def evaluation_model(self) -> nn.Module:
        """Gives the outputs on the last stage's rank and None on the others."""
        return self.model

    def where(self) -> str:
        ranks, stages = counted(self.ranks, "rank"), counted(self.num_stages, "stage")
        return f"{ranks} ({self.backend}), {stages}, {self.schedule}"

    # Which rank has which part of the model. Each stage that uses a weight has a copy, and it gets
    # the gradient of its own use. The sum of the copies' gradients is the gradient that the one
    # weight would have got, so all copies take the same step and stay equal. PyTorch's and
    # Megatron's pipelines do the same with the embedding of a GPT, which is also the matrix of its
    # last layer. (Shoeybi et al. 2019, arXiv:1909.08053; megatron/core/distributed/
    # finalize_model_grads.py)

    def _keep_own(self, model: nn.Module, stages: Sequence[nn.Module]) -> None:
        """Keep those `stages` of `model` that belong to this rank, and note who has the others.

        Stage i is on rank i % ranks.
        """
        self.parts = {n: stages[n] for n in range(self.launch.rank, len(stages), self.ranks)}
        self.plain = nn.ModuleList(self.parts.values()).to(self.device)
        # A parameter's or buffer's name -> the first name of the same tensor.
        first: dict[int, str] = {}
        tensors = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        self.names = {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
        # The ranks that have each parameter or buffer, by its first name; the first one saves it.
        self.holders: dict[str, list[int]] = {}
        for number, stage in enumerate(stages):
            named = (*stage.named_parameters(remove_duplicate=False), *stage.named_buffers())
            for name in (self.names[name] for name, _ in named if name in self.names):
                ranks = self.holders.setdefault(name, [])
                if number % self.ranks not in ranks:
                    ranks.append(number % self.ranks)
        self.parameters = {  # this rank's, by their first names; its stages share what is tied
            self.names[name]: parameter
            for stage in self.parts.values()
            for name, parameter in stage.named_parameters(remove_duplicate=False)
        }
        if not any(parameter.requires_grad for parameter in self.plain.parameters()):
            # An optimizer needs a parameter, and a stage may have none. This one never changes.
            self.plain.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
        shared = [tuple(sorted(ranks)) for ranks in self.holders.values() if len(ranks) > 1]
        # All ranks make all groups, in the same order.
        self.groups = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(shared)}
        self.trained_names = [name for name, each in model.named_parameters() if each.requires_grad]
        state = model.state_dict()
        self.keys = list(state)
        self.extra = {key: value for key, value in state.items() if key not in self.names}

    def _add_up_tied_gradients(self) -> None:
        """Give every copy of a weight the sum of all copies' gradients."""
        for name, ranks in self.holders.items():
            parameter = self.parameters.get(name)
            if len(ranks) < 2 or parameter is None or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.groups[tuple(sorted(ranks))])

    def _saves(self, name: str) -> bool:
        """Whether this rank saves a tensor, given by its first name."""
        return self.holders[name][0] == self.launch.rank

    def _saved(self) -> dict[str, Any]:
        """This rank's part of the state dict of the uncut model, by first names."""
        return {
            self.names[key]: value
            for stage in self.parts.values()
            for key, value in stage.state_dict().items()
            if key in self.names and self._saves(self.names[key])
        }

    def model_state(self, *, whole: bool = True) -> dict[str, Any]:
        """The whole model's weights on rank 0; tensors without values on the others."""
        found = self._saved() | self.extra
        if whole:
            found = on_main_rank(self._saved(), device=self.device) | self.extra
        names = {key: self.names.get(key, key) for key in self.keys}
        return {key: found[name] for key, name in names.items() if name in found}

    def load_model_state(self, state: dict[str, Any]) -> None:
        for stage in self.parts.values():
            for key, value in stage.state_dict().items():
                if key in self.names:
                    value.copy_(state[key])
        self.extra = {key: state[key] for key in self.extra}

    def _stepped(self) -> list[str | None]:
        """The first names of what this rank's optimizer steps, in its order; None: no weight."""
        by_id = {id(each): name for name, each in self.parameters.items()}
        return [by_id.get(id(each)) for each in self.plain.parameters() if each.requires_grad]

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, *, whole: bool = True
    ) -> dict[str, Any]:
        """The whole optimizer's state on rank 0; tensors without values on the others."""
        state = optimizer.state_dict()
        [group] = state["param_groups"]
        state = {
            "state": {
                self.trained_names.index(name): state["state"][number]
                for number, name in enumerate(self._stepped())
                if name is not None and self._saves(name) and number in state["state"]
            },
            "param_groups": [group | {"params": list(range(len(self.trained_names)))}],
        }
        if not whole:
            return state
        mine = {
            (number, field): value
            for number, fields in state["state"].items()
            for field, value in fields.items()
        }
        found = on_main_rank(mine, device=self.device)
        of_all: dict[int, dict[str, Any]] = {number: {} for number, _ in sorted(found)}
        for (number, field), value in found.items():
            of_all[number][field] = value
        return state | {"state": of_all}

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Each rank takes its own part.  Raises ValueError for other parameters."""
        [group] = state["param_groups"]
        if len(group["params"]) != len(self.trained_names):
            raise ValueError(
                f"the optimizer's state has {len(group['params'])} parameters, but this model "
                f"trains {len(self.trained_names)}"
            )
        stepped = self._stepped()
        own = [None if name is None else self.trained_names.index(name) for name in stepped]
        mine = {
            at: state["state"][number] for at, number in enumerate(own) if number in state["state"]
        }
        numbers = list(range(len(own)))
        optimizer.load_state_dict({"state": mine, "param_groups": [group | {"params": numbers}]})


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """A batch's inputs as the model's positional arguments.  Raises ValueError for a dict."""
    if isinstance(inputs, dict):
        raise ValueError(
            f"mode='pipeline' does not take inputs by name ({', '.join(map(str, inputs))}), "
            "because a stage is called with positional tensors. Give rows (first, second, ..., "
            "target)."
        )
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def zeros_on(tensors: Sequence[Tensor], device: Any) -> tuple[Tensor, ...]:
    """Zeros of the same shapes and dtypes on another device, contiguous."""
    return tuple(
        torch.zeros(each.shape, dtype=each.dtype, device=device).requires_grad_(each.requires_grad)
        for each in tensors
    )


def without_padding(outputs: Tensor, count: int, size: int) -> Tensor:
    """The first `count` of `size` rows.  Raises ValueError if these are not rows."""
    if not outputs.dim() or len(outputs) != size:
        raise ValueError(
            f"the model's output has the shape {tuple(outputs.shape)} for {size} rows, but its "
            "first dimension must count the rows: the padding of a micro-batch is dropped there."
        )
    return outputs[:count]


def on_main_rank(mine: Mapping[Any, Any], *, device: torch.device) -> dict[Any, Any]:
    """The values of all ranks, each under its own keys; every rank calls it.

    Rank 0 gets copies of the tensors on the CPU. The others get tensors of the same shapes on the
    device "meta", without values and without memory, because a model that needs several GPUs may
    not fit into every process. Values that are not tensors are sent to every rank. One tensor at a
    time is sent, on `device`.
    """
    rank = dist.get_rank()
    described = {
        key: value.detach().to("meta") if isinstance(value, Tensor) else value
        for key, value in mine.items()
    }
    whole: dict[Any, Any] = {}
    for owner, theirs in enumerate(all_gather_object(described)):
        whole |= theirs
        for key, value in theirs.items():
            if not isinstance(value, Tensor):
                continue
            if rank == owner == 0:
                whole[key] = mine[key].detach().to("cpu", copy=True)
            elif rank == 0:
                received = torch.empty(value.shape, dtype=value.dtype, device=device)
                dist.recv(received, src=owner)
                whole[key] = received.cpu()
            elif rank == owner:
                dist.send(mine[key].detach().to(device).contiguous(), dst=0)
    return whole
