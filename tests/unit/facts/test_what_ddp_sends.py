"""What lesson 6 says of the messages of DistributedDataParallel, read from recorded runs."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multigpu import RankError, run_ranks
from multigpu.ranks import span

pytestmark = pytest.mark.slow


def ran(function, world_size, *arguments):
    return run_ranks(function, world_size, *arguments, backend="gloo", show=False)


def calls_in(trace, label):
    """What rank 0 called in the first span of that name: (op, dtype, bytes)."""
    part = next(span for span in trace.spans if span.rank == 0 and span.label == label)
    inside = (call for call in trace.of(0) if part.start <= call.time <= part.end)
    return [(call.op, call.dtype, call.bytes) for call in inside]


def three_steps(make_model, **options):
    torch.manual_seed(dist.get_rank())
    model = make_model()
    with span("constructor"):
        ddp = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in (1, 2, 3):
        with span(f"forward {step}"):
            loss = ddp(torch.rand(8, 16)).square().mean()
        with span(f"backward {step}"):
            loss.backward()
        with span(f"step {step}"):
            optimizer.step()
    return nn.utils.parameters_to_vector(ddp.parameters()).detach()


def with_batchnorm():
    return nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def twelve_layers():
    """4 MiB and 4 KiB in each layer but the first, whose gradient is the last to be computed."""
    first, wide = nn.Linear(16, 1024), [nn.Linear(1024, 1024) for _ in range(12)]
    first.bias.register_hook(last_gradient)
    return nn.Sequential(first, *wide)


def last_gradient(_):
    with span("last gradient"):
        pass


@pytest.fixture(scope="module")
def batchnorm():
    return ran(three_steps, 2, with_batchnorm)


def test_the_constructor_sends_rank_0s_parameters_and_buffers_once(batchnorm):
    first, *others = batchnorm
    assert all(torch.equal(first, other) for other in others), "seeds differ, weights do not"
    parameters = 16 * 8 + 8 + 8 + 8 + 8 * 4 + 4
    sent = calls_in(batchnorm.trace, "constructor")
    assert ("broadcast", "float32", 4 * (parameters + 16)) in sent  # BatchNorm: mean and variance
    assert ("broadcast", "int64", 8) in sent  # and its counter of batches
    everything = [call for call in batchnorm.trace.of(0) if call.op == "broadcast"]
    assert [call.bytes for call in everything if call.bytes >= 4 * parameters] == [
        4 * (parameters + 16)
    ], "parameters are never broadcast again"


@pytest.mark.parametrize("step", [1, 2, 3])
def test_buffers_are_broadcast_at_each_forward(batchnorm, step):
    sent = calls_in(batchnorm.trace, f"forward {step}")
    assert sent[-2:] == [("broadcast", "float32", 64), ("broadcast", "int64", 8)]
    layout = [("broadcast", "int32")] * 2 if step == 2 else []  # of the rebuilt buckets
    assert [(op, dtype) for op, dtype, _ in sent[:-2]] == layout


def test_the_constructor_compares_shapes_and_names_the_rank_that_differs():
    def other_shape():
        DistributedDataParallel(nn.Linear(2 + dist.get_rank(), 1))

    with pytest.raises(RankError, match="sizes \\[1, 3\\]") as caught:
        ran(other_shape, 2)
    assert caught.value.kind == "exception"
    assert caught.value.ranks == (1,)


def test_weights_that_differ_after_wrapping_stay_different_and_nothing_complains():
    def drift():
        model = nn.Linear(1, 1)
        ddp = DistributedDataParallel(model)
        if dist.get_rank() == 1:
            with torch.no_grad():
                model.weight += 100
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            ddp(torch.ones(3, 1)).mean().backward()
            optimizer.step()
        return model.weight.item()

    low, high = ran(drift, 2)
    assert high - low == pytest.approx(100, abs=1e-3)


@pytest.fixture(scope="module")
def wide():
    return ran(three_steps, 2, twelve_layers).trace


def test_the_first_step_sends_one_bucket_and_the_next_ones_close_at_1_and_25_mib(wide):
    layer = 4 * (1024 * 1024 + 1024)
    first_layer = 4 * (16 * 1024 + 1024)
    assert calls_in(wide, "backward 1") == [("all_reduce", "float32", 12 * layer + first_layer)]
    for step in (2, 3):
        sizes = [size for _, _, size in calls_in(wide, f"backward {step}")]
        assert sizes == [layer, 7 * layer, 4 * layer + first_layer], "it closes when it passes"


def test_buckets_leave_during_backward(wide):
    part = next(s for s in wide.spans if (s.rank, s.label) == (0, "backward 3"))
    reductions = [c for c in wide.of(0) if part.start <= c.time <= part.end]
    computed = [s.start for s in wide.spans if (s.rank, s.label) == (0, "last gradient")]
    early, late = reductions[0].time, reductions[-1].time
    assert early < computed[2] < late, "the first leaves before the last is full"


def test_the_optimizer_step_communicates_nothing(wide):
    assert [calls_in(wide, f"step {step}") for step in (1, 2, 3)] == [[], [], []]


def test_find_unused_parameters_sends_the_same_bytes_one_more_call_and_never_rebuilds(wide):
    walked = ran(lambda: three_steps(twelve_layers, find_unused_parameters=True), 2).trace
    for step in (1, 2, 3):
        plain, more = (calls_in(t, f"backward {step}") for t in (wide, walked))
        assert sum(size for _, kind, size in more if kind == "float32") == sum(
            size for _, _, size in plain
        )
        assert [(op, kind) for op, kind, _ in more if kind != "float32"] == [
            ("all_reduce", "int32")
        ], "which parameters were used on any rank"
    assert calls_in(walked, "backward 1") == calls_in(walked, "backward 3")
    assert calls_in(walked, "forward 2") == [], "no new layout"
