"""``multigpu plan``: memory and time of a training step on a cluster that you need not have."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from multigpu.commands.showing import as_options, console

if TYPE_CHECKING:
    from multigpu.scaling.layouts import Found
    from multigpu.scaling.plan import Plan

SIZES = {
    "layers": "layers of the model",
    "hidden": "width of the model",
    "heads": "attention heads",
    "kv_heads": "heads of keys and values (default: as many)",
    "ffn": "width inside the MLP (default: 4 × hidden)",
    "vocab": "tokens in the vocabulary",
    "seq": "tokens in a sequence",
}
LAYOUT = {
    "dp": "data parallel replicas (default: the GPUs that the others leave)",
    "tp": "tensor parallel GPUs",
    "pp": "pipeline stages",
    "cp": "context parallel GPUs, which divide each sequence",
    "zero": "ZeRO stage, 0 to 3; 3 is FSDP",
    "micro_batch": "sequences of one forward on one replica",
    "stages_per_rank": "with --schedule interleaved",
}
GROUPS = ("dp", "tp", "pp", "cp")
WORDS = ("recompute", "schedule", "attention", "precision")


def plan_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu plan``."""
    from multigpu.scaling.plan import ATTENTION, PRECISIONS, RECOMPUTE, SCHEDULES, gpus_known, models

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        f"{parser.description}\n\nWithout --dp, --tp, --pp and --cp it searches for the fastest "
        "layout that fits.\n"
        "model_tflops_per_gpu counts as Megatron-LM 2021 does: three forwards per step, four with\n"
        "--recompute full. hardware_tflops_per_gpu counts all that is computed, and mfu never\n"
        "counts what is recomputed. memory_gib_per_gpu is that of the GPU that holds most."
    )
    parser.add_argument("--model", default="", metavar="NAME", help=f"{', '.join(models())}")
    for name, says in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=says)
    parser.add_argument(
        "--gated",
        action=argparse.BooleanOptionalAction,
        help="whether the MLP is SwiGLU, with three matrices, and the output layer has its own "
        "weights (default: unless ffn is 4 × hidden and kv-heads equals heads, as in GPT)",
    )
    parser.add_argument("--gpu", default="H100", metavar="NAME", help=", ".join(gpus_known()))
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="GPUs in all")
    parser.add_argument("--gpus-per-node", type=int, default=8, metavar="N", help="default: 8")
    for name, says in (("node", "to GPUs of its node"), ("network", "to other nodes")):
        parser.add_argument(
            f"--{name}-bandwidth",
            type=float,
            metavar="GB/S",
            help=f"of one GPU {says}, in one direction (default: the GPU's data sheet)",
        )
    parser.add_argument("--global-batch", type=int, required=True, metavar="N", help="sequences")
    for name, says in LAYOUT.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=says)
    known = (RECOMPUTE, SCHEDULES, ATTENTION, PRECISIONS)
    for name, choices in zip(WORDS, known, strict=True):
        parser.add_argument(f"--{name}", metavar="WORD", help=", ".join(choices))
    parser.add_argument("--json", action="store_true", help="print the plan as JSON only")


def run_plan(options: argparse.Namespace) -> int:
    """Plan or search, and show it.  Returns 0, 1 where nothing fits, or 2 for wrong usage."""
    from multigpu.scaling.layouts import search
    from multigpu.scaling.plan import Layout, cluster_of, model_of, plan

    given = {name: getattr(options, name) for name in (*LAYOUT, *WORDS)}
    given = {name: value for name, value in given.items() if value is not None}
    rates = {"node": options.node_bandwidth, "network": options.network_bandwidth}
    try:
        sizes = {name: getattr(options, name) for name in (*SIZES, "gated")}
        model = model_of(options.model, **sizes)
        cluster = cluster_of(
            options.gpu,
            gpus=options.gpus,
            gpus_per_node=options.gpus_per_node,
            **{name: rate and rate * 1e9 for name, rate in rates.items()},
        )
        if not any(name in given for name in GROUPS):
            found = search(model, cluster, global_batch=options.global_batch, **given)
            return show_search(found, as_json=options.json)
        if "dp" not in given:
            others = Layout(**given).gpus
            given["dp"] = max(1, options.gpus // max(1, others))
        planned = plan(model, cluster, Layout(**given), global_batch=options.global_batch)
    except ValueError as error:
        print(as_options(str(error), vars(options)), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(planned.record(), indent=2))
    else:
        show_plan(planned)
    return 0


def show_plan(planned: Plan) -> None:
    """Print one plan: its figures, and tables of the memory and of the step."""
    from multigpu.pictures import Table
    from multigpu.scaling.plan import GIB

    out, step = console(), planned.step_seconds
    billions = planned.model.parameters / 1e9
    mlp = "SwiGLU" if planned.model.gated else "GELU"
    cluster, layout = planned.cluster, planned.layout
    out.print(f"{billions:.2f} billion parameters ({mlp}) on {cluster.gpus} × {cluster.gpu}: {layout}")
    out.print(
        f"ZeRO {layout.zero}, micro-batch {layout.micro_batch}, recompute {layout.recompute}, "
        f"{layout.attention} attention, {layout.schedule}\n"
    )
    memory = tuple((use, f"{size / GIB:.1f} GiB") for use, size in planned.memory.items() if size)
    fits = "fits" if planned.fits else "DOES NOT FIT"
    total = f"Memory: {planned.memory_gib:.1f} of {cluster.gib:g} GiB, {fits}"
    out.print(escape(f"{Table(total, ('use', 'memory'), memory, frozenset({'memory'})).text()}\n"))
    parts = tuple(
        (name, f"{part.seconds:.3f} s", f"{part.exposed:.3f} s", f"{part.exposed / step:.1%}")
        for name, part in planned.parts.items()
        if part.seconds
    )
    columns = ("part", "all of it", "exposed", "of the step")
    out.print(f"{Table(f'Step: {step:.3f} s', columns, parts, frozenset(columns[1:])).text()}\n")
    out.print(
        f"{planned.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, MFU {planned.mfu:.1%}, "
        f"{planned.model_tflops_per_gpu:.0f} model TFLOP/s per GPU "
        f"({planned.hardware_tflops_per_gpu:.0f} with all recomputation)"
    )
    out.print("A prediction: see the page The planner for where it is wrong.", style="dim")


def show_search(found: Found, *, as_json: bool) -> int:
    """Print the best layouts and why each other kind loses."""
    from multigpu.pictures import Table

    if as_json:
        records: list[dict[str, Any]] = [planned.record() for planned in found.best]
        best = records[0] if records else {"fits": False}
        print(json.dumps({**best, "best": records, "others": found.others}, indent=2))
        return 0 if found.best else 1
    out = console()
    if found.best:
        names = ("dp", "tp", "pp", "cp", "zero", "mb", "v", "recompute")
        numbers = (*names[:-1], "GiB", "step", "tokens/s", "MFU")
        rows = []
        for planned in found.best:
            each = planned.layout
            sizes = (each.dp, each.tp, each.pp, each.cp, each.zero, each.micro_batch)
            rows.append((
                *map(str, (*sizes, each.stages_per_rank)), each.recompute,
                f"{planned.memory_gib:.1f}", f"{planned.step_seconds:.2f} s",
                f"{planned.tokens_per_second_per_gpu:,.0f}", f"{planned.mfu:.1%}",
            ))  # fmt: skip
        columns = (*names, "GiB", "step", "tokens/s", "MFU")
        title = f"The best of {found.tried:,} layouts, of which {found.fitting:,} fit"
        out.print(f"{Table(title, columns, tuple(rows), frozenset(numbers)).text()}\n")
        out.print("mb: sequences in a micro-batch. v: stages per rank. tokens/s: per GPU.", style="dim")
    else:
        out.print(f"None of {found.tried:,} layouts fits: use more GPUs, or GPUs with more memory.")
    for kind, reason in found.others.items():
        out.print(f"{kind}: {reason}")
    return 0 if found.best else 1
