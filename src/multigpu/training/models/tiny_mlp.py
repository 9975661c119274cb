"""A network so small that more than one GPU can only make it slower."""

from torch import Tensor, nn


class TinyMLP(nn.Module):
    """A perceptron with two hidden layers for the digits: 10 classes, 221 parameters.

    It sees four numbers of an image, the mean grey of each quarter, and so it stays poor. It is
    here to be measured: a step takes less time than it takes to tell another GPU about it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(4),  # (rows, 1, 2, 2)
            nn.Flatten(),  # (rows, 4)
            nn.Linear(4, 8),  # 40 parameters
            nn.ReLU(),
            nn.Linear(8, 9),  # 81
            nn.ReLU(),
            nn.Linear(9, 10),  # 100
        )

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        scores: Tensor = self.layers(images)
        return scores
