"""Which rank has which parameter, and the state of the whole model and its optimizer from that.

A checkpoint of a pipeline is the checkpoint of the plain model: the same names, the optimizer's
state numbered as the plain model's optimizer numbers its parameters. So any mode, and a pipeline of
any other number of stages, can go on from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multigpu.training.strategies.pipelining.tied import first_names, holders
from multigpu.training.strategies.pipelining.whole_state import on_main_rank

Stages = Mapping[int, nn.Module]  # this rank's, by their number


class Ownership:
    """Names of the uncut model's tensors, and the ranks that have them."""

    def __init__(
        self, model: nn.Module, stages: Sequence[nn.Module], *, rank: int, ranks: int
    ) -> None:
        """`stages`: all of them, as they were cut from `model`; stage i lies on rank i % ranks."""
        self.rank = rank
        self.names = first_names(model)
        self.holders = holders(stages, self.names, ranks=ranks)
        self.num_parameters = sum(each.numel() for each in model.parameters())
        self.trained = [name for name, each in model.named_parameters() if each.requires_grad]
        state = model.state_dict()
        self.keys = list(state)
        self.unused = {  # no stage needs it: it stays as it is
            key: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
            for key, value in state.items()
            if self.names.get(key) not in self.holders
        }

    def is_mine(self, name: str) -> bool:
        """Whether this rank is the one that speaks for a tensor, by its first name."""
        return self.holders[name][0] == self.rank

    def parameters_of(self, stages: nn.Module) -> dict[str, nn.Parameter]:
        """This rank's parameters by their first names; `stages` is a ModuleList."""
        return {
            self.names[name.partition(".")[2]]: parameter
            for name, parameter in stages.named_parameters()
            if name.partition(".")[2] in self.names
        }

    def owned_of(self, stages: nn.Module) -> dict[str, nn.Parameter]:
        """Those of them that no rank before has."""
        parameters = self.parameters_of(stages)
        return {name: each for name, each in parameters.items() if self.is_mine(name)}

    def model_state(self, stages: Stages, *, device: torch.device) -> dict[str, Any]:
        """The state dict of the uncut model; see `on_main_rank` for who gets what."""
        mine = {
            self.names[key]: value
            for stage in stages.values()
            for key, value in stage.state_dict().items()
            if key in self.names and self.is_mine(self.names[key])
        }
        whole: dict[str, Any] = on_main_rank(mine, device=device)
        return {
            key: self.unused[key] if key in self.unused else whole[self.names[key]]
            for key in self.keys
        }

    def load_model_state(self, stages: Stages, state: Mapping[str, Any]) -> None:
        """Put the uncut model's state back, each rank its own part."""
        for stage in stages.values():
            for key, value in stage.state_dict().items():
                if key in self.names:
                    value.copy_(state[key])
        self.unused = {key: state[key] for key in self.unused}

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, stages: nn.Module, *, device: torch.device
    ) -> dict[str, Any]:
        """The state of the plain model's optimizer; see `on_main_rank` for who gets what."""
        state = optimizer.state_dict()
        mine = {
            (self.trained.index(name), field): value
            for number, name in enumerate(self._stepped(stages))
            if name is not None and self.is_mine(name)
            for field, value in state["state"].get(number, {}).items()
        }
        whole: dict[int, dict[str, Any]] = {}
        found = on_main_rank(mine, device=device)
        for number, field in sorted(found, key=lambda key: key[0]):
            whole.setdefault(number, {})[field] = found[number, field]
        [group] = state["param_groups"]
        return {
            "state": whole,
            "param_groups": [group | {"params": list(range(len(self.trained)))}],
        }

    def load_optimizer_state(
        self, optimizer: torch.optim.Optimizer, stages: nn.Module, state: Mapping[str, Any]
    ) -> None:
        """Put it back, each rank its own part.  Raises ValueError for other parameters."""
        [group] = state["param_groups"]
        if len(group["params"]) != len(self.trained):
            raise ValueError(
                f"the optimizer's state is of {len(group['params'])} parameters, and this model "
                f"has {len(self.trained)} that are trained"
            )
        mine = {}
        for number, name in enumerate(self._stepped(stages)):
            if name is not None and self.trained.index(name) in state["state"]:
                mine[number] = state["state"][self.trained.index(name)]
        numbers = list(range(len(self._stepped(stages))))
        optimizer.load_state_dict({"state": mine, "param_groups": [group | {"params": numbers}]})

    def _stepped(self, stages: nn.Module) -> list[str | None]:
        """The first names of what this rank's optimizer steps, in its order; None: a filler."""
        by_id = {id(each): name for name, each in self.parameters_of(stages).items()}
        return [by_id.get(id(each)) for each in stages.parameters() if each.requires_grad]
