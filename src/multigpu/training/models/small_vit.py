"""A small vision transformer: images as rows of patches, for models that are cut into stages."""

import torch
from torch import Tensor, nn


class SmallViT(nn.Module):
    """A vision transformer for the 8 x 8 digits: 10 classes, 202,186 parameters by default.

    Like ViT (Dosovitskiy et al. 2020) it cuts an image into patches, puts a class token before
    them, and reads the answer from that token. Its layers are PyTorch's own, normalising first. All
    layers are alike, but the patches and the head take less: equal counts are not equal times.
    There is no dropout unless you ask for it.
    """

    def __init__(
        self,
        *,
        patch: int = 2,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        """Patches of `patch` x `patch` pixels; `depth` layers of `width` channels in `heads` heads.

        Raises ValueError if the 8 pixels are not a multiple of `patch`, or `width` not of `heads`.
        """
        super().__init__()
        if 8 % patch:
            raise ValueError(f"patch must divide the 8 pixels of a side, got {patch}")
        if width % heads:
            raise ValueError(f"width must be a multiple of the {heads} heads, got {width}")
        self.patches = nn.Conv2d(1, width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (8 // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                dim_feedforward=4 * width,
                dropout=dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Score each of the 10 digits: (rows, 1, 8, 8) in, (rows, 10) out, larger is likelier."""
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (rows, patches, width)
        token = self.class_token.expand(len(images), -1, -1)
        hidden = torch.cat([token, patches], dim=1) + self.positions  # (rows, 1 + patches, width)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.head(self.norm(hidden[:, 0]))
        return scores
