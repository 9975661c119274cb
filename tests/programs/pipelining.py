"""A pipeline: each rank has some layers, microbatches go from rank to rank.

torchrun --nproc_per_node 2 pipelining.py --schedule 1f1b
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

WIDTH, ROWS, MICROBATCHES = 8, 16, 4


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def whole_step(parts: list[nn.Module], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same without a pipeline; leaves gradients in ``parts``."""
    out = nn.Sequential(*parts)(x)
    nn.functional.mse_loss(out, y).backward()
    return out


def run(name: str, rank: int, size: int, device: torch.device) -> float:
    several = name == "interleaved"
    stages = range(rank, 2 * size, size) if several else range(rank, rank + 1)
    count = 2 * size if several else size
    parts = [part.to(device) for part in layers(count)]
    made = [PipelineStage(parts[i], i, count, device) for i in stages]
    x, y = torch.randn(2, ROWS, WIDTH, device=device)
    dist.broadcast(x, 0)
    dist.broadcast(y, 0)
    loss = nn.functional.mse_loss
    if several:
        schedule = ScheduleInterleaved1F1B(made, MICROBATCHES, loss_fn=loss)
    else:
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[name]
        schedule = kind(made[0], MICROBATCHES, loss_fn=loss)
    losses: list[torch.Tensor] = []
    is_last = rank == size - 1
    out = schedule.step(
        *([x] if rank == 0 else []),
        target=y if is_last else None,
        losses=losses if is_last else None,
    )
    plain = [part.to(device) for part in layers(count)]
    expected = whole_step(plain, x, y)
    for index in stages:
        for one, other in zip(parts[index].parameters(), plain[index].parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    if is_last:
        torch.testing.assert_close(out, expected)
        assert len(losses) == MICROBATCHES
    mean = torch.stack(losses).mean().detach() if is_last else torch.zeros((), device=device)
    dist.broadcast(mean, src=size - 1)
    return mean.item()


def main() -> None:
    names = ("gpipe", "1f1b", "interleaved")
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=names, nargs="*", default=names)
    args = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{int(os.environ['LOCAL_RANK'])}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    losses = {name: run(name, rank, size, device) for name in args.schedule}
    dist.barrier()
    assert all(0 < loss < 2 for loss in losses.values()), losses
    if rank == 0:
        print("gradients as without a pipeline: " + ", ".join(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
