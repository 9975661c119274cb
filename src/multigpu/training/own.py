"""Training with wrappers written by hand: the exercises' classes in the place of PyTorch's.

    own = load_own(Path("exercises"), "ddp")      # the module distributed_data_parallel
    Trainer(model, TrainConfig(mode="ddp"), data.train, own=own).fit()

dp strings together `split`, `replicate`, `parallel_apply`, `gather`, `sum_gradients` and
`broadcast` of exercises/data_parallel.py; ddp uses `BucketedDDP` of
exercises/distributed_data_parallel.py. Devices and the division of rows are the same as in
PyTorch's modes, whose classes are the bases here.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from multigpu.data.feeds import Batch
from multigpu.training.config import TrainConfig
from multigpu.training.ddp import Distributed
from multigpu.training.distributed import Launch
from multigpu.training.dp import DataParallel
from multigpu.training.loss import LossFn, StepLoss
from multigpu.training.strategy import CallsFunction, InAutocast, Sample

FILES = {"dp": "data_parallel", "ddp": "distributed_data_parallel"}


class NotWritten(ValueError):
    """Training reached an exercise that is not written yet."""


def make_own(
    mode: str, config: TrainConfig, launch: Launch, own: ModuleType
) -> OwnDataParallel | OwnDistributed:
    """The strategy of `mode` with the wrapper of `own`.  Raises ValueError for other modes."""
    refuse_other_modes(mode, name_of(own))
    return (OwnDataParallel if mode == "dp" else OwnDistributed)(config, launch, own)


class OwnDataParallel(DataParallel):
    """One process and several GPUs, every movement by the functions of `own`."""

    def __init__(self, config: TrainConfig, launch: Launch, own: ModuleType) -> None:
        super().__init__(config, launch)
        self.own = own

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = model.to(self.device)
        self.replicas: Sequence[nn.Module] = self._do("replicate", self.plain, self.devices)
        if len(self.replicas) != len(self.devices) or self.replicas[0] is not self.plain:
            raise ValueError(
                f"replicate must return one module for each of the {len(self.devices)} GPUs, the "
                "first one the model itself: `multigpu check data_parallel.replicate` explains it."
            )
        self.called = self.replicas
        if self.config.precision != "float32":  # a new thread begins without autocast
            self.called = [InAutocast(replica, self.autocast) for replica in self.replicas]
        self.model = CallsFunction(self.plain, self._forward)

    def _forward(self, inputs: Any) -> Any:
        """The outputs for a whole batch, on GPU 0."""
        for replica in self.replicas[1:]:  # model.eval() has reached the first one only
            for mine, first in zip(replica.modules(), self.plain.modules(), strict=True):
                mine.training = first.training
        chunks = self._do("split", inputs, self.devices)
        outputs = self._do("parallel_apply", self.called, chunks)
        return self._do("gather", outputs, self.device)

    def complete_gradients(self, loss: StepLoss) -> None:
        self._do("sum_gradients", self.replicas)  # PyTorch's class has done it in backward
        for replica in self.replicas[1:]:  # the optimizer clears those of the first one
            replica.zero_grad()
        super().complete_gradients(loss)

    def after_step(self) -> None:
        self._do("broadcast", self.replicas)

    def load_model_state(self, state: dict[str, Any]) -> None:
        super().load_model_state(state)
        self._do("broadcast", self.replicas)

    def where(self) -> str:
        return f"{super().where()}, by {name_of(self.own)}"

    def _do(self, name: str, *values: Any) -> Any:
        """Call the function `name` of the exercises."""
        with to_be_written(self.own, name):
            return exercise(self.own, name)(*values)


class OwnDistributed(Distributed):
    """One process for each GPU; gradients are averaged by `BucketedDDP` of `own`."""

    def __init__(self, config: TrainConfig, launch: Launch, own: ModuleType) -> None:
        super().__init__(config, launch)
        self.own = own

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        self.plain = model.to(self.device)
        with to_be_written(self.own, "BucketedDDP"):
            self.model = exercise(self.own, "BucketedDDP")(self.plain)

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        with to_be_written(self.own, "BucketedDDP"):  # its hooks run during backward
            return super().forward_backward(parts, loss_fn)

    def complete_gradients(self, loss: StepLoss) -> None:
        self.model.sync_gradients()  # PyTorch's class has done it in backward
        super().complete_gradients(loss)

    def where(self) -> str:
        return f"{super().where()}, by {name_of(self.own)}"


def load_own(folder: Path, mode: str) -> ModuleType:
    """The module of `folder` that has the functions for `mode`, imported from its file.

    Raises ValueError if the mode has no exercise, the folder has no such file, or the import fails
    (with the line).
    """
    refuse_other_modes(mode, str(folder))
    path = (folder / f"{FILES[mode]}.py").resolve()
    if not path.is_file():
        raise ValueError(f"{path} does not exist, but mode={mode!r} uses what is written in it.")
    spec = spec_from_file_location(FILES[mode], path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[FILES[mode]] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: a random.py beside it hides nothing
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(blame(error, path) or f"{path}: {error}") from error
    return module


def exercise(own: ModuleType, name: str) -> Callable[..., Any]:
    """A function or class of the exercises.  Raises ValueError if there is none."""
    found = getattr(own, name, None)
    if not callable(found):
        raise ValueError(f"{own.__file__} has no {name}: `multigpu check {name}` explains it.")
    wanted: Callable[..., Any] = found
    return wanted


@contextlib.contextmanager
def to_be_written(own: ModuleType, name: str) -> Iterator[None]:
    """Turn the NotImplementedError of a starter into a message about what to do next."""
    try:
        yield
    except NotImplementedError as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        if place.filename != own.__file__:  # of PyTorch, which has no such operation
            raise
        raise NotWritten(
            f"{name} is not written yet ({name_of(own)}:{place.lineno}). Write it, then "
            f"`multigpu check {own.__name__}.{name}`; or train with PyTorch's, without --with."
        ) from error


def blame(error: BaseException, path: Path) -> str | None:
    """An error with the last line of the exercises that it passed through; None: it did not."""
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename == str(path):  # nothing has run yet
        return f"{path}:{error.lineno}: {(error.text or '').strip()}\n{said}"
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename == str(path):
            return f"{path}:{frame.lineno}, in {frame.name}: {frame.line}\n{said}"
    return None


def name_of(own: ModuleType) -> str:
    """``exercises/data_parallel.py``."""
    path = Path(str(own.__file__))
    return f"{path.parent.name}/{path.name}"


def refuse_other_modes(mode: str, where: str) -> None:
    """Raise ValueError if no exercise can replace what `mode` uses."""
    if mode not in FILES:
        raise ValueError(
            f"mode={mode!r} does not use {where}: choose dp, for example with gpus=2 "
            "(data_parallel.py), or, started with torchrun, ddp (distributed_data_parallel.py)."
        )
