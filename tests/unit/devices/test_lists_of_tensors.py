"""`torch._foreach_*`, which optimizers use: lists that span GPUs go tensor by tensor."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("machine")

TWO_DEVICES = (
    r"^Expected all tensors to be on the same device, but found at least two devices, "
    r"cuda:0 and cpu!$"
)


def pair() -> list[torch.Tensor]:
    return [torch.tensor([3.0, 4.0], device="cuda:0"), torch.tensor([6.0], device="cuda:1")]


def test_each_result_is_where_its_tensor_is():
    norms = torch._foreach_norm(pair())
    assert [norm.item() for norm in norms] == [5, 6]
    assert [norm.device for norm in norms] == [tensor.device for tensor in pair()]
    sums = torch._foreach_add(pair(), pair())
    assert [each.tolist() for each in sums] == [[6, 8], [12]]
    assert [each.device.index for each in sums] == [0, 1]
    scaled = torch._foreach_mul(pair(), [2.0, 3.0])
    assert [each.tolist() for each in scaled] == [[6, 8], [18]]


def test_in_place():
    tensors = pair()
    torch._foreach_mul_(tensors, 2.0)
    assert [each.tolist() for each in tensors] == [[6, 8], [12]]
    torch._foreach_mul_(tensors, torch.tensor(0.5))
    assert [each.tolist() for each in tensors] == [[3, 4], [6]]


def test_partners_on_different_devices_are_refused():
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        torch._foreach_add(pair(), [torch.ones(2), torch.ones(1, device="cuda:1")])


def test_an_optimizer_older_than_the_move_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.cuda()
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        optimizer.step()
