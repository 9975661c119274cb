"""A small ResNet in mixed precision, in the manner of the ImageNet example. CUDA only.

torchrun --nproc_per_node 2 amp_imagenet.py --epochs 2 -b 64
"""

import argparse
import os
import time
from enum import Enum

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.backends import cudnn
from torch.utils.data import DataLoader, TensorDataset, distributed

parser = argparse.ArgumentParser(description="training on images")
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=64, type=int, help="of all GPUs together")
parser.add_argument("--lr", default=0.05, type=float)


class Summary(Enum):
    SUM = "sum"
    AVERAGE = "avg"


class Meter:
    def __init__(self, name: str, summary: Summary = Summary.AVERAGE) -> None:
        self.name, self.summary, self.sum, self.count = name, summary, 0.0, 0

    def update(self, value: float, n: int = 1) -> None:
        self.sum, self.count = self.sum + value * n, self.count + n

    def all_reduce(self) -> float:
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device="cuda")
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        return self.sum if self.summary is Summary.SUM else self.sum / self.count


class Block(nn.Module):
    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.down = nn.Conv2d(fan_in, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)) + self.down(x))


def resnet(classes: int) -> nn.Module:
    body = [nn.Conv2d(3, 8, 3, 1, 1), Block(8, 8, 1), Block(8, 16, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))


def images(count: int, seed: int) -> TensorDataset:
    """Noise, in which one quarter of each image is brighter: its class."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 3, 16, 16, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        row, column = 8 * (label // 2), 8 * (label % 2)
        image[label % 3, row : row + 8, column : column + 8] += 2
    return TensorDataset(pixels, labels)


def accuracy(output: torch.Tensor, target: torch.Tensor, topk: tuple[int, ...]) -> list[float]:
    with torch.no_grad():
        _, guesses = output.topk(max(topk), 1, True, True)
        correct = guesses.t().eq(target.view(1, -1).expand(max(topk), -1))
        return [correct[:k].reshape(-1).float().sum(0).mul_(100 / len(target)).item() for k in topk]


def main() -> None:
    args = parser.parse_args()
    assert torch.cuda.is_available(), "this program needs GPUs"
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    torch.manual_seed(0)
    cudnn.benchmark = True
    dist.init_process_group("nccl", init_method="env://")
    per_gpu = args.batch_size // dist.get_world_size()
    model = resnet(4).cuda(gpu).to(memory_format=torch.channels_last)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05).cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
    train_set, val_set = images(512, 1), images(128, 2)
    sampler = distributed.DistributedSampler(train_set)
    val_sampler = distributed.DistributedSampler(val_set, shuffle=False, drop_last=True)
    more = {"num_workers": args.workers, "pin_memory": True, "persistent_workers": True}
    train_loader = DataLoader(train_set, per_gpu, sampler=sampler, drop_last=True, **more)
    val_loader = DataLoader(val_set, per_gpu, sampler=val_sampler, **more)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * len(train_loader)
    )
    scaler = torch.amp.GradScaler("cuda")
    losses, top1, seconds = Meter("Loss"), Meter("Acc@1"), Meter("Time", Summary.SUM)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        start = time.time()
        for batch, target in train_loader:
            batch = batch.cuda(gpu, non_blocking=True, memory_format=torch.channels_last)
            target = target.cuda(gpu, non_blocking=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                output = model(batch)
                assert output.dtype is torch.float16
                loss = criterion(output, target)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            losses.update(loss.item(), len(batch))
        torch.cuda.synchronize()
        seconds.update(time.time() - start)
    model.eval()
    with torch.inference_mode():
        for batch, target in val_loader:
            batch, target = batch.cuda(non_blocking=True), target.cuda(non_blocking=True)
            top1.update(accuracy(model(batch), target, topk=(1, 2))[0], len(batch))
    mean_loss, right = losses.all_reduce(), top1.all_reduce()
    assert seconds.all_reduce() > 0
    assert torch.cuda.max_memory_allocated() > 0
    assert right > 60, right
    if gpu == 0:
        print(f"* Acc@1 {right:.1f}  Loss {mean_loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
