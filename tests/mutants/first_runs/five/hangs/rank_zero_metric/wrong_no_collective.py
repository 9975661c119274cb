# mistake: removes the call that hung: each rank returns its own mean
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    return values.mean().item()
