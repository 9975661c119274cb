"""Predictions for more GPUs: bytes on links, time of a step, memory by ZeRO stage.

    amdahl(0.05, 8)                             # 5.9 times as fast at most
    all_reduce_bytes(4, 100e6) / 1e6            # 150 MB from each rank
    memory_per_gpu(7_500_000_000, stage=2, gpus=64).total / 1e9    # 16.6 GB

Times are lower bounds: a real link has an overhead for each message, and is rarely as fast as its
data sheet. Compare them with measurements: `held_by` counts the bytes of a model in training,
`sent_by_kind` those of a run's trace. The bubble of a pipeline is in pipeline_times.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from multigpu.ranks.calls import Call
    from multigpu.ranks.trace import Trace


def amdahl(serial_share: float, gpus: int) -> float:
    """The largest speed-up of a fixed amount of work if `serial_share` of it cannot be divided.

    Strong scaling. Source: Amdahl 1967, AFIPS, volume 30.
    """
    if not 0 <= serial_share <= 1:
        raise ValueError(f"serial_share={serial_share!r}: a share is between 0 and 1")
    return 1 / (serial_share + (1 - serial_share) / gpus)


def all_reduce_bytes(world_size: int, size: float) -> float:
    """Bytes that each rank sends, and receives, in a ring all-reduce of `size` bytes.

    2 (n - 1) / n · size: 1 × with 2 ranks, 1.5 × with 4, never 2 ×.
    Source: Patarasuk and Yuan 2009, Journal of Parallel and Distributed Computing 69.
    """
    return 2 * (world_size - 1) / world_size * size


def all_reduce_seconds(
    world_size: int, size: float, *, bandwidth: float, latency: float = 0.0
) -> float:
    """Seconds of a ring all-reduce of `size` bytes over links of `bandwidth` bytes per second.

    `bandwidth` counts one direction, since a ring sends and receives at once. Each of the
    2 (n - 1) messages of a rank costs `latency` seconds on top (the alpha-beta model: Thakur et al.
    2005, International Journal of High Performance Computing Applications 19).
    """
    messages = 2 * (world_size - 1)
    return all_reduce_bytes(world_size, size) / bandwidth + messages * latency


def step_seconds(
    compute: float,
    gpus: int,
    *,
    gradients: float,
    bandwidth: float,
    latency: float = 0.0,
    overlap: float = 0.0,
) -> float:
    """Seconds of one step with `gpus` GPUs when one GPU computes the same batch in `compute` s.

    The computing is divided by the number of GPUs, the bytes of `gradients` are not. `overlap` is
    the share of the computing during which gradients can travel: 0 is a DDP that waits until
    backward has ended; with DDP's buckets it is most of backward. Communication during that time
    costs nothing extra.
    """
    working = compute / gpus
    talking = all_reduce_seconds(gpus, gradients, bandwidth=bandwidth, latency=latency)
    return working + max(0.0, talking - overlap * working)


def communication_share(
    compute: float, gpus: int, *, gradients: float, bandwidth: float, latency: float = 0.0
) -> float:
    """The share of a step that goes into the all-reduce if nothing overlaps (see step_seconds)."""
    whole = step_seconds(compute, gpus, gradients=gradients, bandwidth=bandwidth, latency=latency)
    return 1 - compute / gpus / whole


def sent_by_kind(trace: Trace, rank: int = 0) -> dict[str, float]:
    """Bytes that a rank sends for each kind of call, if collectives use a ring.

    A collective with a root passes its bytes on from rank to rank; the mean over ranks is used.
    """
    sent: dict[str, float] = defaultdict(float)
    for call in trace.of(rank):
        if size := ring_bytes(call):
            sent[call.op] += size
    return dict(sent)


def ring_bytes(call: Call) -> float:
    """Bytes that one rank sends in a ring for a call: n ranks, b bytes of input.

    All-reduce 2 (n - 1)/n · b; reduce-scatter, and on average a collective with a root, half of it;
    all-gather, whose input is one part of n, (n - 1) · b. A send is its own bytes.
    """
    ranks = len(call.members)
    if call.op == "send":
        return call.bytes
    if call.op == "all_reduce":
        return all_reduce_bytes(ranks, call.bytes)
    if call.op == "all_gather":
        return (ranks - 1) * call.bytes
    if call.op in ("reduce_scatter", "reduce", "all_to_all", "broadcast", "scatter", "gather"):
        return (ranks - 1) / ranks * call.bytes
    return 0.0


STAGES = (0, 1, 2, 3)
STATE = {"sgd": 0, "momentum": 1, "adam": 2}  # float32 numbers that it keeps for a parameter
PRECISIONS = ("float32", "mixed")


@dataclass(frozen=True)
class MemoryByUse:
    """Bytes of the GPU that holds most. Activations and buffers are not included."""

    parameters: int
    gradients: int
    optimizer: int  # its state; in mixed precision with the float32 copy of the parameters
    gathered: int = 0  # parameters of others that are there for the moment

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """The bytes by name without zeros, for a picture."""
        return {name: size for name, size in asdict(self).items() if size}


def memory_per_gpu(
    parameters: int,
    *,
    stage: int,
    gpus: int,
    optimizer: str = "adam",
    precision: str = "mixed",
    gathered: int = 0,
) -> MemoryByUse:
    """Bytes that one of `gpus` GPUs holds of a model of `parameters` trained elements.

    * `stage`: 0 is DDP, where every GPU holds all. Stage 1 divides the optimizer's state among the
      GPUs, stage 2 also the gradients, stage 3 also the parameters.
    * `optimizer`: "sgd", "momentum" or "adam" (AdamW is the same): 0, 1 or 2 numbers per parameter.
    * `precision`: "float32", or "mixed" as in the paper: parameters and gradients of 2 bytes, and
      a float32 copy of the parameters in the optimizer. (PyTorch's autocast keeps parameters and
      gradients in float32, so that one is "float32" here.)
    * `gathered`: elements of other GPUs' parameters that are gathered at one moment: with stage 3
      one or two layers, with `fully_shard(…, reshard_after_forward=False)` all the others.

    Raises ValueError for a stage, optimizer or precision that is none of these.
    Source: Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054 (figure 1, sections 5 and 7).
    """
    if stage not in STAGES:
        raise ValueError(f"stage={stage!r}: choose one of 0, 1, 2, 3")
    if optimizer not in STATE:
        raise ValueError(f"optimizer={optimizer!r}: choose one of {', '.join(STATE)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: choose one of {', '.join(PRECISIONS)}")
    part = -(-parameters // gpus)  # the first GPU's; the last may have less
    number = 2 if precision == "mixed" else 4
    kept = 4 * STATE[optimizer] + (4 if precision == "mixed" else 0)
    return MemoryByUse(
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
    passes = 3 if stage == 3 else 2
    ring = 1.0 if gpus is None else (gpus - 1) / gpus
    return passes * ring * parameters * bytes_per_element


def held_by(model: nn.Module, optimizer: Optimizer) -> MemoryByUse:
    """Bytes that this process holds of a model in training: the measured values for the formulas.

    Storages are counted, each once: a view holds all of the tensor that it is a part of. Of a
    sharded tensor (DTensor) this rank's part counts. Gradients are those of the model and of the
    optimizer's parameters; call this while they exist, before `zero_grad`.
    """
    from torch import Tensor  # late: the formulas need no torch, and the site's build is quick

    seen: set[int] = set()

    def new_bytes(values: Iterable[Any]) -> Iterator[int]:
        for value in values:
            if not isinstance(value, Tensor):
                continue
            part = value.to_local() if hasattr(value, "to_local") else value
            storage = part.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                yield storage.nbytes()

    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    weights = [*model.parameters(), *stepped]
    return MemoryByUse(
        parameters=sum(new_bytes(weights)),
        gradients=sum(new_bytes(weight.grad for weight in weights)),
        optimizer=sum(new_bytes(v for state in optimizer.state.values() for v in state.values())),
    )
