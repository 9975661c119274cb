"""Predicts memory and time of a transformer's training step on a cluster, from a layout.

    from multigpu.scaling.plan import Layout, cluster_of, model_of, plan
    planned = plan(
        model_of("llama-3-8b"), cluster_of("H100", gpus=64), Layout(dp=64, zero=3), global_batch=128
    )
    planned.tokens_per_second_per_gpu, planned.memory_gib, planned.fits

`plan` is the model of a step: first memory, then time, part by part. The constants below are all
there are besides the data in plan.toml. layouts.py searches for the best layout, and
docs/reference/planner.rst compares predictions with published times.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from multigpu.scaling.formulas import memory_per_gpu
from multigpu.scaling.pipeline_times import bubble

# Fitted, each on one published row (published.toml): this one on Megatron's model of 1.7 billion
# parameters, `efficiency` of A100 in plan.toml on its model of 39.1 billion, and that of H100 on
# torchtitan's 8 H100 with torch.compile. All other rows are predictions.
MOVES = 2.0  # how often a pass moves each activation that forward stores: one write and one read

# Assumed, not fitted.
LINK = 0.8  # share of a link's data sheet that NCCL reaches: 370 of 450 GB/s on 8 H100
LATENCY = 10e-6  # seconds of a collective or a message, however small it is
LAUNCH = 0.4e-3  # seconds in which one CPU starts the kernels of a layer's forward
OPTIMIZER_BYTES = 30  # read and written by Adam for each parameter in mixed precision
RESERVED = 3 * 2**30  # bytes of the CUDA context and of NCCL's buffers

WORDS = {  # fields of Layout, and what they may be
    "recompute": ("none", "selective", "full"),
    "schedule": ("1f1b", "gpipe", "interleaved"),
    "attention": ("auto", "flash", "standard"),
    "precision": ("bf16", "fp16", "fp32"),
}
GIB = 2**30


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer with `layers` equal layers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int  # the width inside the MLP
    vocab: int
    seq: int
    gated: bool = True  # Llama's SwiGLU with three matrices and an output layer of its own

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "gated" and value < 1:
                raise ValueError(f"{name}={value}: at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden}: not divisible by heads={self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads}: must divide heads={self.heads}")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices: Q, K, V and the output; then two or three of the MLP."""
        key_values = self.hidden * self.kv_heads // self.heads
        return self.hidden * (2 * self.hidden + 2 * key_values + (2 + self.gated) * self.ffn)

    @property
    def parameters(self) -> int:
        """All weights; GPT's output layer shares the embedding's matrix, Llama's does not."""
        return self.layers * self.layer_parameters + (1 + self.gated) * self.vocab * self.hidden

    @property
    def layer_flops(self) -> float:
        """Forward of one layer for one token: 2 per weight, and 4·s·h in attention.

        The whole s × s scores count, although half of them are masked. Source: Narayanan et al.
        2021, arXiv 2104.04473, appendix, and torchtitan's `get_num_flop_per_token`.
        """
        return 2 * self.layer_parameters + 4 * self.seq * self.hidden

    @property
    def head_flops(self) -> float:
        """Forward of the output layer for one token."""
        return 2 * self.vocab * self.hidden

    def stored(self, attention: str) -> float:
        """Bytes that a layer stores for backward, for each token and each of `hidden` numbers.

        In 16 bits: 34 + 5·a·s/h for GPT, with the last term only if attention stores its scores.
        Source: Korthikanti et al. 2022, arXiv 2205.05198, equation 1. Llama has no dropout, and
        stores three results in its MLP.
        """
        mlp = self.ffn / self.hidden
        inputs = 4 + 2 + 2 + 4 * self.kv_heads / self.heads + 2 + 2  # norms, QKV, Q, K V, out, MLP
        scores = 5 * self.heads * self.seq / self.hidden if attention == "standard" else 0.0
        return inputs + (6 * mlp if self.gated else 4 * mlp + 2) + scores  # 2: masks of dropout


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs in equal nodes. Bandwidths are bytes per second of one GPU in one direction."""

    gpu: str
    gpus: int
    gpus_per_node: int
    flops: float
    efficiency: float
    gib: float
    bytes_per_second: float
    node: float  # to the other GPUs of its node
    network: float  # its share of the node's network cards
    source: str = ""

    def collective_seconds(self, ranks: int, size: float, *, stride: int) -> float:
        """Seconds in which `ranks` GPUs, each `stride` from the next, all-gather `size` bytes.

        A reduce-scatter is the same and an all-reduce is both. A ring through several nodes uses
        the network cards of all its GPUs on a node. Source: the ring of formulas.py.
        """
        if ranks == 1:
            return 0.0
        on_node = max(1, min(ranks, self.gpus_per_node // stride))
        link = self.node if ranks <= on_node else min(self.node, on_node * self.network)
        return (ranks - 1) / ranks * size / (link * LINK) + LATENCY


@dataclass(frozen=True)
class Layout:
    """How a model is divided. Neighboring GPUs are in the same tp group, then cp, dp and pp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: int = 0
    micro_batch: int = 1
    recompute: str = "none"
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    attention: str = "auto"  # standard for GPT with full recomputation, else flash
    precision: str = "bf16"

    @property
    def gpus(self) -> int:
        """How many GPUs it needs."""
        return self.dp * self.tp * self.pp * self.cp

    def __str__(self) -> str:
        all_sizes = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp}
        sizes = [f"{name} {size}" for name, size in all_sizes.items() if size > 1]
        return ", ".join(sizes) or "one GPU"


@dataclass(frozen=True)
class Part:
    """Seconds of a step: all of a part, and what nothing else hides."""

    seconds: float
    exposed: float


@dataclass(frozen=True)
class Plan:
    """What `plan` predicts for one layout."""

    model: Model
    cluster: Cluster
    layout: Layout
    global_batch: int
    memory: dict[str, float] = field(repr=False)  # bytes by use, of the GPU that holds most
    parts: dict[str, Part] = field(repr=False)  # exposed seconds add up to the step

    @property
    def step_seconds(self) -> float:
        """The step."""
        return sum(part.exposed for part in self.parts.values())

    @property
    def memory_gib(self) -> float:
        """Memory of the GPU that holds most."""
        return sum(self.memory.values()) / GIB

    @property
    def fits(self) -> bool:
        """Whether the memory of a GPU suffices."""
        return self.memory_gib <= self.cluster.gib

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Throughput."""
        tokens = self.global_batch * self.model.seq
        return tokens / self.step_seconds / self.layout.gpus

    def tflops(self, recomputed: float = 0.0) -> float:
        """TFLOP/s per GPU: three forwards (backward is two) and `recomputed` of the layers'."""
        layers = self.model.layers * self.model.layer_flops
        per_token = (3 + recomputed) * layers + 3 * self.model.head_flops
        return per_token * self.tokens_per_second_per_gpu / 1e12

    @property
    def model_tflops_per_gpu(self) -> float:
        """As Megatron-LM 2021 counts: four forwards with full recomputation, else three.

        96·B·s·l·h²·(1 + s/6h + V/16lh) with, and 72·B·s·l·h²·(1 + s/6h + V/12lh) without. So its
        table can be compared with this number. `mfu` never counts what is recomputed.
        """
        return self.tflops(1.0 if self.layout.recompute == "full" else 0.0)

    @property
    def hardware_tflops_per_gpu(self) -> float:
        """All that is computed, selective recomputation too."""
        return self.tflops(recomputed_share(self.layout))

    @property
    def mfu(self) -> float:
        """Three forwards of peak: as torchtitan and PaLM (arXiv 2204.02311, appendix B) count."""
        return self.tflops() * 1e12 / peak(self.cluster, self.layout)

    def record(self) -> dict[str, Any]:
        """What `multigpu plan --json` prints."""
        return {
            "step_seconds": self.step_seconds,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "model_tflops_per_gpu": self.model_tflops_per_gpu,
            "hardware_tflops_per_gpu": self.hardware_tflops_per_gpu,
            "mfu": self.mfu,
            "memory_gib_per_gpu": self.memory_gib,
            "fits": self.fits,
            "parameters": self.model.parameters,
            "memory_gib": {use: size / GIB for use, size in self.memory.items()},
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "layout": asdict(self.layout),
            "model": asdict(self.model),
            "cluster": asdict(self.cluster),
            "global_batch": self.global_batch,
        }


def plan(model: Model, cluster: Cluster, layout: Layout, *, global_batch: int) -> Plan:
    """Predict one step of `global_batch` sequences.

    Raises ValueError for a layout that does not suit the model, the cluster or the batch.
    """
    check(model, cluster, layout, global_batch)
    if layout.attention == "auto":  # full recomputation of GPT was usual before flash attention
        old = layout.recompute == "full" and not model.gated
        layout = replace(layout, attention="standard" if old else "flash")
    micro_batches = global_batch // (layout.dp * layout.micro_batch)
    memory = memory_by_use(model, layout, micro_batches)
    parts = seconds_by_part(model, cluster, layout, micro_batches)
    return Plan(model, cluster, layout, global_batch, memory, parts)


def check(model: Model, cluster: Cluster, layout: Layout, global_batch: int) -> None:
    """Raise ValueError for what is not possible."""
    dp, tp, pp, cp = layout.dp, layout.tp, layout.pp, layout.cp
    for name in ("dp", "tp", "pp", "cp", "micro_batch", "stages_per_rank"):
        if getattr(layout, name) < 1:
            raise ValueError(f"{name}={getattr(layout, name)}: at least 1")
    for name, known in {**WORDS, "zero": (0, 1, 2, 3)}.items():
        if getattr(layout, name) not in known:
            choices = ", ".join(map(str, known))
            raise ValueError(f"{name}={getattr(layout, name)}: choose one of {choices}")
    if layout.gpus != cluster.gpus:
        raise ValueError(
            f"dp {dp} · tp {tp} · pp {pp} · cp {cp} is {layout.gpus} GPUs, not {cluster.gpus}: "
            "change one of them, or gpus"
        )
    if model.heads % tp or model.ffn % tp:
        raise ValueError(f"tp={tp}: must divide heads={model.heads} and ffn={model.ffn}")
    if model.seq % cp:
        raise ValueError(f"cp={cp}: must divide seq={model.seq}")
    stages = pp * layout.stages_per_rank
    if stages > model.layers:
        raise ValueError(f"pp={pp}: {stages} stages for {model.layers} layers; choose a smaller pp")
    if (layout.schedule == "interleaved") != (layout.stages_per_rank > 1):
        raise ValueError(
            f"schedule={layout.schedule} with stages_per_rank={layout.stages_per_rank}: "
            "interleaved has 2 stages per rank or more, every other schedule has 1"
        )
    step = dp * layout.micro_batch
    if global_batch < 1 or global_batch % step:
        raise ValueError(
            f"global_batch={global_batch}: not divisible by dp · micro-batch = {step}; try "
            f"{max(1, round(global_batch / step)) * step}"
        )
    if layout.stages_per_rank > 1 and (global_batch // step) % pp:
        raise ValueError(
            f"schedule=interleaved: needs a number of micro-batches that pp={pp} divides, not "
            f"{global_batch // step}"
        )


def recomputed_share(layout: Layout) -> float:
    """The share of the layers' forward that backward repeats.

    Full: all of it (Chen et al. 2016, arXiv 1604.06174). Selective: with standard attention what
    Korthikanti et al. 2022 repeat, the softmax of the scores, which is hardly a matrix product.
    Flash attention always repeats that, so there it is every second layer, as in torchtitan.
    """
    return {"none": 0.0, "full": 1.0, "selective": 0.5}[layout.recompute] * (
        layout.recompute != "selective" or layout.attention == "flash"
    )


def peak(cluster: Cluster, layout: Layout) -> float:
    """FLOP/s of the data sheet; float32 numbers are multiplied as TF32, half as fast."""
    return cluster.flops / (2 if layout.precision == "fp32" else 1)


def memory_by_use(model: Model, layout: Layout, micro_batches: int) -> dict[str, float]:
    """Bytes by use of the first or the last stage, whichever holds more."""
    width = 2 if layout.precision == "fp32" else 1
    layers = -(-model.layers // layout.pp)
    tables = model.vocab * model.hidden
    tokens = layout.micro_batch * model.seq / layout.cp
    stored = model.stored(layout.attention)
    kept = {
        "none": stored,
        "full": 2.0,  # the input of each layer (Korthikanti et al. 2022, section 5)
        "selective": model.stored("flash") if layout.attention == "standard" else stored / 2 + 1,
    }[layout.recompute]
    # All divided by tp: sequence parallelism (Korthikanti et al. 2022, equation 4).
    of_layer = kept * width * tokens * model.hidden / layout.tp
    of_whole_layer = stored * width * tokens * model.hidden / layout.tp
    found = []
    for stage in {0, layout.pp - 1}:
        alone = layout.pp == 1
        both = alone and model.gated  # the embedding and an output layer of its own
        weights = (layers * model.layer_parameters + (1 + both) * tables) // layout.tp
        # ZeRO-3 holds the others' part of the layer that computes, of the next and of the head.
        gathered = (2 * model.layer_parameters + tables) // layout.tp
        replicas = layout.dp * layout.cp
        state = memory_per_gpu(
            weights,
            stage=layout.zero,
            gpus=replicas,
            precision="float32" if layout.precision == "fp32" else "mixed",
            gathered=min(gathered, weights - weights // replicas) if layout.zero == 3 else 0,
        )
        # Micro-batches whose activations are there at once (Narayanan et al. 2021, section 2.2)
        in_flight: float = min(micro_batches, layout.pp - stage)
        if layout.schedule == "gpipe":
            in_flight = micro_batches
        elif layout.schedule == "interleaved":
            more = (layout.pp - 1) / layout.stages_per_rank  # (p - 1)/v of a rank's layers
            in_flight = min(micro_batches, layout.pp - stage + more)
        logits = 0.0
        if stage == layout.pp - 1:  # 16 bits, and in float32 with their gradient
            logits = (2 * width + 8) * tokens * model.vocab / layout.tp
        # With recomputation, the activations of the layer whose backward runs come on top.
        again = of_whole_layer if layout.recompute != "none" else 0.0
        found.append(
            {
                "weights": float(state.parameters + state.gathered),
                "gradients": float(state.gradients),
                "optimizer": float(state.optimizer),
                "activations": in_flight * layers * of_layer + again + logits,
                "reserved": float(RESERVED),
            }
        )
    return max(found, key=lambda uses: sum(uses.values()))


def seconds_by_part(
    model: Model, cluster: Cluster, layout: Layout, micro_batches: int
) -> dict[str, Part]:
    """The parts of a step, in the order in which the command shows them."""
    dp, tp, pp, cp = layout.dp, layout.tp, layout.pp, layout.cp
    width = 4 if layout.precision == "fp32" else 2  # bytes of a number
    tokens = layout.micro_batch * model.seq / cp
    layers = -(-model.layers // pp)
    rate = peak(cluster, layout) * cluster.efficiency

    # Compute. Matrix products take flops / rate. Elementwise operations move each activation MOVES
    # times: a share of 1/h, so small models and small tp parts are less efficient.
    moved = MOVES * model.stored(layout.attention) * width / 2 * model.hidden
    token_seconds = model.layer_flops / rate + moved / cluster.bytes_per_second
    layer = max(LAUNCH, tokens * token_seconds / tp)
    head = tokens * model.head_flops / rate / tp
    again = recomputed_share(layout)
    forward, backward = layers * layer + head, layers * (2 + again) * layer + 2 * head
    compute = micro_batches * (forward + backward)

    # Tensor parallelism: an all-reduce after attention and one after the MLP, in forward and in
    # backward (Shoeybi et al. 2019, arXiv 1909.08053, figure 4). Nothing hides them.
    activation = tokens * model.hidden * width
    all_reduce = 2 * cluster.collective_seconds(tp, activation, stride=1)
    tensor = micro_batches * layers * (2 + 2 + 2 * again) * all_reduce

    # Context parallelism: keys and values go around the ring while attention computes (Liu et al.
    # 2023, arXiv 2310.01889); backward sends them and their gradients.
    key_values = 2 * tokens * model.hidden * model.kv_heads / model.heads * width / tp
    passed = cluster.collective_seconds(cp, cp * key_values, stride=tp)
    scores = tokens * 4 * model.seq * model.hidden / tp / rate
    passes = micro_batches * layers * (3 + again)
    context = Part(passes * passed, passes * max(0.0, passed - scores))

    # Pipeline: the bubble, and messages between stages, of which each tp rank sends a part
    # (Narayanan et al. 2021, section 4.1).
    v = layout.stages_per_rank
    idle = bubble(pp, micro_batches, stages_per_rank=v)
    waiting = (compute + tensor + context.exposed) * idle / (1 - idle)
    link = cluster.network if tp * cp * dp >= cluster.gpus_per_node else cluster.node
    message = activation / tp / (link * LINK) + LATENCY
    sending = 2 * v * micro_batches * message if pp > 1 else 0.0

    # Data parallelism: which bytes are sent how often, and what computes meanwhile (Rajbhandari et
    # al. 2020, arXiv 1910.02054, section 7; Li et al. 2020, arXiv 2006.15704, section 3.2.3).
    weights = (layers * model.layer_parameters + model.vocab * model.hidden) / tp
    gather = cluster.collective_seconds(dp * cp, weights * width, stride=tp)
    if layout.zero == 0:  # all-reduce during the last micro-batch's backward
        data = Part(2 * gather, max(0.0, 2 * gather - backward))
    elif layout.zero == 1:  # weights are gathered when the optimizer has ended
        data = Part(2 * gather, max(0.0, gather - backward) + gather)
    elif layout.zero == 2:  # gradients leave in every micro-batch
        late = micro_batches * max(0.0, gather - backward)
        data = Part((micro_batches + 1) * gather, late + gather)
    else:  # weights come twice in every micro-batch, and gradients leave
        late = max(0.0, gather - forward) + max(0.0, 2 * gather - backward)
        data = Part(3 * micro_batches * gather, micro_batches * late)

    owned = weights / (dp * cp if layout.zero else 1)
    optimizer = owned * OPTIMIZER_BYTES / cluster.bytes_per_second
    return {
        "compute": Part(compute, compute),
        "tensor": Part(tensor, tensor),
        "context": context,
        "pipeline bubble": Part(waiting, waiting),
        "pipeline messages": Part(sending, sending),
        "data": data,
        "optimizer": Part(optimizer, optimizer),
    }


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("plan.toml").read_text(encoding="utf-8"))


def known_models() -> tuple[str, ...]:
    """The names that `model_of` knows."""
    return tuple(_data()["models"])


def known_gpus() -> tuple[str, ...]:
    """The names that `cluster_of` knows."""
    return tuple(_data()["gpus"])


def model_of(name: str = "", **sizes: Any) -> Model:
    """A known model, with other sizes where they are given; or one of the sizes alone.

    Without `gated`, a model with ffn = 4 · hidden and as many kv_heads as heads is a GPT.
    Raises ValueError for an unknown name and for a size that is missing.
    """
    if name and name not in known_models():
        raise ValueError(
            f"model={name}: choose one of {', '.join(known_models())}, or give the sizes"
        )
    known = dict(_data()["models"].get(name, {}))
    known.pop("source", None)
    sizes = known | {key: value for key, value in sizes.items() if value is not None}
    if "hidden" in sizes:
        sizes.setdefault("ffn", 4 * sizes["hidden"])
    if "heads" in sizes:
        sizes.setdefault("kv_heads", sizes["heads"])
    if missing := [each.name for each in fields(Model) if each.name not in {*sizes, "gated"}]:
        raise ValueError(f"{', '.join(missing)} missing: give every size, or the name of a model")
    gpt = sizes["ffn"] == 4 * sizes["hidden"] and sizes["kv_heads"] == sizes["heads"]
    return Model(**({"gated": not gpt} | sizes))


def cluster_of(
    gpu: str,
    *,
    gpus: int,
    gpus_per_node: int = 8,
    node: float | None = None,
    network: float | None = None,
) -> Cluster:
    """`gpus` known GPUs; `node` and `network` in bytes per second replace those of the data sheet.

    Raises ValueError for an unknown GPU, and for GPUs that do not fill their nodes.
    """
    name = {known.lower(): known for known in known_gpus()}.get(gpu.lower())
    if name is None:
        raise ValueError(f"gpu={gpu}: choose one of {', '.join(known_gpus())}")
    if gpus < 1 or gpus_per_node < 1 or (gpus > gpus_per_node and gpus % gpus_per_node):
        raise ValueError(
            f"gpus={gpus}: give a multiple of gpus_per_node={gpus_per_node}, or fewer on one node"
        )
    found = Cluster(gpu=name, gpus=gpus, gpus_per_node=gpus_per_node, **_data()["gpus"][name])
    return replace(found, node=node or found.node, network=network or found.network)


def published_steps() -> tuple[SimpleNamespace, ...]:
    """Published throughputs with the layout of each: fields as in published.toml."""
    path = Path(__file__).with_name("published.toml")
    suites = tomllib.loads(path.read_text(encoding="utf-8"))["steps"]
    return tuple(
        SimpleNamespace(**{key: value for key, value in suite.items() if key != "rows"}, **row)
        for suite in suites
        for row in suite["rows"]
    )


def plan_of(row: SimpleNamespace) -> Plan:
    """The prediction for a row of `published_steps`."""
    model = model_of(row.model) if isinstance(row.model, str) else model_of(**row.model)
    cluster = cluster_of(row.gpu, gpus=row.gpus)
    return plan(model, cluster, Layout(**row.layout), global_batch=row.global_batch)


def predicted(row: SimpleNamespace) -> float:
    """The predicted value of a row, in the unit in which it was published."""
    return float(plan_of(row).record()[row.unit])
