"""The reference ring_attention against PyTorch's own attention, for 20 random shapes."""

import importlib.util
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from multigpu import run_ranks

SOLUTION = Path(__file__).parents[3] / "solutions" / "context_parallel.py"
DRAW = random.Random(16)
SHAPES = [  # by world size: batch, heads, local sequence, width
    (world, [tuple(DRAW.randint(1, most) for most in (3, 4, 9, 17)) for _ in range(5)])
    for world in (1, 2, 3, 4)
]


def furthest_apart(shapes, causal):
    """By shape, the largest difference in the output and in the gradients of q, k and v."""
    spec = importlib.util.spec_from_file_location("context_parallel", SOLUTION)
    solution = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(solution)
    rank, world = dist.get_rank(), dist.get_world_size()
    found = []
    for number, (batch, heads, local, width) in enumerate(shapes):
        torch.manual_seed(number)
        shape = batch, heads, world * local, width
        q, k, v, gradient = (torch.randn(shape, dtype=torch.float64) for _ in range(4))
        whole = [t.requires_grad_() for t in (q, k, v)]
        right = scaled_dot_product_attention(*whole, is_causal=causal)
        right = [right, *torch.autograd.grad(right, whole, gradient)]
        mine = [t.detach().chunk(world, dim=2)[rank].requires_grad_() for t in whole]
        out = solution.ring_attention(*mine, causal=causal)
        came = [out, *torch.autograd.grad(out, mine, gradient.chunk(world, dim=2)[rank])]
        parts = [t.chunk(world, dim=2)[rank] for t in right]
        found.append(max(float((a - b).abs().max()) for a, b in zip(came, parts, strict=True)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("world", "shapes"), SHAPES)
def test_it_is_attention_in_one_process(world, shapes, causal):
    ran = run_ranks(furthest_apart, world, shapes, causal, backend="gloo", show=False)
    apart = dict(zip(shapes, map(max, zip(*ran, strict=True)), strict=True))
    assert max(apart.values()) < 1e-12, apart
