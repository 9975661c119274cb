"""Whose numbers the shards of an answer to ``sharding.Zero3`` hold when training begins."""

import torch

from multigpu.checking.comparing import largest_difference
from multigpu.checking.verdicts import count

from .zero3_one_process import flat


def explain_start(report, rank, came, expected):
    """The first outputs are wrong: whose numbers are in the shards?"""
    mine = [flat(report.case.model_of(r).parameters()) for r in range(report.n)]
    kept = [flat([shard.value for shard in result["numbers"]]) for result in report.results]
    everything = torch.cat(kept)
    expected = "every rank begins with its shards of rank 0's weights"
    for other in range(1, report.n):
        found = torch.isin(everything, mine[other])
        if found.any():
            raise report.wrong(
                "start_not_shared",
                expected,
                f"{int(found.sum())} elements of the shards are numbers of rank {other}",
                "each rank cut its own module. Before you cut, dist.broadcast(tensor, src=0) brings"
                " rank 0's numbers to all, in place.",
                step=0,
            )
    lost = int((~torch.isin(mine[0], everything)).sum())
    if lost:
        raise report.wrong(
            "numbers_lost",
            "the shards of all ranks together are rank 0's weights",
            f"{lost} of {count(len(mine[0]), 'number')} are in no shard",
            "the last pieces are missing or twice the same. chunk(n) and // leave a rest where n"
            " does not divide: fill up with zeros to a multiple of n first. Small parameters have"
            " fewer elements than there are ranks.",
            step=0,
        )
    raise report.wrong(
        "put_together_wrongly",
        "the first forward gives what rank 0's module gives",
        f"the shards hold all of rank 0's numbers, but on rank {rank} the output"
        f" {largest_difference(came, report.right.steps[0].outputs[rank])}",
        "the pieces are in another order, what fills up was not cut off, or the gathered tensor has"
        " another shape than the parameter.",
        step=0,
    )
