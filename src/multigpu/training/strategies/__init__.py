"""The mode pipeline: one model over several GPUs, a stage on each."""
