"""What torch's own messages usually mean."""

import operator

import pytest
import torch

from multigpu.checking.run_verdict import explanation

PARAMETER = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))


def give_gradient(value):
    PARAMETER.grad = value


@pytest.mark.parametrize(
    ("mistake", "means"),
    [
        (lambda: torch.ones(3) in [torch.zeros(3), PARAMETER], "compare the"),
        (lambda: sorted([torch.ones(3), torch.zeros(3)]), "compare the"),
        (lambda: give_gradient(sum([])), "sum([])"),
        (lambda: give_gradient(torch.zeros(3)), "zeros_like(parameter)"),
        (lambda: give_gradient(torch.zeros(4, dtype=torch.float64)), "zeros_like(parameter)"),
        (lambda: PARAMETER.add_(1), "no_grad"),
        (lambda: operator.itruediv(PARAMETER.grad, 2), "register_post_accumulate_grad_hook"),
        (lambda: 2 * PARAMETER.grad, "register_post_accumulate_grad_hook"),
        (lambda: PARAMETER.numpy(), None),
    ],
)
def test_an_error_is_explained(mistake, means):
    with pytest.raises(Exception) as raised:  # noqa: PT011, each has its own type
        mistake()
    found = explanation(str(raised.value))
    assert found is None if means is None else means in found
