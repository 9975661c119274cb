"""Predicts memory and time of a transformer's training step on a cluster, from a layout.

    from multigpu.scaling.plan import Layout, plan
    from multigpu.scaling.specs import cluster_of, model_of
    planned = plan(
        model_of("llama-3-8b"), cluster_of("H100", gpus=64), Layout(dp=64, zero=3), global_batch=128
    )
    planned.tokens_per_second_per_gpu, planned.memory_gib, planned.fits

`plan` is the model of a step: first memory, then time, part by part. The constants are here, in
specs.py and in plan.toml. layouts.py searches for the best layout, and
docs/reference/planner.rst compares predictions with published times.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from multigpu.scaling.formulas import memory_per_gpu
from multigpu.scaling.pipeline_times import bubble
from multigpu.scaling.specs import LATENCY, LINK, Cluster, Model, cluster_of, model_of

# Fitted, each on one published row (published.toml): this one on Megatron's model of 1.7 billion
# parameters, `efficiency` of A100 in plan.toml on its model of 39.1 billion, and that of H100 on
# torchtitan's 8 H100 with torch.compile. All other rows are predictions.
MOVES = 2.0  # how often a pass moves each activation that forward stores: one write and one read

# Assumed, not fitted.
TILE = 128  # columns of a matrix product that are computed together; the last are half empty
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
class Layout:
    """How a model is divided. Neighboring GPUs are in the same tp group, then cp, dp and pp.

    `micro_batch` counts the sequences of one forward on one replica, `zero` is ZeRO's stage, and
    `stages_per_rank` is 2 or more with the interleaved schedule. WORDS has the values of the rest.
    Raises ValueError for a value that no layout has.
    """

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

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            allowed = (0, 1, 2, 3) if name == "zero" else WORDS.get(name)
            if allowed is None and value < 1:
                raise ValueError(f"{name}={value}: at least 1")
            if allowed is not None and value not in allowed:
                choices = ", ".join(map(str, allowed))
                raise ValueError(f"{name}={value}: choose one of {choices}")

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    def __str__(self) -> str:
        all_sizes = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp}
        sizes = [f"{name} {size}" for name, size in all_sizes.items() if size > 1]
        return ", ".join(sizes) or "one GPU"


@dataclass(frozen=True)
class StepPart:
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
    parts: dict[str, StepPart] = field(repr=False)  # exposed seconds add up to the step

    @property
    def step_seconds(self) -> float:
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
    """Raise ValueError for a layout that does not suit the model, the cluster or the batch."""
    dp, tp, pp, cp = layout.dp, layout.tp, layout.pp, layout.cp
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

    Full: all of it (Chen et al. 2016, arXiv 1604.06174). Selective: every second layer, as in
    torchtitan. With standard attention selective means Korthikanti et al. 2022: only the scores are
    repeated, whose matrix product is small. Flash attention repeats those in any case.
    """
    if layout.recompute == "selective":
        return 0.5 if layout.attention == "flash" else 0.0
    return 1.0 if layout.recompute == "full" else 0.0


def stage_weights(model: Model, layout: Layout) -> int:
    """Weights of one GPU on the first or last stage, which have the embedding or the output layer.

    A GPT without a pipeline has one matrix for both.
    """
    tables = 2 if layout.pp == 1 and model.gated else 1
    layers = -(-model.layers // layout.pp)
    return (layers * model.layer_parameters + tables * model.vocab * model.hidden) // layout.tp


def peak(cluster: Cluster, layout: Layout) -> float:
    """FLOP/s of the data sheet; float32 numbers are multiplied as TF32, half as fast."""
    return cluster.flops / (2 if layout.precision == "fp32" else 1)


def memory_by_use(model: Model, layout: Layout, micro_batches: int) -> dict[str, float]:
    """Bytes by use of the first or the last stage, whichever holds more."""
    width = 4 if layout.precision == "fp32" else 2  # bytes of a number
    tokens = layout.micro_batch * model.seq / layout.cp / layout.tp
    stored = model.stored(layout.attention)
    kept = {
        "none": stored,
        "full": 2.0,  # the input of each layer (Korthikanti et al. 2022, section 5)
        "selective": stored / 2 + 1,  # all of one layer, the input of the next
    }[layout.recompute]
    if layout.recompute == "selective" and layout.attention == "standard":
        kept = model.stored("flash")
    # All divided by tp: sequence parallelism (Korthikanti et al. 2022, equation 4).
    layers = -(-model.layers // layout.pp) * tokens * model.hidden * kept * width / 2
    # Backward repeats one layer at a time; its activations come on top.
    repeated = tokens * model.hidden * stored * width / 2 if layout.recompute != "none" else 0.0
    logits = tokens * model.vocab * (width + 4 + 4)  # and in float32 with a gradient

    weights, replicas = stage_weights(model, layout), layout.dp * layout.cp
    # ZeRO-3 holds the others' part of the layer that computes, of the next and of the output layer.
    gathered = (2 * model.layer_parameters + model.vocab * model.hidden) // layout.tp
    state = memory_per_gpu(
        weights,
        stage=layout.zero,
        gpus=replicas,
        precision="float32" if layout.precision == "fp32" else "mixed",
        gathered=min(gathered, weights - weights // replicas) if layout.zero == 3 else 0,
    )
    activations = []
    for stage in (0, layout.pp - 1):
        # Micro-batches whose activations a stage has at once (Narayanan et al. 2021, section 2.2);
        # with v stages per rank (p - 1)/v more (Korthikanti et al. 2022, section 4.2.3).
        more = (layout.pp - 1) / layout.stages_per_rank if layout.stages_per_rank > 1 else 0.0
        at_once = min(micro_batches, layout.pp - stage + more)
        if layout.schedule == "gpipe":
            at_once = micro_batches
        last = stage == layout.pp - 1
        activations.append(at_once * layers + repeated + (logits if last else 0.0))
    return {
        "weights": float(state.parameters + state.gathered),
        "gradients": float(state.gradients),
        "optimizer": float(state.optimizer),
        "activations": max(activations),
        "reserved": float(RESERVED),
    }


def seconds_by_part(
    model: Model, cluster: Cluster, layout: Layout, micro_batches: int
) -> dict[str, StepPart]:
    """The parts of a step, in the order in which the command shows them."""
    dp, tp, pp, cp = layout.dp, layout.tp, layout.pp, layout.cp
    width = 4 if layout.precision == "fp32" else 2  # bytes of a number
    tokens = layout.micro_batch * model.seq / cp
    layers = -(-model.layers // pp)
    # Compute. Matrix products take flops / rate, which is lower if tp leaves narrow matrices.
    # Elementwise operations move each activation MOVES times: a share of 1/h.
    narrow = model.hidden / tp / (model.hidden / tp + TILE / 2)
    rate = peak(cluster, layout) * cluster.efficiency * narrow
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
    context = StepPart(passes * passed, passes * max(0.0, passed - scores))

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
    weights = stage_weights(model, layout)
    gather = cluster.collective_seconds(dp * cp, weights * width, stride=tp)
    if layout.zero == 0:  # all-reduce during the last micro-batch's backward
        data = StepPart(2 * gather, max(0.0, 2 * gather - backward))
    elif layout.zero == 1:  # weights are gathered when the optimizer has ended
        data = StepPart(2 * gather, max(0.0, gather - backward) + gather)
    elif layout.zero == 2:  # gradients leave in every micro-batch
        late = micro_batches * max(0.0, gather - backward)
        data = StepPart((micro_batches + 1) * gather, late + gather)
    else:  # weights come twice in every micro-batch, and gradients leave
        late = max(0.0, gather - forward) + max(0.0, 2 * gather - backward)
        data = StepPart(3 * micro_batches * gather, micro_batches * late)

    owned = weights / (dp * cp if layout.zero else 1)
    optimizer = owned * OPTIMIZER_BYTES / cluster.bytes_per_second
    return {
        "compute": StepPart(compute, compute),
        "tensor": StepPart(tensor, tensor),
        "context": context,
        "pipeline bubble": StepPart(waiting, waiting),
        "pipeline messages": StepPart(sending, sending),
        "data": data,
        "optimizer": StepPart(optimizer, optimizer),
    }


def plan_of(row: SimpleNamespace) -> Plan:
    """The prediction for a row of `published_steps`."""
    model = model_of(row.model) if isinstance(row.model, str) else model_of(**row.model)
    cluster = cluster_of(row.gpu, gpus=row.gpus)
    return plan(model, cluster, Layout(**row.layout), global_batch=row.global_batch)


def predicted(row: SimpleNamespace) -> float:
    """The predicted value of a row, in the unit in which it was published."""
    return float(plan_of(row).record()[row.unit])
