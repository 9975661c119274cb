"""Record what the cost lesson shows of a real GPU: predicted and measured steps.

    python docs/measurements/gpu_steps.py     writes docs/reference/gpu_steps/gpt.csv

A step is forward, backward and AdamW of the course's GPT, in float32, on cuda:0. The first model is
fitted and the others are predicted, as on the page. About a minute of a GPU that does nothing else.
"""

from collections.abc import Callable, Iterator

import torch
from writer import write

from multigpu.scaling.roofline import Roofline, median_seconds, operations
from multigpu.training.models import SmallGPT, next_byte_loss

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


def rows(here: Roofline) -> Iterator[dict[str, str]]:
    """Measure each model, and predict it from the first."""
    fitted = None
    for name, shape in MODELS.items():
        step = step_of(*shape)
        done, seconds = operations(step), median_seconds(step)  # which waits for the GPU
        fitted = fitted or here.fitted(done, seconds)
        bound, predicted = here.seconds(done), fitted.seconds(done)
        yield {
            "model": name,
            "rows × width × depth × block": " × ".join(map(str, shape)),
            "bound (ms)": f"{1e3 * bound:.1f}",
            "predicted (ms)": f"{1e3 * predicted:.1f}",
            "measured (ms)": f"{1e3 * seconds:.1f}",
            "error": f"{predicted / seconds - 1:+.1%}",
        }


def main() -> None:
    """Measure the GPU, then the steps."""
    here, half = Roofline.measure("cuda"), Roofline.measure("cuda", torch.bfloat16)
    about = (
        f"float32 at {here.flops_per_second / 1e12:.1f} TFLOP/s, memory at "
        f"{here.bytes_per_second / 1e12:.2f} TB/s, an operator starts in "
        f"{here.start_seconds * 1e6:.1f} µs; bfloat16 at {half.flops_per_second / 1e12:.0f} TFLOP/s"
    )
    write("gpu_steps/gpt.csv", about, rows(here))


if __name__ == "__main__":
    main()
