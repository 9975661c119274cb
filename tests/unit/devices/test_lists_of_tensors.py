"""`torch._foreach_*`, which optimizers use, GPU by GPU."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("machine")

TWO_DEVICES = (
    r"^Expected all tensors to be on the same device, but found at least two devices, "
    r"cuda:0 and cpu!$"
)


def test_lists_on_one_gpu():
    tensors = [torch.tensor([3.0, 4.0], device="cuda:1"), torch.tensor([6.0], device="cuda:1")]
    norms = torch._foreach_norm(tensors)
    assert [norm.item() for norm in norms] == [5, 6]
    assert [norm.device.index for norm in norms] == [1, 1]
    torch._foreach_mul_(tensors, 2.0)
    assert [each.tolist() for each in tensors] == [[6, 8], [12]]
    with pytest.raises(RuntimeError, match="at least two devices, cuda:1 and cpu!"):
        torch._foreach_add(tensors, [torch.ones(2), torch.ones(1, device="cuda:1")])


def test_an_optimizer_older_than_the_move_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.cuda()
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        optimizer.step()
