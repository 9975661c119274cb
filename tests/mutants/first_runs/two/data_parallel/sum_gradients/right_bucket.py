# right: one flat bucket per replica and dtype, zeros for missing gradients, one addition per replica
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    columns = list(zip(*(replica.parameters() for replica in replicas), strict=True))
    groups = defaultdict(list)
    for column in columns:
        if any(parameter.grad is not None for parameter in column):
            groups[column[0].dtype].append(column)
    for group in groups.values():
        total = None
        for i in range(len(replicas)):
            flat = torch.cat(
                [
                    (torch.zeros_like(c[i]) if c[i].grad is None else c[i].grad).detach().reshape(-1)
                    for c in group
                ]
            )
            total = flat if total is None else total + flat.to(total.device)
        pieces = total.split([column[0].numel() for column in group])
        for column, piece in zip(group, pieces):
            column[0].grad = piece.view(column[0].shape).clone()
