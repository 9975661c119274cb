"""Record what the sharding lesson shows of freed memory: the largest batch of ddp, zero2, zero3.

    python docs/record_largest_batch.py     writes docs/reference/largest_batch/text.csv

A GPT of 4.8 million parameters learns from the texts of the task `text`, on 4 ranks of which each
has 96 MiB. The largest batch of each mode is found by trying; then the modes are timed in turn.
About three minutes of two free cores. The page shows what is stored.
"""

import csv
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median

from largest_batch import Largest, largest_batches

from multigpu.scaling import workload_of
from multigpu.scaling.comparison import Machine, load_here
from multigpu.scaling.formulas import memory_per_gpu
from multigpu.training.models import SmallGPT

TARGET = Path(__file__).resolve().parent / "reference" / "largest_batch" / "text.csv"
RANKS, MEMORY, ROUNDS = 4, "96 MiB", 5
STAGES = {"ddp": 0, "zero2": 2, "zero3": 3}
MODEL = partial(SmallGPT, width=256, depth=6)


def line_of(found: Largest, baseline: Largest, parameters: int) -> dict[str, object]:
    """One row of the record."""
    freed = baseline.common_peak - found.common_peak
    stages = (0, STAGES[found.mode])
    first, last = (
        memory_per_gpu(parameters, stage=stage, gpus=RANKS, precision="float32").total
        for stage in stages
    )
    return {
        "mode": found.mode,
        "rows per rank": found.rows,
        "batch size": found.batch_size,
        "peak bytes": found.peak,
        "peak bytes with ddp's rows": found.common_peak,
        "freed": freed,
        "freed by formula": first - last,
        "steps per epoch": -(-found.epoch_rows // found.batch_size),
        "seconds per step": f"{found.step_seconds:.3f}",
        "seconds per epoch": f"{found.epoch_seconds:.1f}",
        "seconds of each round": " ".join(f"{seconds:.3f}" for seconds in found.rounds),
        "ddp's epoch by this one": f"{ratio(found, baseline):.3f}",
    }


def ratio(found: Largest, baseline: Largest) -> float:
    """How many times as long ddp's epoch takes: the median of the rounds' ratios."""
    pace = found.batch_size / baseline.batch_size
    pairs = zip(baseline.rounds, found.rounds, strict=True)
    return median(pace * ddp / own for ddp, own in pairs)


def main() -> None:
    """Find, time and write."""
    load = load_here()
    parameters = sum(parameter.numel() for parameter in MODEL().parameters())
    workload = replace(workload_of("text"), model=MODEL)
    found = largest_batches(workload, list(STAGES), ranks=RANKS, memory=MEMORY, repeats=ROUNDS)
    rows = [line_of(each, found[0], parameters) for each in found]
    TARGET.parent.mkdir(exist_ok=True)
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        file.write(
            f"# {date.today()}, {Machine.here()}, load {load} before it began; {RANKS} gloo "
            f"ranks on the CPU, {MEMORY} each, {parameters:,} parameters, float32, AdamW\n"
        )
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(TARGET.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
