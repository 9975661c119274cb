"""A convolutional network with enough to compute that a second GPU, or core, pays."""

from torch import Tensor, nn


class LargeCNN(nn.Module):
    """A convolutional network for the 8 x 8 digits: 10 classes, 372,234 parameters.

    Far more than the digits need. It is here to be measured: an image takes some 9 million
    multiplications forward, a gradient only 1.5 MB on the wire, whatever the batch. Like `SmallCNN`
    it has no BatchNorm and no dropout, so a batch can be split and the answer stays the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, kernel_size=3, padding=1),  # (rows, 64, 8, 8)
            nn.ReLU(),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),  # (rows, 128, 8, 8)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (rows, 128, 4, 4)
            nn.Conv2d(128, 256, kernel_size=3, padding=1),  # (rows, 256, 4, 4)
            nn.ReLU(),
            nn.MaxPool2d(4),  # (rows, 256, 1, 1)
            nn.Flatten(),  # (rows, 256)
        )
        self.classifier = nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
