# right: by name, in place into the first gradient, cloning where it is missing
import torch


def sum_gradients(replicas):
    target = dict(replicas[0].named_parameters())
    with torch.no_grad():
        for replica in replicas[1:]:
            for name, param in replica.named_parameters():
                if param.grad is None:
                    continue
                mine = target[name]
                moved = param.grad.to(mine.device)
                if mine.grad is None:
                    mine.grad = moved.clone()
                else:
                    mine.grad.add_(moved)
