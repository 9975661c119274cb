"""Train a small network on handwritten digits, on every GPU of this machine.

Run it:     python docs/scripts/dp.py
Read first: one_gpu.py beside it, the same on one GPU. The lines that differ say NEW.
"""

import torch
from torch import nn  # NEW: it holds DataParallel
from torch.nn import functional as F
from torch.utils.data import DataLoader

from multigpu.data import digits
from multigpu.training.models import SmallCNN


def train(epochs: int = 10, *, batch_size: int = 128) -> float:
    """Train from a fixed seed and return the accuracy on the test images."""
    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    data = digits()
    model = SmallCNN()
    model = nn.DataParallel(model)  # NEW: without a GPU this changes nothing
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for images, labels in DataLoader(data.train, batch_size=batch_size, shuffle=True):
            # NEW: the rows stay on the CPU, each chunk goes straight to its GPU
            loss = F.cross_entropy(model(images), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        images, labels = data.test.tensors
        guesses = model(images).argmax(dim=1).cpu()  # NEW: here too
    return (guesses == labels).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy on the test images: {train():.1%}")
