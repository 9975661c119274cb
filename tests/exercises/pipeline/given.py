"""The schedules that checks hand to ``pipeline.run``, all of them possible."""


def all_forwards_first(num_stages, num_microbatches, *, reverse=False):
    """GPipe; backwards from the first micro-batch to the last, or the other way round."""
    order = range(num_microbatches)
    row = [("forward", m) for m in order]
    row += [("backward", m) for m in (reversed(order) if reverse else order)]
    return [list(row) for _ in range(num_stages)]


def in_turns(num_stages, num_microbatches, *, order=None):
    """1F1B: a stage takes the next backward as soon as it holds as many as it may.

    ``order`` is the one in which the micro-batches go through all stages.
    """
    order = list(order or range(num_microbatches))
    table = []
    for stage in range(num_stages):
        row, forwards, backwards = [], iter(order), iter(order)
        for held in range(num_microbatches):
            if held >= num_stages - stage:
                row.append(("backward", next(backwards)))
            row.append(("forward", next(forwards)))
        table.append([*row, *(("backward", m) for m in backwards)])
    return table
