"""multigpu: from training on one GPU to training on many."""

from multigpu.gpus import gpus, virtual_gpus

__all__ = ["gpus", "virtual_gpus"]
