"""The models of the course. They know nothing of GPUs: you decide where they live."""

from multigpu.training.models.large_cnn import LargeCNN
from multigpu.training.models.next_destination import NextDestination
from multigpu.training.models.small_cnn import SmallCNN
from multigpu.training.models.small_gpt import SmallGPT
from multigpu.training.models.small_vit import SmallViT
from multigpu.training.models.tiny_mlp import TinyMLP

__all__ = ["LargeCNN", "NextDestination", "SmallCNN", "SmallGPT", "SmallViT", "TinyMLP"]
