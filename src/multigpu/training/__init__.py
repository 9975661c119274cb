"""Models to train, one GPU or many."""
