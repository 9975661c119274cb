"""Memory of one GPU by stage of ZeRO, number of GPUs, size of the model and precision.

The numbers are those of ``multigpu.scaling.formulas``.
"""

from course.explorers.cases import choice, grid, key, shades
from multigpu.pictures import palette
from multigpu.pictures.bars import SHADES
from multigpu.scaling.formulas import STAGES, memory_per_gpu, traffic_per_step

SUMMARY = "The memory of one GPU, as tables"
NAMES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
GPUS = (2, 4, 8, 16, 64, 256, 1024)
BILLIONS = (0.1, 1.3, 7.5, 13, 70)
PRECISIONS = {"mixed": 2, "float32": 4}  # bytes of a gradient, and of a weight that travels
LIMITS = (24, 80, 141)  # GB: GPUs that many people have


def record(env):
    """Every case: four bars, of bytes by what they are for."""
    return {
        "title": "What one GPU holds",
        "draw": "memory",
        "choices": [
            choice("stage", "Stage", NAMES, "ZeRO-2", view=True),
            choice("gpus", "GPUs", GPUS, 64),
            choice("billions", "Billion parameters", BILLIONS, 7.5),
            choice("precision", "Precision", PRECISIONS, "mixed"),
            choice("limit", "The GPU has", [(n, f"{n} GB") for n in LIMITS], 80, view=True),
        ],
        "shades": {
            "chosen": shades(palette.color(0), SHADES),
            "other": shades(palette.HOST, SHADES),
        },
        "cases": {
            key(gpus, billions, precision): case(gpus, billions, precision)
            for gpus in GPUS
            for billions in BILLIONS
            for precision in PRECISIONS
        },
    }


def case(gpus, billions, precision):
    return [bar(stage, gpus, billions, precision) for stage in STAGES]


def bar(stage, gpus, billions, precision):
    parameters = round(billions * 1e9)
    memory = memory_per_gpu(parameters, stage=stage, gpus=gpus, precision=precision)
    size = PRECISIONS[precision]
    sent = traffic_per_step(parameters, stage=stage, gpus=gpus, bytes_per_element=size)
    parts = ", ".join(f"{name} {gigabytes(count)}" for name, count in memory.parts.items())
    return {
        "label": NAMES[stage],
        "parts": memory.parts,
        "amount": gigabytes(memory.total),
        "says": f"{NAMES[stage]} on {gpus:,} GPUs: each holds {gigabytes(memory.total)} ({parts}) "
        f"and sends {gigabytes(sent)} in a step.",
    }


def tables(record):
    by_gpus = [
        grid(
            f"7.5 billion parameters, {precision}, Adam",
            ("GPUs", *NAMES),
            [(gpus, *totals(record, gpus, 7.5, precision)) for gpus in GPUS],
        )
        for precision in PRECISIONS
    ]
    by_size = [(size, *totals(record, 64, size, "mixed")) for size in BILLIONS]
    return [*by_gpus, grid("64 GPUs, mixed, Adam", ("Billion parameters", *NAMES), by_size)]


def totals(record, gpus, billions, precision):
    return [bar["amount"] for bar in record["cases"][key(gpus, billions, precision)]]


def gigabytes(count):
    """Bytes as the papers write them, in powers of ten: ``16.6 GB``."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
