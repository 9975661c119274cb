# wrong: starts from zeros, so a parameter without any gradient (a frozen one) gets zeros and not None
import torch


def sum_gradients(replicas):
    for params in zip(*[r.parameters() for r in replicas]):
        total = torch.zeros_like(params[0])
        for p in params:
            if p.grad is not None:
                total += p.grad.to(total.device)
        params[0].grad = total
