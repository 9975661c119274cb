"""What a rank says of its communication: every kind of call, once, with its sizes and its line."""

import inspect
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multigpu.ranks import run_ranks


def ones(n=4):
    return torch.ones(n) * (dist.get_rank() + 1)


def other():
    return 1 - dist.get_rank()


def twice(n=4):
    return [torch.zeros(n), torch.zeros(n)]


def if_first(value):
    return value if dist.get_rank() == 0 else None


def batch():
    operations = [
        dist.P2POp(dist.isend, ones(), other()),
        dist.P2POp(dist.irecv, ones(), other()),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def functional(name, *arguments):
    import torch.distributed._functional_collectives as functional_collectives

    call = getattr(functional_collectives, name)
    return functional_collectives.wait_tensor(call(ones(), *arguments, dist.group.WORLD))


def send_and_receive(receive):
    if dist.get_rank() == 0:
        dist.send(ones(), 1)
    else:
        receive(ones())


# What is called -> (op, via, bytes) of each call that rank 0 makes.
CALLS = {
    "all_reduce": (lambda: dist.all_reduce(ones()), [("all_reduce", "all_reduce", 16)]),
    "broadcast": (lambda: dist.broadcast(ones(), 0), [("broadcast", "broadcast", 16)]),
    "reduce": (lambda: dist.reduce(ones(), 1), [("reduce", "reduce", 16)]),
    "all_gather": (lambda: dist.all_gather(twice(), ones()), [("all_gather", "all_gather", 16)]),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.zeros(8), ones()),
        [("all_gather", "all_gather_into_tensor", 16)],
    ),
    "gather": (
        lambda: dist.gather(ones(), if_first(twice()), dst=0),
        [("gather", "gather", 16)],
    ),
    "scatter": (
        lambda: dist.scatter(ones(), if_first(twice()), src=0),
        [("scatter", "scatter", 16)],
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(ones(), twice()),
        [("reduce_scatter", "reduce_scatter", 32)],
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(ones(), ones(8)),
        [("reduce_scatter", "reduce_scatter_tensor", 32)],
    ),
    "all_to_all": (
        lambda: dist.all_to_all(twice(2), twice(2)),
        [("all_to_all", "all_to_all", 16)],
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(ones(), ones()),
        [("all_to_all", "all_to_all_single", 16)],
    ),
    "barrier": (lambda: dist.barrier(), [("barrier", "barrier", 0)]),
    "monitored_barrier": (
        lambda: dist.monitored_barrier(),
        [("barrier", "monitored_barrier", 0)],
    ),
    "send": (lambda: send_and_receive(lambda t: dist.recv(t, 0)), [("send", "send", 16)]),
    "batch_isend_irecv": (
        batch,
        [("send", "batch_isend_irecv", 16), ("recv", "batch_isend_irecv", 16)],
    ),
    "all_reduce_coalesced": (
        lambda: dist.all_reduce_coalesced([ones(), ones()]),
        [("all_reduce", "all_reduce_coalesced", 32)],
    ),
    "functional all_reduce": (
        lambda: functional("all_reduce", "sum"),
        [("all_reduce", "all_reduce", 16)],
    ),
    "functional all_gather": (
        lambda: functional("all_gather_tensor", 0),
        [("all_gather", "all_gather_tensor", 16)],
    ),
    "functional reduce_scatter": (
        lambda: functional("reduce_scatter_tensor", "sum", 0),
        [("reduce_scatter", "reduce_scatter_tensor", 16)],
    ),
    "process group method": (
        lambda: dist.group.WORLD.allreduce([ones()]).wait(),
        [("all_reduce", "all_reduce", 16)],
    ),
    "new_group": (
        lambda: dist.all_reduce(ones(), group=dist.new_group([0, 1])),
        [("new_group", "new_group", 0), ("all_reduce", "all_reduce", 16)],
    ),
}

if torch.__version__.startswith("2.11."):
    del CALLS["all_to_all"]  # its gloo has none


@pytest.fixture(scope="module")
def all_calls():
    """The calls of rank 0 for each entry above, from one run."""

    def program():
        marks = []
        for name, (call, _) in CALLS.items():
            marks.append((name, len(inspect.getsource(call))))
            call()
            dist.barrier()
        return dist.get_backend()

    results = run_ranks(program, 2, show=False)
    assert list(results) == ["gloo", "gloo"]
    return iter(results.trace.of(0))


def test_every_kind_of_call_is_recorded_once(all_calls):
    for name, (_, expected) in CALLS.items():
        came = [next(all_calls) for _ in expected]
        assert [(c.op, c.via, c.bytes) for c in came] == expected, name
        end = next(all_calls)
        assert (end.op, end.via) == ("barrier", "barrier"), name
    assert next(all_calls, None) is None


def test_a_group_shows_no_other_group_that_would_do_the_work_unseen():
    def program():
        world = dist.group.WORLD
        shown = [value for name, value in vars(world).items() if not name.startswith("_")]
        shown.append(world._get_backend(torch.device("cpu")))
        return [hasattr(value, "allreduce") and value is not world for value in shown]

    assert not any(run_ranks(program, 2, show=False)[0])


def test_line_root_peer_tag_and_reduce_operation():
    def program():
        dist.all_reduce(ones(), op=dist.ReduceOp.MAX)
        dist.broadcast(ones(), src=1)
        if dist.get_rank() == 0:
            dist.send(ones(), 1, tag=7)
        else:
            dist.recv(ones(), tag=7)

    first = inspect.getsourcelines(program)[1]
    trace = run_ranks(program, 2, show=False).trace
    reduced, broadcast, sent = trace.of(0)
    assert (reduced.reduce, reduced.line, reduced.function) == ("max", first + 1, "program")
    assert reduced.file == __file__
    assert (broadcast.root, broadcast.line, broadcast.reduce) == (1, first + 2, None)
    assert (sent.peer, sent.tag) == (1, 7)
    received = trace.of(1)[-1]
    assert (received.op, received.tag) == ("recv", 7)
    assert received.peer == 0  # it was asked of anybody; the trace says who it was


def test_a_sub_group_names_its_members_by_their_global_ranks():
    def program():
        group = dist.new_group([0, 2])
        if dist.get_rank() != 1:
            dist.broadcast(ones(), src=2, group=group)

    trace = run_ranks(program, 3, show=False).trace
    (call,) = [c for c in trace.of(0) if c.op == "broadcast"]
    assert (tuple(call.members), call.root, call.nth) == ((0, 2), 2, 0)
    assert [c.op for c in trace.of(1)] == ["new_group"]


def test_results_of_async_calls_are_seen_only_after_wait():
    def program():
        tensor, received, sent = ones(), torch.zeros(4), ones()
        work = dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        early = tensor.clone()
        work.wait()
        sending, receiving = dist.isend(sent, other()), dist.irecv(received, other())
        sending.wait()
        dist.barrier()
        early_received = received.clone()
        receiving.wait()
        return early, tensor, early_received, received

    for rank, result in enumerate(run_ranks(program, 2, show=False)):
        early, late, early_received, received = result
        assert early.tolist() == [rank + 1.0] * 4
        assert late.tolist() == [3.0] * 4
        assert early_received.tolist() == [0.0] * 4
        assert received.tolist() == [2.0 - rank] * 4


def test_results_are_seen_through_is_completed_and_futures_too():
    def program():
        polled, chained = ones(), ones()
        work = dist.all_reduce(polled, async_op=True)
        while not work.is_completed():
            pass
        future = dist.all_reduce(chained, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2).wait()
        return polled, doubled

    polled, doubled = run_ranks(program, 2, show=False)[0]
    assert polled.tolist() == [3.0] * 4
    assert doubled.tolist() == [6.0] * 4


def test_a_buffer_that_changes_on_its_way_is_noticed():
    def program():
        whole = torch.zeros(8)
        part = whole[:4]
        work = dist.isend(part, other())
        whole[4:] = 1  # next to what is on its way
        received = torch.zeros(4)
        dist.recv(received, other())
        work.wait()
        work = dist.isend(part, other())
        part += 1
        dist.recv(received, other())
        work.wait()
        return received

    results = run_ranks(program, 2, show=False)
    assert results[0].tolist() == [0.0] * 4  # what was sent is what it was at the start
    sent = [call for call in results.trace.of(0) if call.op == "send"]
    assert [call.changed for call in sent] == [False, True]


def test_any_type_of_number_travels():
    dtypes = [torch.float64, torch.int64, torch.bool, torch.complex64]

    def program():
        tensors = [torch.tensor([1 - dist.get_rank(), 0, 1]).to(dtype) for dtype in dtypes]
        for tensor in tensors:
            dist.broadcast(tensor, 0, async_op=True).wait()
        return [tensor.real.tolist() for tensor in tensors]

    assert run_ranks(program, 2, show=False)[1] == [[1, 0, 1]] * 4


def test_distributed_data_parallel_is_seen():
    def program():
        torch.manual_seed(dist.get_rank())
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        )
        model(torch.randn(3, 4)).sum().backward()
        return [p.grad for p in model.parameters()]

    one, two = results = run_ranks(program, 2, show=False)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    calls = results.trace.of(0)
    assert {call.via for call in calls} == {"DistributedDataParallel"}
    (gradients,) = [call for call in calls if call.op == "all_reduce"]
    assert gradients.bytes == 4 * sum(grad.numel() for grad in one)
    assert gradients.end is not None
    assert any(call.op == "broadcast" for call in calls)


def test_a_call_that_is_the_target_of_a_thread_stands_where_the_thread_was_started():
    def program():
        thread = threading.Thread(target=dist.all_reduce, args=(ones(),))
        thread.start()
        thread.join()

    (call,) = run_ranks(program, 2, show=False).trace.of(0)
    first = inspect.getsourcelines(program)[1]
    assert (call.file, call.line, call.function) == (__file__, first + 2, "program")
    assert call.via == "all_reduce"


def about_the_groups():
    made = [dist.group.WORLD, dist.new_group([0]), dist.new_group([0, 1], group_desc="mine")]
    mine = [group for group in made if isinstance(group, dist.ProcessGroup)]
    return [(group.group_desc, sorted(map(str, group._device_types))) for group in mine]


def test_groups_name_themselves_and_their_devices_as_untraced_ones_do():
    traced, plain = (run_ranks(about_the_groups, 2, show=False, trace=t) for t in (True, False))
    assert list(traced) == list(plain)
    assert traced[0][0][0] == "default_pg"
