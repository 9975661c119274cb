"""Checks of ``distributed_data_parallel.average_gradients``: the mean over all ranks."""

import pytest
import torch
import torch.distributed as dist

from multigpu.checking import Wrong, exercise
from multigpu.checking.comparing import Specimen
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .explain_average_gradients import Report
from .known_means import OUT_OF_STEP
from .training import OUT_OF_STEP_KINDS

DTYPES = (torch.float64, torch.float32)


def drive(submission, cases):
    """Give the rank its gradients, have them averaged, and tell what it holds then."""
    results = []
    for models, gradients in cases:
        model = models[dist.get_rank()].to(rank_device())
        named = dict(model.named_parameters())
        for name, gradient in gradients[dist.get_rank()].items():
            named[name].grad = None if gradient is None else gradient.to(rank_device())
        submission.average_gradients(model)
        results.append(
            {
                "gradients": {name: copied(p.grad) for name, p in model.named_parameters()},
                "weights": {name: copied(p) for name, p in model.named_parameters()},
            }
        )
    return results


def copied(tensor):
    return None if tensor is None else tensor.detach().clone()


def models(world, dtype):
    """One model per rank; after different steps their weights would differ, so here they do."""
    return [Specimen(seed=rank).to(dtype) for rank in range(world)]


def gradients_for(world, dtype=torch.float64, missing=None):
    """Gradients by rank and name.  ``missing`` says by name which ranks have none."""
    generator = torch.Generator().manual_seed(world)
    missing = (missing or {}) | {"frozen.weight": range(world)}
    return [
        {
            name: None
            if rank in missing.get(name, ())
            else torch.randn(p.shape, generator=generator, dtype=dtype)
            for name, p in Specimen(seed=0).named_parameters()
        }
        for rank in range(world)
    ]


def check(learner, world, cases):
    """Run all cases (dtype, gradients) on ``world`` ranks."""
    sent = [(models(world, dtype), gradients) for dtype, gradients in cases]
    answer = learner.run_ranks(drive, sent, world=world)
    for i, (_, gradients) in enumerate(cases):
        Report(gradients, sent[i][0], [own[i] for own in answer.results], answer.where).examine()


@exercise("distributed_data_parallel.average_gradients")
@pytest.mark.parametrize("world", [3, 4, 2, 1])
def test_mean_over_ranks(learner, world):
    check(learner, world, [(dtype, gradients_for(world, dtype)) for dtype in DTYPES])


@exercise("distributed_data_parallel.average_gradients")
@pytest.mark.parametrize("world", [3, 4])
def test_parameters_that_some_ranks_do_not_use(learner, world):
    """Missing on one rank, on all but one, on rank 0, on all; then all over again with none."""
    missing = {
        "encode.bias": [world - 1],
        "decode.bias": range(1, world),
        "encode.weight": [0],
        "gain.scale": range(world),
    }
    cases = [(torch.float64, gradients_for(world, missing=missing))]
    cases += [(torch.float64, gradients_for(world))]
    try:
        check(learner, world, cases)
    except Refused as refused:
        if refused.finding is None or refused.finding.kind not in OUT_OF_STEP_KINDS:
            raise
        raise Wrong(
            "average_gradients.unused_out_of_step",
            expected="every rank makes the same calls in the same order, also for a parameter that"
            " only some ranks used",
            came=refused.finding.message,
            usually=OUT_OF_STEP,
            status=refused.status,
        ) from None
