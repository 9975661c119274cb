"""A small convolutional network for the handwritten digits."""

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """A small convolutional network for the 8 x 8 digits: 10 classes, 6,090 parameters.

    It has no BatchNorm and no dropout, on purpose: what it computes for a row does not depend on
    the other rows of the batch, so the batch can be split over GPUs and the answer stays the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),  # (rows, 16, 8, 8)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (rows, 16, 4, 4)
            nn.Conv2d(16, 32, kernel_size=3, padding=1),  # (rows, 32, 4, 4)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (rows, 32, 2, 2)
            nn.Flatten(),  # (rows, 128)
        )
        self.classifier = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
