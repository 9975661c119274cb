"""The traffic meter: every copy between devices, to the byte."""

import torch
from torch import nn
from torch.nn import functional

from multigpu.devices import copy_to
from multigpu.devices.meters import Copy

FLOAT = 4  # bytes


def test_each_copy_is_listed_with_its_ends_and_bytes(machine):
    torch.ones(1000).to("cuda:1").to("cuda:2").cpu()
    assert list(machine.traffic) == [
        Copy("cpu", "cuda:1", 4000),
        Copy("cuda:1", "cuda:2", 4000),
        Copy("cuda:2", "cpu", 4000),
    ]
    assert machine.traffic.total == 12000
    assert len(machine.traffic[1:]) == 2


def test_dtype_changes_before_the_copy_except_on_the_way_to_the_cpu(machine):
    x = torch.ones(10, dtype=torch.float32)
    y = x.to("cuda:0", torch.float64)
    z = y.to("cuda:1", torch.float16)
    z.to("cpu", torch.float64)
    assert [each.bytes for each in machine.traffic] == [80, 20, 20]


def test_every_way_of_copying_is_counted(machine):
    x = torch.ones(3, device="cuda:0")
    with machine.traffic.record() as copies:
        torch.tensor([1.0, 2.0], device="cuda:1")
        torch.zeros(3, device="cuda:1").copy_(x)
        torch.zeros(2, 3, device="cuda:1").copy_(torch.ones(3))  # spread out before it is sent
        x.sum().item()
        x.tolist()
        x[0] = 5.0
        x[1] = torch.tensor(2.0)
        x * torch.tensor(2.0)
    assert list(copies) == [
        Copy("cpu", "cuda:1", 8),
        Copy("cuda:0", "cuda:1", 12),
        Copy("cpu", "cuda:1", 24),
        Copy("cuda:0", "cpu", 4),
        Copy("cuda:0", "cpu", 12),
        Copy("cpu", "cuda:0", 4),
    ]


def test_a_view_costs_its_own_bytes_and_a_sparse_tensor_its_parts(machine):
    torch.ones(10, 10)[::2].to("cuda:0")
    torch.eye(3).to_sparse().to("cuda:0")
    assert [each.bytes for each in machine.traffic] == [50 * FLOAT, 2 * 3 * 8 + 3 * FLOAT]


def test_recordings_hold_only_what_happens_inside_and_may_nest(machine):
    x = torch.ones(1)
    x.cuda(0)
    with machine.traffic.record() as outer:
        x.cuda(1)
        with machine.traffic.record() as inner:
            x.cuda(2)
        machine.traffic.clear()
    x.cuda(0)
    assert [each.target for each in outer] == ["cuda:1", "cuda:2"]
    assert [each.target for each in inner] == ["cuda:2"]
    assert repr(inner) == "Traffic(1 copies, 4 bytes)"
    assert len(machine.traffic) == 1


def test_copy_to_is_counted_once_and_its_backward_is_a_copy(machine):
    x = torch.ones(2, requires_grad=True)
    y = copy_to(x, "cuda:1")
    assert copy_to(y, "cuda:1") is y
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert list(machine.traffic) == [Copy("cpu", "cuda:1", 8), Copy("cuda:1", "cpu", 8)]


def test_one_data_parallel_step_added_up_by_hand(machine):
    """11 rows on 3 GPUs are 4, 4 and 3 rows. Linear(5, 7) and BatchNorm1d(7), outputs 7 wide."""
    model = nn.DataParallel(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)).cuda())
    rows, inputs_wide, outputs_wide = [4, 4, 3], 5, 7
    parameters = (5 * 7 + 7) + (7 + 7)
    buffers = (7 + 7) * FLOAT + 8  # running mean and variance, and a 64-bit counter
    inputs, labels = torch.randn(11, 5), torch.randint(7, (11,))
    targets = labels.cuda()
    with machine.traffic.record() as scatter_to_gather:
        outputs = model(inputs)
    loss = functional.cross_entropy(outputs, targets)
    with machine.traffic.record() as backward:
        loss.backward()

    assert scatter_to_gather.by_link() == {
        # scatter: a CPU batch goes straight to each GPU
        ("cpu", "cuda:0"): rows[0] * inputs_wide * FLOAT,
        ("cpu", "cuda:1"): rows[1] * inputs_wide * FLOAT,
        ("cpu", "cuda:2"): rows[2] * inputs_wide * FLOAT,
        # replicate: all parameters and buffers
        ("cuda:0", "cuda:1"): parameters * FLOAT + buffers,
        ("cuda:0", "cuda:2"): parameters * FLOAT + buffers,
        # gather: the outputs
        ("cuda:1", "cuda:0"): rows[1] * outputs_wide * FLOAT,
        ("cuda:2", "cuda:0"): rows[2] * outputs_wide * FLOAT,
    }
    assert backward.by_link() == {
        # the gradients of the outputs go out
        ("cuda:0", "cuda:1"): rows[1] * outputs_wide * FLOAT,
        ("cuda:0", "cuda:2"): rows[2] * outputs_wide * FLOAT,
        # the gradients of the parameters come back and are summed
        ("cuda:1", "cuda:0"): parameters * FLOAT,
        ("cuda:2", "cuda:0"): parameters * FLOAT,
    }
    with machine.traffic.record() as step:
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert list(step) == []  # nothing is sent after the step; the next forward replicates again
