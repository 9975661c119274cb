"""Train a small network on handwritten digits, on one GPU or on the CPU.

Run it:     python docs/scripts/one_gpu.py
Read next:  dp.py beside it, the same on every GPU of this machine. The lines that differ say NEW.
"""

import torch
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
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for images, labels in DataLoader(data.train, batch_size=batch_size, shuffle=True):
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
    print(f"accuracy on the test images: {train():.1%}")
