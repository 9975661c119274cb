# wrong: detaches, then asks for gradients again: the result is a new leaf and nothing flows back
import torch


def gather(outputs, device):
    needs_grad = any(o.requires_grad for o in outputs)
    moved = [o.detach().to(device) for o in outputs]
    return torch.cat(moved).requires_grad_(needs_grad)
