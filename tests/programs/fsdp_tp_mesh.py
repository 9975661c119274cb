"""Two dimensions: tensor parallel inside a pair of ranks, fully_shard across the pairs.

torchrun --nproc_per_node 4 fsdp_tp_mesh.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

TP = 2


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 16, bias=False), nn.Linear(width, 16, bias=False)
        self.down = nn.Linear(16, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 1)).cuda()


def main() -> None:
    local_rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (size // TP, TP), mesh_dim_names=("dp", "tp"))
    dp_rank, dp_size = mesh.get_local_rank("dp"), mesh["dp"].size()
    plain, model = make(), make()
    for block in model[:2]:
        plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    weight = model[0].up.weight
    assert isinstance(weight, DTensor)
    assert weight.device_mesh.ndim == 2
    assert weight.to_local().numel() == 16 * 8 // size

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        x = torch.randn(8 * dp_size, 8, generator=generator)
        y = x.square().mean(1, keepdim=True)
        part = slice(8 * dp_rank, 8 * (dp_rank + 1))
        loss = nn.functional.mse_loss(model(x[part].cuda()), y[part].cuda())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model[:2].parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mesh.get_group("dp"))
        expected = nn.functional.mse_loss(plain(x.cuda()), y.cuda())
        expected.backward()
        torch.testing.assert_close(mean, expected.detach(), rtol=1e-3, atol=1e-5)
        same = nn.utils.clip_grad_norm_(plain[:2].parameters(), 1.0)
        torch.testing.assert_close(norm, same, rtol=1e-3, atol=1e-5)
        reference.step()
        reference.zero_grad()
    state = {name: value.full_tensor() for name, value in model.state_dict().items()}
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-2, atol=1e-3)
    if dist.get_rank() == 0:
        print(f"{dp_size} × {TP} ranks train as one GPU: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
