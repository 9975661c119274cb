"""Record what the cost lesson shows of a real GPU: predicted and measured steps.

    python docs/record_gpu_steps.py     writes docs/reference/gpu_steps/gpt.csv

A step is forward, backward and AdamW of the course's GPT, in float32, on cuda:0. The first model is
fitted and the others are predicted, as on the page. About a minute of a GPU that does nothing else.
"""

import csv
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

from multigpu.scaling.comparison import Machine
from multigpu.scaling.roofline import Roofline, median_seconds, operations
from multigpu.training.models import SmallGPT, next_byte_loss

TARGET = Path(__file__).resolve().parent / "reference" / "gpu_steps" / "gpt.csv"
MODELS = {  # rows, width, depth, block
    "first": (16, 1024, 8, 512),
    "wide": (8, 2048, 4, 512),
    "deep": (8, 1024, 16, 512),
    "long": (8, 1024, 8, 1024),
}


def step_of(rows: int, width: int, depth: int, block: int) -> Callable[[], None]:
    """One step of a model of this shape."""
    torch.manual_seed(0)
    model = SmallGPT(block=block, width=width, depth=depth, heads=8).to("cuda:0")
    optimizer = torch.optim.AdamW(model.parameters())
    numbers = torch.randint(0, 256, (rows, block), device="cuda:0")

    def step() -> None:
        optimizer.zero_grad()
        next_byte_loss(model(numbers), numbers).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main() -> None:
    """Measure, predict and write."""
    here, fitted, rows = Roofline.measure("cuda"), None, []
    for name, shape in MODELS.items():
        step = step_of(*shape)
        done, seconds = operations(step), median_seconds(step)  # which waits for the GPU
        fitted = fitted or here.fitted(done, seconds)
        bound, predicted = here.seconds(done), fitted.seconds(done)
        rows.append(
            {
                "model": name,
                "rows × width × depth × block": " × ".join(map(str, shape)),
                "bound (ms)": f"{1e3 * bound:.1f}",
                "predicted (ms)": f"{1e3 * predicted:.1f}",
                "measured (ms)": f"{1e3 * seconds:.1f}",
                "error": f"{predicted / seconds - 1:+.1%}",
            }
        )
    TARGET.parent.mkdir(exist_ok=True)
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        half = Roofline.measure("cuda", torch.bfloat16)
        file.write(
            f"# {date.today()}, {Machine.here()}, float32 at {here.flops_per_second / 1e12:.1f} "
            f"TFLOP/s, memory at {here.bytes_per_second / 1e12:.2f} TB/s, an operator starts in "
            f"{here.start_seconds * 1e6:.1f} µs; bfloat16 at {half.flops_per_second / 1e12:.0f} "
            "TFLOP/s\n"
        )
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(TARGET.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
