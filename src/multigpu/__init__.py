"""multigpu: from training on one GPU to training on many."""
