"""Draw the picture of the README from a run: one nn.DataParallel step on four virtual GPUs.

    python docs/draw_readme.py      writes docs/_static/readme.svg

Every byte in it was metered. A test holds the stored picture against a new run.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from multigpu import virtual_gpus
from multigpu.data import digits
from multigpu.pictures import Picture, Step, steps
from multigpu.training.models import SmallCNN

TARGET = Path(__file__).resolve().parent / "_static" / "readme.svg"
GPUS, ROWS = 4, 64


def draw() -> Picture:
    """Record one step. The parts of DataParallel's forward are methods, so each can be metered."""
    images, labels = digits().train[:ROWS]
    with virtual_gpus(GPUS) as machine:
        record, devices = machine.traffic.record, machine.devices
        model = nn.DataParallel(SmallCNN().to(devices[0]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record() as split:
            chunks, options = model.scatter((images,), {}, model.device_ids)
        with record() as replicate:
            replicas = model.replicate(model.module, model.device_ids)
        with record() as forward:
            outputs = model.parallel_apply(replicas, chunks, options)
        with record() as gather:
            scores = model.gather(outputs, model.output_device)
        loss = F.cross_entropy(scores, labels.to(devices[0]))
        with record() as backward:
            loss.backward()
        with record() as step:
            optimizer.step()
        rows = {chunk.device: f"{len(chunk)} rows" for (chunk,) in chunks}
    out = [copy for copy in backward if copy.source == "cuda:0"]
    back = [copy for copy in backward if copy.source != "cuda:0"]
    return steps(
        [
            Step("1  split the batch", split),
            Step("2  replicate the model", replicate),
            Step("3  forward", forward, rows),
            Step("4  gather the outputs", gather),
            Step("5  backward", out, rows),
            Step("6  sum the gradients", back),
            Step("7  optimizer step", step, {devices[0]: "SGD"}),
        ],
        devices,
        title=f"One nn.DataParallel step: {ROWS} digits, {GPUS} GPUs",
    )


if __name__ == "__main__":
    TARGET.write_text(draw().svg() + "\n", encoding="utf-8")
    print(f"wrote {TARGET}")
