"""Memory and step time of a large model on a cluster, by layout.

The numbers are those of ``multigpu.scaling.plan``.
"""

from itertools import product

from course.explorers.cases import choice, grid, key, shades
from multigpu.pictures import palette
from multigpu.scaling.plan import GIB, Layout, plan
from multigpu.scaling.specs import cluster_of, model_of

SUMMARY = "The fastest choices that fit, as a table"
TOKENS = 2**22  # of a step
MODELS = {"llama-3-8b": "Llama 3 8B", "llama-3-70b": "Llama 3 70B", "gpt-175b": "GPT-3 175B"}
CLUSTERS = ("A100-80", "H100")
GPUS = (8, 64, 512)
SIZES = (1, 2, 4, 8)  # of tp and of pp
STAGES = (0, 1, 2, 3)
RECOMPUTE = {"none": "none", "selective": "every 2nd layer", "full": "all layers"}
STRENGTHS = (1.0, 0.72, 0.46, 0.26, 0.12)  # of the first part of a bar, the second, ...
PARTS = ("compute", "tensor", "pipeline", "data", "optimizer")  # of a step


def record(env):
    """Every case in the order of the choices: GiB by use, exposed seconds by part, and the rest."""
    return {
        "title": "Plan a step of 4 million tokens",
        "draw": "plan",
        "choices": [
            choice("model", "Model", MODELS.items(), "llama-3-8b"),
            choice("cluster", "GPU", CLUSTERS, "H100"),
            choice("gpus", "GPUs", GPUS, 64),
            choice("tp", "Tensor parallel (tp)", SIZES, 1),
            choice("pp", "Pipeline stages (pp)", SIZES, 1),
            choice("zero", "ZeRO", STAGES, 1),
            choice("recompute", "Recompute", RECOMPUTE.items(), "selective"),
        ],
        "limits": {name: cluster_of(name, gpus=8).gib for name in CLUSTERS},
        "memory": ["weights", "gradients", "Adam", "activations", "CUDA and NCCL"],
        "parts": PARTS,
        "shades": shades(palette.color(0), STRENGTHS),
        "cases": {
            key(*values): case(*values)
            for values in product(MODELS, CLUSTERS, GPUS, SIZES, SIZES, STAGES, RECOMPUTE)
            if values[2] % (values[3] * values[4]) == 0
        },
    }


def case(model, cluster, gpus, tp, pp, zero, recompute):
    """With flash attention in all of them, so that they can be compared."""
    how = {"tp": tp, "pp": pp, "zero": zero, "recompute": recompute, "attention": "flash"}
    layout, made = Layout(dp=gpus // tp // pp, **how), model_of(model)
    planned = plan(made, cluster_of(cluster, gpus=gpus), layout, global_batch=TOKENS // made.seq)
    exposed = {name: part.exposed for name, part in planned.parts.items()}
    exposed["pipeline"] = exposed["pipeline bubble"] + exposed["pipeline messages"]
    return [
        [round(size / GIB, 1) for size in planned.memory.values()],
        [round(exposed[name], 3) for name in PARTS],
        round(planned.tokens_per_second_per_gpu),
        round(100 * planned.mfu),
        int(planned.fits),
    ]


def tables(record):
    rows = []
    for model, cluster, gpus in product(MODELS, CLUSTERS, GPUS):
        fitting = [
            (tokens, name.split()[3:])
            for name, (_, _, tokens, _, fits) in record["cases"].items()
            if fits and name.startswith(f"{key(model, cluster, gpus)} ")
        ]
        tokens, how = max(fitting, default=(0, ()))
        cells = (*how, f"{tokens:,}") if how else ("nothing fits", "", "", "", "")
        rows.append((f"{MODELS[model]}, {gpus} {cluster}", *cells))
    columns = ("Model and GPUs", "tp", "pp", "ZeRO", "recompute", "tokens/s per GPU")
    return [grid("The fastest layout of those above that fits", columns, rows)]
