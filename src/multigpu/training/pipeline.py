"""One model over several GPUs, a stage on each: PyTorch's torch.distributed.pipelining.

    torchrun --nproc_per_node 2 -m multigpu train --data text --mode pipeline

The model is cut into stages (training/partition.py), rank r gets stage r, and a batch goes through
them in micro-batches (pipeline_schedule.py), so that all ranks have something to do. Every rank
reads the whole batch: rank 0 needs its inputs, the last rank its targets.

All ranks cut at the same places. The places come from measurements, which differ between ranks, so
rank 0 measures and sends the places to the others. In a run with a folder it also saves them
(stages.json). A resumed run is cut there again, because otherwise dropout would draw its numbers in
another order.

A checkpoint of a pipeline is the checkpoint of the plain model: the same names, the optimizer's
state numbered as the plain model's optimizer numbers its parameters. So any mode, and a pipeline
with any other number of stages, can resume from it.
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

from multigpu.data.feeds import Batch, rows_of
from multigpu.training.checkpoint import CheckpointError, replace_file
from multigpu.training.config import TrainConfig
from multigpu.training.distributed import (
    Launch,
    all_gather_object,
    from_main_rank,
    join_group,
    main_rank_does,
    restarted,
    take_from_main_rank,
)
from multigpu.training.partition import cut, stages_at
from multigpu.training.pipeline_schedule import (
    Layout,
    Outputs,
    Runner,
    as_arguments,
)
from multigpu.training.strategy import LossFn, Sample, StepLoss, Strategy, to_device

FILE = "stages.json"  # in the run's folder
OPTIMIZER_STATE = {"adamw": 2.0, "adam": 2.0, "sgd": 1.0}  # numbers kept per parameter


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
        launch.require_ranks(self.mode)
        refuse_settings(config, ranks=launch.world_size)
        self.backend = join_group(launch, config.backend)
        self.device = launch.device
        self.ranks = launch.world_size
        # One rank has nothing to take turns with: there the model is one stage.
        alone = self.ranks == 1
        self.num_stages = 1 if alone else self.ranks * config.stages_per_rank
        self.schedule = "1f1b" if alone else config.pipeline_schedule

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Cut `model` as rank 0 measures, and keep only this rank's stages."""
        inputs = sample().inputs
        take_from_main_rank([*model.parameters(), *model.buffers()], device=self.device)
        first = self._first_micro_batch(inputs)
        self.plan = None if self.num_stages == 1 else self._plan_alike(model, first)
        stages = [model] if self.plan is None else stages_at(model, first, self.plan.places)
        self.owned = Ownership(model, stages, device=self.device)
        self.parts, self.plain = self.owned.parts, self.owned.plain
        self.runners: dict[Any, Runner] = {}
        self.model = Outputs(self.plain, self.runner)
        self.kept = False  # whether the plan is written down
        self.of_sums: bool | None = None  # whether loss_fn returns sums and weights

    def _plan_alike(self, model: nn.Module, sample: tuple[Tensor, ...]) -> PartitionPlan:
        """Where to cut `model`, the same on every rank: as before, or as rank 0 measures.

        An error of rank 0 is raised there; the other ranks then raise ValueError.
        """
        config = self.config
        setting: dict[str, Any] = {
            "micro_batches": config.micro_batches,
            "schedule": "gpipe" if config.pipeline_schedule == "gpipe" else "1f1b",
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
                bubble = stages.bubble(config.micro_batches, setting["schedule"])
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

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        """As in every mode; the losses are those of the last rank, the others have none."""
        step = StepLoss()
        for part in parts:
            runner, layout = self.runner(part.inputs, backward=True)
            inputs, targets = self.place(part)
            runner.train(inputs, targets, layout, loss_fn, step, global_rows=part.global_rows)
        self.owned.add_up_tied_gradients()
        if self.of_sums is None:  # only the last rank knows what loss_fn returns
            self.of_sums = any(all_gather_object(step.of_sums))
        step.of_sums = self.of_sums
        self.complete_gradients(step)
        return step

    def runner(self, inputs: Any, *, backward: bool) -> tuple[Runner, Layout]:
        """The schedule for micro-batches of this size, and which row is where in them.

        It is created when a batch needs it, because the last batch of an epoch may have a different
        size. All ranks see all batches, so all create it at the same time.
        """
        layout = Layout.of(rows_of(inputs), self.micro_batches)
        first = self._first_micro_batch(inputs)
        key = (backward, *((tensor.shape, tensor.dtype) for tensor in first))
        if key not in self.runners:
            self.runners[key] = Runner(
                self.parts,
                first,
                num_stages=self.num_stages,
                schedule=self.schedule,
                micro_batches=self.micro_batches,
                device=self.device,
                autocast=self.autocast,
                backward=backward,
            )
        return self.runners[key], layout

    def _first_micro_batch(self, inputs: Any) -> tuple[Tensor, ...]:
        """The first rows of a batch, on this rank's device."""
        size = Layout.of(rows_of(inputs), self.micro_batches).size
        return tuple(to_device(tensor[:size], self.device) for tensor in as_arguments(inputs))

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """The inputs go only to the first stage's rank, the targets to the last one's."""
        inputs = to_device(batch.inputs, self.device) if 0 in self.parts else batch.inputs
        last = self.num_stages - 1 in self.parts
        return inputs, to_device(batch.targets, self.device) if last else batch.targets

    def clip(self, max_norm: float) -> None:
        """The norm is that of all stages' gradients, with a tied weight counted once."""
        mine = self.owned.parameters
        gradients = [
            each.grad
            for name, each in mine.items()
            if self.owned.is_mine(name) and each.grad is not None
        ]
        norm = nn.utils.get_total_norm(gradients).to(self.device, torch.float64)
        square = norm**2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(self.plain.parameters(), max_norm, square.sqrt())

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        dist.all_reduce(value)
        return value

    def before_evaluation(self) -> None:
        """Also called before a checkpoint is written: the places of the cuts belong to it."""
        if self.plan is not None and self.config.folder is not None and not self.kept:
            path = Path(self.config.folder) / FILE
            content = json.dumps(self.plan._asdict(), indent=1).encode()
            main_rank_does(lambda: replace_file(path, content), error=CheckpointError)
            self.kept = True

    @property
    def evaluation_model(self) -> nn.Module:
        """Gives the outputs on the last stage's rank and None on the others."""
        return self.model

    @property
    def inputs_device(self) -> torch.device:
        return self.device if 0 in self.parts else torch.device("cpu")

    @property
    def num_parameters(self) -> int:
        return self.owned.num_parameters

    @property
    def micro_batches(self) -> int:
        return self.config.micro_batches

    def where(self) -> str:
        ranks = f"{self.ranks} rank{'s'[: self.ranks > 1]} ({self.backend})"
        return f"{ranks}, {self.num_stages} stage{'s'[: self.num_stages > 1]}, {self.schedule}"

    def remarks(self) -> list[str]:
        return [] if self.plan is None else [f"predicted bubble {self.plan.bubble:.0%}"]

    def details(self) -> str:
        return "" if self.plan is None else self.plan.table

    def model_state(self) -> dict[str, Any]:
        """The whole model's weights on rank 0; tensors without values on the others."""
        return self.owned.model_state()

    def load_model_state(self, state: dict[str, Any]) -> None:
        self.owned.load_model_state(state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole optimizer's state on rank 0; tensors without values on the others."""
        return self.owned.optimizer_state(optimizer)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        self.owned.load_optimizer_state(optimizer, state)


def refuse_settings(config: TrainConfig, *, ranks: int) -> None:
    """Raise ValueError if schedule, stages and micro-batches do not fit together."""
    count, each = config.micro_batches, config.stages_per_rank
    if config.pipeline_schedule != "interleaved":
        if each > 1:
            raise ValueError(
                f"stages_per_rank={each} with pipeline_schedule={config.pipeline_schedule!r}: "
                "this schedule has one stage per rank. Use pipeline_schedule='interleaved', or "
                "leave stages_per_rank out."
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
            f"micro_batches={count} on {ranks} ranks: the interleaved schedule processes them "
            f"in rounds of {ranks}. The nearest numbers that work: {near}."
        )


# Which rank has what of the model


class Ownership:
    """Names of the uncut model's tensors, and the ranks that have them.

    Each stage that uses a weight has a copy, and each copy gets the gradient of its own use. Their
    sum over the ranks that have one is the gradient that the one weight would have got, so all
    copies take the same step and stay equal. PyTorch's and Megatron's pipelines do the same with
    the embedding of a GPT, which is also the matrix of its last layer. (Shoeybi et al. 2019,
    arXiv:1909.08053; megatron/core/distributed/finalize_model_grads.py)
    """

    def __init__(
        self, model: nn.Module, stages: Sequence[nn.Module], *, device: torch.device
    ) -> None:
        """`stages`: all of them, as they were cut from `model`; stage i is on rank i % ranks."""
        self.device, self.rank, ranks = device, dist.get_rank(), dist.get_world_size()
        mine = range(self.rank, len(stages), ranks)
        self.parts = {number: stages[number] for number in mine}  # this rank's
        # A parameter's or buffer's name -> the first name of the same tensor.
        first: dict[int, str] = {}
        tensors = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        self.names = {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
        # The ranks that have each parameter or buffer, by its first name; the first one owns it.
        self.holders: dict[str, list[int]] = {}
        for number, stage in enumerate(stages):
            named = (*stage.named_parameters(remove_duplicate=False), *stage.named_buffers())
            for name in (name for name, _ in named if name in self.names):
                have = self.holders.setdefault(self.names[name], [])
                if number % ranks not in have:
                    have.append(number % ranks)
        self.plain = nn.ModuleList(self.parts.values()).to(device)
        self.parameters = {  # this rank's, by their first names; its stages share what is tied
            self.names[name]: parameter
            for stage in self.parts.values()
            for name, parameter in stage.named_parameters(remove_duplicate=False)
        }
        if not any(parameter.requires_grad for parameter in self.plain.parameters()):
            # An optimizer wants a parameter; a stage may have none. This one is never moved.
            self.plain.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
        self.copies = self._copies()
        self.num_parameters = sum(each.numel() for each in model.parameters())
        self.trained = [name for name, each in model.named_parameters() if each.requires_grad]
        state = model.state_dict()
        self.keys = list(state)
        self.extra = {key: value for key, value in state.items() if key not in self.names}

    def _copies(self) -> list[tuple[nn.Parameter, Any]]:
        """This rank's parameters that other ranks also have, with the group of those ranks."""
        groups: dict[tuple[int, ...], Any] = {}
        copies = []
        for name, ranks in self.holders.items():
            among = tuple(sorted(ranks))
            if len(among) < 2:
                continue
            if among not in groups:  # all ranks make all groups, in the same order
                groups[among] = dist.new_group(list(among))
            if name in self.parameters and self.parameters[name].requires_grad:
                copies.append((self.parameters[name], groups[among]))
        return copies

    def add_up_tied_gradients(self) -> None:
        """Give every copy the sum of all copies' gradients."""
        for parameter, group in self.copies:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)

    def is_mine(self, name: str) -> bool:
        """Whether this rank saves a tensor, given by its first name: its first rank does."""
        return self.holders[name][0] == self.rank

    def model_state(self) -> dict[str, Any]:
        """The state dict of the uncut model; `on_main_rank` says which rank gets what."""
        mine = {
            self.names[key]: value
            for stage in self.parts.values()
            for key, value in stage.state_dict().items()
            if key in self.names and self.is_mine(self.names[key])
        }
        whole: dict[str, Any] = on_main_rank(mine, device=self.device)
        return {
            key: self.extra[key] if key in self.extra else whole[self.names[key]]
            for key in self.keys
        }

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Put the uncut model's state back, each rank its own part."""
        for stage in self.parts.values():
            for key, value in stage.state_dict().items():
                if key in self.names:
                    value.copy_(state[key])
        self.extra = {key: state[key] for key in self.extra}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The state of the plain model's optimizer; `on_main_rank` says which rank gets what."""
        state = optimizer.state_dict()
        mine = {
            (self.trained.index(name), field): value
            for number, name in enumerate(self._stepped())
            if name is not None and self.is_mine(name)
            for field, value in state["state"].get(number, {}).items()
        }
        whole: dict[int, dict[str, Any]] = {}
        found = on_main_rank(mine, device=self.device)
        for number, field in sorted(found, key=lambda key: key[0]):
            whole.setdefault(number, {})[field] = found[number, field]
        [group] = state["param_groups"]
        return {
            "state": whole,
            "param_groups": [group | {"params": list(range(len(self.trained)))}],
        }

    def load_optimizer_state(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Put it back, each rank its own part.  Raises ValueError for other parameters."""
        [group] = state["param_groups"]
        if len(group["params"]) != len(self.trained):
            raise ValueError(
                f"the optimizer's state has {len(group['params'])} parameters, but this model "
                f"trains {len(self.trained)}"
            )
        stepped = [None if name is None else self.trained.index(name) for name in self._stepped()]
        mine = {at: state["state"][n] for at, n in enumerate(stepped) if n in state["state"]}
        numbers = list(range(len(stepped)))
        optimizer.load_state_dict({"state": mine, "param_groups": [group | {"params": numbers}]})

    def _stepped(self) -> list[str | None]:
        """The first names of what this rank's optimizer steps, in its order; None: no weight."""
        by_id = {id(each): name for name, each in self.parameters.items()}
        return [by_id.get(id(each)) for each in self.plain.parameters() if each.requires_grad]


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
                if value.numel():
                    dist.recv(received, src=owner)
                whole[key] = received.cpu()
            elif rank == owner and value.numel():
                dist.send(mine[key].detach().to(device).contiguous(), dst=0)
    return whole
