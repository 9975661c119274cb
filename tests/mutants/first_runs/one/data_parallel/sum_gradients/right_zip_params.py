# right: zip over the parameter lists, add up out of place, assign once
import torch


@torch.no_grad()
def sum_gradients(replicas):
    for params in zip(*(replica.parameters() for replica in replicas)):
        first = params[0]
        total = None
        for p in params:
            if p.grad is None:
                continue
            grad = p.grad.to(first.device)
            total = grad if total is None else total + grad
        first.grad = total
