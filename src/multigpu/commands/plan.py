"""``multigpu plan``: memory and time of a training step on a cluster that you need not have."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from multigpu.commands.showing import as_options, console, option

if TYPE_CHECKING:
    from multigpu.scaling.layouts import Found
    from multigpu.scaling.plan import Plan

NUMBERS = {  # fields of Model and of Layout
    "layers": "layers of the model",
    "hidden": "width of the model",
    "heads": "attention heads",
    "kv_heads": "heads of keys and values (default: as many)",
    "ffn": "width inside the MLP (default: 4 × hidden)",
    "vocab": "tokens in the vocabulary",
    "seq": "tokens in a sequence",
    "dp": "data parallel replicas (default: the GPUs that the others leave)",
    "tp": "tensor parallel GPUs",
    "pp": "pipeline stages",
    "cp": "context parallel GPUs, which divide each sequence",
    "zero": "ZeRO stage, 0 to 3; 3 is FSDP",
    "micro_batch": "sequences of one forward on one replica",
    "stages_per_rank": "2 or more with --schedule interleaved",
}
SIZES = (*list(NUMBERS)[:7], "gated")
LAYOUT = list(NUMBERS)[7:]
MEANING = """

Without --dp, --tp, --pp and --cp it searches for the fastest layout that fits.
model_tflops_per_gpu counts as Megatron-LM 2021 does: three forwards per step, four with
--recompute full. hardware_tflops_per_gpu counts all that is computed, and mfu never counts
what is recomputed. memory_gib_per_gpu is that of the GPU that holds most."""


def plan_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu plan``."""
    from multigpu.scaling.plan import WORDS
    from multigpu.scaling.specs import known_gpus, known_models

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{parser.description}{MEANING}"
    parser.add_argument("--model", default="", metavar="NAME", help=", ".join(known_models()))
    parser.add_argument("--gpu", default="H100", metavar="NAME", help=", ".join(known_gpus()))
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="GPUs in all")
    parser.add_argument("--gpus-per-node", type=int, default=8, metavar="N", help="default: 8")
    for name, says in (("node", "to GPUs of its node"), ("network", "to other nodes")):
        says = f"of one GPU {says}, in one direction (default: its data sheet)"
        parser.add_argument(f"--{name}-bandwidth", type=float, metavar="GB/S", help=says)
    parser.add_argument("--global-batch", type=int, required=True, metavar="N", help="sequences")
    for name, says in NUMBERS.items():
        parser.add_argument(option(name), type=int, metavar="N", help=says)
    for name, choices in WORDS.items():
        parser.add_argument(option(name), metavar="WORD", help=", ".join(choices))
    parser.add_argument(
        "--gated",
        action=argparse.BooleanOptionalAction,
        help="SwiGLU, and an output layer with weights of its own, as in Llama (default: unless "
        "ffn is 4 × hidden and kv-heads equals heads, as in GPT)",
    )
    parser.add_argument("--json", action="store_true", help="print one object as JSON only")


def run_plan(options: argparse.Namespace) -> int:
    """Plan or search, and show it.  Returns 0, 1 if a search finds nothing, 2 for wrong usage."""
    from multigpu.scaling.layouts import search
    from multigpu.scaling.plan import WORDS, Layout, plan
    from multigpu.scaling.specs import cluster_of, model_of

    given = {name: getattr(options, name) for name in (*LAYOUT, *WORDS)}
    given = {name: value for name, value in given.items() if value is not None}
    batch = options.global_batch
    try:
        model = model_of(options.model, **{name: getattr(options, name) for name in SIZES})
        node, network = options.node_bandwidth, options.network_bandwidth
        cluster = cluster_of(
            options.gpu,
            gpus=options.gpus,
            gpus_per_node=options.gpus_per_node,
            node=node and node * 1e9,
            network=network and network * 1e9,
        )
        if given.keys().isdisjoint(("dp", "tp", "pp", "cp")):
            return show_search(search(model, cluster, global_batch=batch, **given), options.json)
        replicas = max(1, options.gpus // max(1, Layout(**{**given, "dp": 1}).gpus))
        planned = plan(model, cluster, Layout(**{"dp": replicas} | given), global_batch=batch)
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

    out, step, layout = console(), planned.step_seconds, planned.layout
    mlp = "SwiGLU" if planned.model.gated else "GELU"
    out.print(
        f"{planned.model.parameters / 1e9:.2f} billion parameters ({mlp}) on "
        f"{planned.cluster.gpus} × {planned.cluster.gpu}: {layout}\n"
        f"ZeRO {layout.zero}, micro-batch {layout.micro_batch}, recompute {layout.recompute}, "
        f"{layout.attention} attention, {layout.schedule}\n"
    )
    uses = tuple((use, f"{size / GIB:.1f} GiB") for use, size in planned.memory.items() if size)
    fits = "fits" if planned.fits else "DOES NOT FIT"
    title = f"Memory: {planned.memory_gib:.1f} of {planned.cluster.gib:g} GiB, {fits}"
    out.print(f"{Table(title, ('use', 'memory'), uses, frozenset({'memory'})).text()}\n")
    parts = tuple(
        (name, f"{part.seconds:.3f} s", f"{part.exposed:.3f} s", f"{part.exposed / step:.1%}")
        for name, part in planned.parts.items()
        if part.seconds
    )
    columns = ("part", "all of it", "exposed", "of the step")
    out.print(f"{Table(f'Step: {step:.3f} s', columns, parts, frozenset(columns[1:])).text()}\n")
    out.print(
        f"{planned.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, MFU {planned.mfu:.1%}, "
        f"{planned.model_tflops_per_gpu:.0f} model TFLOP/s per GPU"
    )


def show_search(found: Found, as_json: bool) -> int:
    """Print the best layouts and why each other kind loses."""
    from multigpu.pictures import Table

    if as_json:
        records = [planned.record() for planned in found.best]
        best = records[0] if records else {"fits": False}
        print(json.dumps({**best, "best": records, "others": found.others}, indent=2))
        return 0 if found.best else 1
    out = console()
    names = ("dp", "tp", "pp", "cp", "zero", "micro_batch", "stages_per_rank", "recompute")
    short = {"micro_batch": "mb", "stages_per_rank": "v"}
    columns = (*(short.get(name, name) for name in names), "GiB", "step", "tokens/s", "MFU")
    rows = [
        (
            *(str(getattr(planned.layout, name)) for name in names),
            f"{planned.memory_gib:.1f}",
            f"{planned.step_seconds:.2f} s",
            f"{planned.tokens_per_second_per_gpu:,.0f}",
            f"{planned.mfu:.1%}",
        )
        for planned in found.best
    ]
    if found.best:
        title = f"The best of {found.tried:,} layouts, of which {found.fitting:,} fit"
        right = frozenset(columns) - {"recompute"}
        out.print(f"{Table(title, columns, tuple(rows), right).text()}\n")
        out.print("mb: sequences in a micro-batch. v: stages per rank. tokens/s: per GPU.\n")
    else:
        out.print(f"None of {found.tried:,} layouts fits: use more or larger GPUs.\n")
    others = tuple(found.others.items())
    out.print(Table("Why the other kinds lose", ("kind", "its best, or smallest"), others).text())
    return 0 if found.best else 1
