"""Train a small network on handwritten digits, with one process for each GPU.

Run it:     torchrun --standalone --nproc_per_node 2 docs/scripts/ddp.py
Read first: one_gpu.py beside it, the same on one GPU. The lines that differ say NEW.
"""

import os  # NEW: torchrun sets environment variables, such as LOCAL_RANK

import torch
from torch import distributed as dist  # NEW: messages between the processes
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel  # NEW: averages the gradients
from torch.utils.data import DataLoader, DistributedSampler  # NEW: divides the rows

from multigpu.data import digits
from multigpu.training.models import SmallCNN


def train(epochs: int = 10, *, batch_size: int = 128) -> float:
    """Train from a fixed seed and return the accuracy on the test images."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # NEW: was cuda:0
    data = digits()
    model = SmallCNN()
    model.to(device)
    model = DistributedDataParallel(model)  # NEW: now all ranks have rank 0's weights
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sampler = DistributedSampler(data.train)  # NEW: rank r of n gets every n-th row
    rows = batch_size // dist.get_world_size()  # NEW: batch_size is the global batch
    for epoch in range(epochs):  # NEW: the next line needs the number
        sampler.set_epoch(epoch)  # NEW: without it each epoch has the same order
        for images, labels in DataLoader(data.train, rows, sampler=sampler):  # NEW: arguments
            images = images.to(device)
            loss = F.cross_entropy(model(images), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        images, labels = data.test.tensors
        guesses = model(images.to(device)).argmax(dim=1).cpu()
    return (guesses == labels).float().mean().item()


if __name__ == "__main__":
    if torch.cuda.is_available():  # NEW: from here on "cuda" is the GPU of this process
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # NEW: one for each process
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")  # NEW: connect
    accuracy = train()  # NEW: every rank must train, so this line is not under the if
    if dist.get_rank() == 0:  # NEW: one line of output is enough
        print(f"accuracy on the test images: {accuracy:.1%}")  # NEW: only on rank 0
    dist.destroy_process_group()  # NEW: close the connections
