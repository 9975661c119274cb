"""``compare``: the same training in several modes, measured in one run under equal conditions.

All have the same global batch, initial weights, order of rows and steps. The warm-up is left out,
and the modes take turns, round after round. Memory, bytes and communication are counted in further
runs that are not timed, because counting takes time.

Each measurement runs in new processes, forked from a server that has imported torch and nothing
else. So all candidates begin alike, without warm caches or memory that another run has left. ddp
trains on the ranks of `run_ranks`; single and dp on one such rank alone.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

from multigpu.data.feeds import Batch, Feed, feed_for
from multigpu.devices import current_machine, virtual_gpus
from multigpu.devices.machine import VirtualMachine
from multigpu.ranks import Results, run_ranks
from multigpu.ranks.memory_limit import limited_memory
from multigpu.ranks.trace import Trace
from multigpu.scaling.comparison import (
    ONE_PROCESS,
    Candidate,
    Comparison,
    Machine,
    Row,
    Settings,
    load_here,
)
from multigpu.scaling.formulas import ring_bytes
from multigpu.scaling.roofline import only_roughly
from multigpu.training.config import MODES, OF_PIPELINE, TrainConfig
from multigpu.training.tasks import TASKS
from multigpu.training.trainer import Trainer

MOST = 64  # GPUs; more is a mistyped number, and each ddp rank is a process
EVALUATED = 4096  # rows of the test set: every mode is evaluated
METERED = 2  # steps with the meters on; the optimizer's state is there from the first one on
TRACED = 10  # steps with the trace on
NO_LIMIT = 2**50  # bytes: the meter counts and never refuses
RING_OPS = ("all_reduce", "reduce_scatter", "all_gather")  # gradients, and sharded parameters

Window = tuple[float, float]  # begin and end, time.monotonic


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model and its data, as the Trainer takes them; every run of a comparison trains them.

    `model` is the model itself or a function that makes it; it is called once, and every run
    trains a copy, so all begin with the same weights. `config` gives batch size, optimizer,
    learning rate, precision and seed; a comparison makes a few steps with a constant learning rate,
    so its mode, epochs, schedule, folder and workers are not used.
    """

    name: str
    model: nn.Module | Callable[[], nn.Module]
    train: Any
    test: Any = None
    config: TrainConfig = field(default_factory=TrainConfig)
    loss_fn: Callable[[Any, Any], torch.Tensor] = F.cross_entropy
    metrics: Sequence[str] = ("accuracy",)


def workload_of(name: str, *, batch_size: int | None = None) -> Workload:
    """One of the course's tasks (training/tasks.py), with its own batch size unless one is given.

    Raises ValueError for an unknown name.
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is not a task: choose one of {', '.join(TASKS)}")
    task = TASKS[name]
    train, test = task.load()
    return Workload(
        name=name,
        model=task.model,
        train=train,
        test=test,
        config=task.config(**({} if batch_size is None else {"batch_size": batch_size})),
        loss_fn=task.loss_fn,
        metrics=task.metrics,
    )


def first_rows(data: Any, most: int) -> Dataset[Any] | None:
    """The first rows of a map-style data set; all of any other data."""
    if type(data) is TensorDataset:  # a subclass may change its rows when they are read
        return TensorDataset(*(tensor[:most] for tensor in data.tensors))
    if not hasattr(data, "__getitem__") or len(data) <= most:
        return data  # type: ignore[no-any-return]
    return Subset(data, range(most))


def compare(
    workload: Workload,
    *,
    modes: Sequence[str] = ("single", "dp", "ddp"),
    gpus: Sequence[int] = (1, 2),
    steps: int = 20,
    warmup: int = 5,
    repeats: int = 5,
    threads: int | None = None,
    count: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Measure every mode on every number of GPUs, `repeats` times in turn.

    If there are too few real GPUs, dp gets virtual ones and the ranks of ddp compute on the CPU;
    the result says so. Each CPU rank or virtual GPU has `threads` threads; by default the cores are
    divided by the largest number of GPUs, so that the GPUs of all rows are alike. Without `count`,
    memory, bytes and communication are not counted, which saves a few runs. `tell` is called with
    the progress. Raises ValueError for modes that cannot be compared, RankError if training fails.
    """
    config = workload.config
    candidates, left_out = candidates_of(modes, gpus, batch_size=config.batch_size)
    if repeats < 1:
        raise ValueError(
            f"repeats={repeats}: measure at least one round; 5 rounds give a median and a spread"
        )
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: each rank or virtual GPU needs at least one")
    # Refuses, before anything runs, what each run would refuse.
    Stopwatch(workload.train, steps=steps, warmup=warmup).feed(
        batch_size=config.batch_size, rank=0, world_size=1, seed=0, shuffle=True
    )
    if only_roughly():
        repeats = 1
    machine = Machine.here()
    settings = Settings(
        work=workload.name,
        date=datetime.date.today().isoformat(),
        batch_size=config.batch_size,
        steps=steps,
        warmup=warmup,
        seed=config.seed,
        threads=threads or max(1, machine.cores // max(each.gpus for each in candidates)),
        load=load_here(),
    )
    torch.manual_seed(config.seed)
    model = workload.model if isinstance(workload.model, nn.Module) else workload.model()
    train_only = replace(workload, model=model, test=None)
    whole = replace(train_only, test=first_rows(workload.test, EVALUATED))
    run = partial(_run, threads=settings.threads)
    samples: dict[Candidate, list[list[Sample]]] = {each: [] for each in candidates}
    for number, candidate in in_turn(candidates, repeats):
        tell(f"round {number + 1} of {repeats}: {candidate}")
        # Every round trains the same: one evaluation is enough.
        work = whole if number == repeats - 1 else train_only
        samples[candidate].append(list(run(candidate, work, steps, warmup)))
    rows = []
    for candidate, rounds in samples.items():
        counts: dict[str, Any] = {}
        if count:
            tell(f"counting: {candidate}")
            metered = run(candidate, train_only, METERED, 0, meters=True)
            counts["peak_bytes"] = tuple(peak for sample in metered for peak in sample.peak_bytes)
            if candidate.mode == "dp" and metered[0].copied_bytes is not None:
                counts["traffic"] = metered[0].copied_bytes // METERED
        if count and candidate.ranks > 1:
            traced = run(candidate, train_only, TRACED, warmup, trace=True)
            windows = [sample.window for sample in traced]
            counts["traffic"] = bytes_between_ranks(traced.trace, windows[0], steps=TRACED)
            if candidate.mode != "pipeline":  # whose ranks wait for messages
                counts["communication"] = all_reduce_share(traced.trace, windows)
        rows.append(
            Row(
                candidate,
                where=machine.where(candidate),
                # The slowest rank's time counts: the others wait for it.
                rounds=tuple(max(sample.step_seconds for sample in ranks) for ranks in rounds),
                figures=rounds[-1][0].figures,
                first=median(max(sample.first_seconds for sample in ranks) for ranks in rounds),
                **counts,
            )
        )
    return Comparison(settings, machine, tuple(rows), left_out)


def candidates_of(
    modes: Sequence[str], gpus: Sequence[int], *, batch_size: int
) -> tuple[tuple[Candidate, ...], dict[Candidate, str]]:
    """The candidates to run, with the baseline `single` first; and those left out, with the reason.

    Raises ValueError for an unknown mode, an impossible number of GPUs, and a batch that is not
    divisible by one of `gpus`.
    """
    for mode in modes:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} cannot be compared; choose from {', '.join(MODES)}")
    for count in gpus:
        if not 1 <= count <= MOST:
            raise ValueError(f"{count} GPUs: give numbers from 1 to {MOST}, for example 1,2,4")
    if not modes or not gpus:
        raise ValueError("nothing to compare: give at least one mode and one number of GPUs")
    pointless = {
        "dp": "nn.DataParallel with one GPU calls the model directly, as single does",
        "pipeline": "a pipeline of one stage is single, its batch in parts",
    }
    candidates = [Candidate("single", 1)] if "single" in modes else []
    left_out: dict[Candidate, str] = {}
    parallel = [mode for mode in MODES if mode in modes and mode != "single"]
    for mode, count in itertools.product(parallel, sorted(set(gpus))):
        if count == 1 and mode in pointless:
            left_out[Candidate(mode, count)] = pointless[mode]
            continue
        # In a pipeline every GPU works on the whole batch.
        if mode != "pipeline" and batch_size % count:
            below = batch_size // count * count
            near = f"{below} or {below + count}" if below else f"{count}"
            raise ValueError(
                f"a batch of {batch_size} rows cannot be divided equally by {count} GPUs. The "
                f"batch is the global one, the same in every row. The nearest that can: {near}."
            )
        candidates.append(Candidate(mode, count))
    if not candidates:
        raise ValueError("no candidate is left to compare. " + "; ".join(
            f"{each}: {reason}" for each, reason in left_out.items()
        ))  # fmt: skip
    return tuple(candidates), left_out


def in_turn(candidates: Sequence[Candidate], rounds: int) -> Iterator[tuple[int, Candidate]]:
    """Every candidate once per round; each round begins with the next one.

    So a machine that is busy for a while slows down all of them, and none is always first.
    """
    for number in range(rounds):
        start = number % len(candidates)
        for candidate in (*candidates[start:], *candidates[:start]):
            yield number, candidate


@dataclass(frozen=True)
class Sample:
    """The measurements of one process."""

    step_seconds: float  # the mean of the measured steps
    first_seconds: float  # of the very first step: what the warm-up leaves out
    window: Window  # of the measured steps
    figures: dict[str, float]  # the evaluation after the last step
    peak_bytes: tuple[int, ...] = ()
    copied_bytes: int | None = None  # between devices, all steps together


def _run(
    candidate: Candidate,
    workload: Workload,
    steps: int,
    warmup: int,
    *,
    threads: int,  # of each process; ranks have one each, so it is also that of each GPU
    meters: bool = False,
    trace: bool = False,
) -> Results:
    """One run in new processes: a Sample from each rank."""
    return run_ranks(
        partial(measure, candidate, workload, steps, warmup, meters=meters),
        candidate.ranks,
        timeout=None,  # a long measurement is not a hang
        backend="gloo" if candidate.mode in ONE_PROCESS else None,
        threads=threads,
        trace=trace,
        show=False,
    )


def measure(
    candidate: Candidate, workload: Workload, steps: int, warmup: int, *, meters: bool = False
) -> Sample:
    """Train for `warmup + steps` steps and time the latter; every rank of a candidate calls it.

    `meters` counts memory and, under dp, the bytes between devices; counting takes time, so it is
    done in a run that is not timed.
    """
    with contextlib.ExitStack() as stack:
        real = torch.cuda.device_count()
        if candidate.mode == "dp" and real < candidate.gpus:
            backing = "cuda:0" if real else "cpu"
            stack.enter_context(virtual_gpus(candidate.gpus, backing=backing))
        peak = None
        if meters and candidate.mode != "dp":
            peak = stack.enter_context(limited_memory(NO_LIMIT, rank=dist.get_rank()))
        watch = Stopwatch(workload.train, steps=steps, warmup=warmup)
        trainer = Trainer(
            copy.deepcopy(workload.model),  # type: ignore[arg-type]  # made by compare
            _config_of(candidate, workload.config),
            watch,
            workload.test,
            loss_fn=workload.loss_fn,
            metrics=workload.metrics,
        )
        # The Trainer evaluates a batch before it trains; then the first step was none.
        eval_feed, trainer.eval_feed = trainer.eval_feed, None
        figures = {"loss": float(trainer.fit().last["loss"])}
        if eval_feed is not None:
            trainer.eval_feed = eval_feed
            figures = trainer.evaluate()
        machine, copied = current_machine(), None
        peaks: tuple[int, ...] = () if peak is None else (peak(),)
        if candidate.mode == "dp":
            peaks = tuple(machine.memory(index).peak for index in range(candidate.gpus))
        if meters and isinstance(machine, VirtualMachine):
            copied = sum(c.bytes for c in machine.traffic if c.source != "cpu" != c.target)
        return Sample(
            step_seconds=watch.seconds,
            first_seconds=watch.moments[1] - watch.moments[0],
            window=watch.window,
            figures=figures,
            peak_bytes=peaks,
            copied_bytes=copied,
        )


def short_run(config: TrainConfig, **changes: Any) -> TrainConfig:
    """A configuration for a few steps that write no files."""
    return replace(
        config,
        epochs=1,
        max_steps=None,
        schedule="constant",
        warmup_steps=0,
        monitor="loss",
        patience=None,
        folder=None,
        progress=False,
        **changes,
    )


def _config_of(candidate: Candidate, config: TrainConfig) -> TrainConfig:
    """A pipeline gets at least a micro-batch for each stage; other modes refuse its settings."""
    settings = {name: getattr(TrainConfig, name) for name in OF_PIPELINE}  # their defaults
    if candidate.mode == "pipeline":
        rounds = -(-config.micro_batches // candidate.gpus)
        settings = {"micro_batches": rounds * candidate.gpus}
    gpus = candidate.gpus if candidate.mode == "dp" else None
    return short_run(config, mode=candidate.mode, gpus=gpus, **settings)


class Stopwatch:
    """Training data that records the time of each request: a step ends when the next begins.

    It is a FeedSource, and the Feed of the one rank that it is asked for. The Trainer asks for a
    batch, computes, and asks for the next one. So the time between two requests is a whole step,
    including loading, and the Trainer needs no change.

    One epoch has exactly `warmup + steps` batches. If the data has fewer, it continues with the
    next epoch, without an evaluation in between. A smaller batch at the end of an epoch is left
    out: all steps have the same global batch. `moments` are the times (time.monotonic) at which
    each step began, and the end of the last one: one more than there are steps.
    """

    def __init__(self, data: Any, *, steps: int, warmup: int) -> None:
        if steps < 1 or warmup < 0:
            raise ValueError(
                f"steps={steps}, warmup={warmup}: measure at least one step, after a warm-up of "
                "0 or more"
            )
        self.dataset, self.steps, self.warmup = data, steps, warmup
        self.steps_per_epoch = warmup + steps
        self.moments: list[float] = []

    def feed(
        self, *, batch_size: int, rank: int, world_size: int, seed: int, shuffle: bool
    ) -> Feed:
        """One rank's batches, timed. Raises ValueError if the rows do not fill a batch."""
        self.inner = feed_for(
            self.dataset,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            seed=seed,
            shuffle=shuffle,
        )
        self.batch_size, self.num_rows = batch_size, self.inner.num_rows
        if self.num_rows < batch_size:  # the next full batch would never come
            raise ValueError(
                f"{self.num_rows} rows do not fill a batch of {batch_size}: use a batch size of at "
                f"most {self.num_rows}"
            )
        return self

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """All batches of the measurement. Its end is recorded when no more are requested."""
        every = itertools.chain.from_iterable(map(self.inner.batches, itertools.count(epoch)))
        whole = (batch for batch in every if batch.global_rows == self.batch_size)
        full = itertools.islice(whole, start, None)
        self.moments = []  # a pipeline takes a batch as a sample before it trains
        try:
            for number in range(start, self.steps_per_epoch):
                self.note(settled=number in (0, 1, self.warmup))
                yield next(full)
        finally:
            self.note(settled=True)

    def note(self, *, settled: bool) -> None:
        """Record the time. `settled`: wait first until the GPU has finished its work."""
        if settled and torch.cuda.is_available():
            torch.cuda.synchronize()  # of this process; under dp GPU 0 waits for the others itself
        self.moments.append(time.monotonic())

    @property
    def window(self) -> Window:
        """When the measured steps began and ended."""
        return self.moments[self.warmup], self.moments[-1]

    @property
    def seconds(self) -> float:
        """Seconds of a step: the mean of those after the warm-up."""
        begin, end = self.window
        return (end - begin) / self.steps


def all_reduce_share(trace: Trace, windows: Sequence[Window]) -> float:
    """The share of the time in which a rank has an all-reduce under way, the mean over ranks.

    With sharding: a reduce-scatter or an all-gather, which an all-reduce consists of. `windows[r]`
    is the part of rank r's time that counts. Waiting for a slower rank is part of it, and so is the
    computing of a backward pass at the same time. So it tells how much communication there is to
    hide, not how much is hidden.
    """
    shares = []
    for rank, (begin, end) in enumerate(windows):
        under_way = [
            (max(call.time, begin), min(call.completed or call.end or end, end))
            for call in trace.collectives(rank)
            if call.op in RING_OPS
        ]
        shares.append(length_of_union(under_way) / (end - begin))
    return fmean(shares)


def length_of_union(spans: Iterable[Window]) -> float:
    """How long at least one of the spans lasts; those that end before they begin do not count."""
    total, covered = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


def bytes_between_ranks(trace: Trace, window: Window, *, steps: int) -> int:
    """Bytes that all ranks together send in one step, if each collective uses a ring.

    Gradients, sharded parameters and messages between ranks are counted; integers are not, because
    ranks use them to compare what they do (zero2, zero3). The input of a collective is read from
    rank 0's part of the trace, in the window of rank 0 that holds `steps` steps.
    """
    part = trace.since(window[0], until=window[1])
    sharing = (call for call in part.collectives(0) if call.op in RING_OPS)
    collectives = [call for call in sharing if "int" not in str(call.dtype)]
    shared = sum(len(call.members) * ring_bytes(call) for call in collectives)
    messages = sum(call.bytes for call in part.messages() if call.op == "send")
    return round((shared + messages) / steps)
