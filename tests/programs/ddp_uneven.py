"""DistributedDataParallel where ranks have different numbers of batches.

torchrun --nproc_per_node 2 ddp_uneven.py
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 2


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def train(model: DDP, batches: int, device: int, uneven: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator(device="cuda").manual_seed(100 + device)
    losses = []
    with model.join(throw_on_early_termination=False) if uneven else contextlib.nullcontext():
        for step in range(batches):
            x = torch.randn(32, 6, device=device, generator=generator)
            accumulates = (step + 1) % ACCUMULATE != 0 and not uneven
            with model.no_sync() if accumulates else contextlib.nullcontext():
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                (loss / (1 if uneven else ACCUMULATE)).backward()
            if not accumulates:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def check_same(model: DDP) -> None:
    """All ranks have the same parameters."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    assert all(torch.equal(flat, other) for other in others)


def main() -> None:
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)

    synced = nn.SyncBatchNorm.convert_sync_batchnorm(make_model()).cuda()
    model = DDP(synced, device_ids=[device])
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    losses = train(model, 40, device, uneven=False)
    check_same(model)
    assert losses[-1] < losses[0] / 4, losses
    means = [torch.empty(16, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(means, synced[1].running_mean)
    assert all(torch.equal(mean, means[0]) for mean in means)

    model = DDP(make_model().to(device), device_ids=[device], broadcast_buffers=False)
    losses = train(model, 20 + 5 * rank, device, uneven=True)
    check_same(model)
    assert losses[-1] < losses[0], losses

    model = DDP(make_model().to(device), device_ids=[device])
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=4)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, 20, device, uneven=False)
    check_same(model)
    if rank == 0:
        print("ranks with different numbers of batches end with the same weights")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
