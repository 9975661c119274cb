"""The models of the course. They know nothing of GPUs: you decide where they live."""

from multigpu.training.models.small_cnn import SmallCNN

__all__ = ["SmallCNN"]
