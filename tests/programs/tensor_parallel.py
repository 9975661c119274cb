"""Tensor parallel: the two layers of a feed-forward network are cut over the ranks.

torchrun --nproc_per_node 2 tensor_parallel.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.first, self.second = FeedForward(), FeedForward()
        self.head = nn.Linear(8, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(self.embedding(tokens))))


def main() -> None:
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    plain = Net().cuda()
    cut = Net().cuda()
    cut.load_state_dict(plain.state_dict())
    block = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(
        cut,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            **{f"first.{name}": style for name, style in block.items()},
            "second.norm": SequenceParallel(),
            "second.up": ColwiseParallel(input_layouts=Shard(1)),
            "second.down": RowwiseParallel(output_layouts=Shard(1)),
            "second": PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)
            ),
            "head": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    assert cut.first.up.weight.placements == (Shard(0),)
    assert cut.first.up.weight.to_local().shape == (32 // size, 8)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, foreach=False) for m in (plain, cut)]
    for _ in range(3):
        tokens = torch.randint(12, (4, 6), device="cuda")
        dist.broadcast(tokens, src=0)
        loss = nn.functional.cross_entropy(plain(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        with loss_parallel():
            logits = cut(tokens)
            assert isinstance(logits, DTensor)
            same = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            same.backward()
        torch.testing.assert_close(same.full_tensor(), loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    whole = cut.second.down.weight.full_tensor()
    torch.testing.assert_close(whole, plain.second.down.weight.detach(), rtol=1e-3, atol=1e-4)

    rows = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(
        (rows @ rows.T).full_tensor().cpu(), (columns @ columns.T).full_tensor().cpu()
    )
    if rank == 0:
        print(f"cut over {size} GPUs: the same loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
