"""The parts of mode="pipeline", each with one job; ../pipeline.py puts them together.

micro_batches.py divides a batch, flows.py finds out what travels between stages, runner.py runs
PyTorch's schedule, tied.py keeps the copies of a shared weight alike, whole_state.py brings what
lies on several ranks together for a checkpoint, agreeing.py makes all ranks cut alike.
"""
