"""What a plan is for: a transformer's sizes and a cluster's rates; known ones are in plan.toml.

model_of("llama-3-8b").parameters / 1e9       # 8.03
cluster_of("H100", gpus=64).network           # 50e9 bytes per second and GPU
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

LINK = 0.8  # share of a link's data sheet that NCCL reaches: 370 of 450 GB/s on 8 H100
LATENCY = 10e-6  # seconds of a collective or a message, however small it is


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
    known = _data()["models"].get(name, {})
    sizes = known | {key: value for key, value in sizes.items() if value is not None}
    sizes.pop("source", None)
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
    for link, rate in {"node_bandwidth": node, "network_bandwidth": network}.items():
        if rate is not None and rate <= 0:
            raise ValueError(f"{link}={rate / 1e9:g}: above 0 GB/s")
    found = Cluster(gpu=name, gpus=gpus, gpus_per_node=gpus_per_node, **_data()["gpus"][name])
    return replace(found, node=node or found.node, network=network or found.network)
