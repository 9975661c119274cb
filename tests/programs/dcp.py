"""A checkpoint that all ranks write together, and that another sharding reads again.

torchrun --nproc_per_node 2 dcp.py
"""

import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


class AppState(Stateful):
    """What is saved of a model and its optimizer, in whatever way they are sharded."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
        )


def make(seed: int, shards: bool) -> AppState:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).cuda()
    if shards:
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 6, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return AppState(model, optimizer)


def full(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)

    saved = make(0, shards=True)
    dcp.save({"app": saved}, checkpoint_id=f"{folder[0]}/step-1")
    for shards in (True, False):
        loaded = make(1, shards)
        dcp.load({"app": loaded}, checkpoint_id=f"{folder[0]}/step-1")
        for one, other in zip(saved.model.parameters(), loaded.model.parameters(), strict=True):
            assert torch.equal(full(one), full(other))
        state = loaded.optimizer.state[next(loaded.model.parameters())]
        assert state["step"].item() == 1

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    table = torch.arange(24.0).reshape(4, 6)
    rows = {"table": distribute_tensor(table.cuda(), mesh, [Shard(0)])}
    future = dcp.async_save(rows, checkpoint_id=f"{folder[0]}/table")
    future.result()
    for placement in (Shard(1), Replicate()):
        read = {"table": distribute_tensor(torch.zeros(4, 6).cuda(), mesh, [placement])}
        dcp.load(read, checkpoint_id=f"{folder[0]}/table")
        assert torch.equal(read["table"].full_tensor().cpu(), table)
    dist.barrier()
    if rank == 0:
        files = sorted(os.listdir(f"{folder[0]}/step-1"))
        shutil.rmtree(folder[0])
        print(f"read again in three other shardings: {', '.join(files)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
