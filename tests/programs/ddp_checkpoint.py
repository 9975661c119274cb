"""DistributedDataParallel with a checkpoint that a second run goes on from.

torchrun --nproc_per_node 2 ddp_checkpoint.py --epochs 4
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model: nn.Module, data: DataLoader, gpu: int, path: str) -> None:
        self.gpu, self.data, self.path = gpu, data, path
        self.first_epoch, self.losses = 0, []
        model = model.to(gpu)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if os.path.exists(path):
            saved = torch.load(path, map_location=f"cuda:{gpu}")
            model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.first_epoch, self.losses = saved["epoch"] + 1, saved["losses"]
        self.model = DDP(model, device_ids=[gpu], output_device=gpu)

    def run_epoch(self, epoch: int) -> float:
        self.data.sampler.set_epoch(epoch)
        total = torch.zeros(2, device=self.gpu)
        for inputs, targets in self.data:
            inputs, targets = inputs.to(self.gpu), targets.to(self.gpu)
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            total += torch.tensor([loss.item() * len(inputs), len(inputs)], device=self.gpu)
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def save(self, epoch: int) -> None:
        saved = {"model": self.model.module.state_dict(), "epoch": epoch, "losses": self.losses}
        torch.save({**saved, "optimizer": self.optimizer.state_dict()}, self.path)

    def train(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            self.losses.append(self.run_epoch(epoch))
            if self.gpu == 0:
                self.save(epoch)
            dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args()
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    dist.init_process_group(backend="nccl")
    inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(inputs, inputs[:, :2].sin())
    folder = [tempfile.mkdtemp() if gpu == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    weights = []
    for pauses in ([args.epochs], [args.epochs // 2, args.epochs]):  # at once, and in two runs
        path = os.path.join(folder[0], f"{len(pauses)}.pt")
        for epochs in pauses:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
            sampler = DistributedSampler(dataset)
            loader = DataLoader(dataset, args.batch_size, pin_memory=True, sampler=sampler)
            trainer = Trainer(model, loader, gpu, path)
            trainer.train(epochs)
        weights.append(nn.utils.parameters_to_vector(trainer.model.parameters()).detach())
    torch.testing.assert_close(weights[0], weights[1])
    assert trainer.losses[-1] < 0.7 * trainer.losses[0], trainer.losses
    if gpu == 0:
        print(f"resumed training ends with a loss of {trainer.losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
