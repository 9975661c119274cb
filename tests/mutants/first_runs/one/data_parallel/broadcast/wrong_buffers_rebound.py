# wrong: parameters are copied in place, but every buffer is replaced by a new tensor
import torch


@torch.no_grad()
def broadcast(replicas):
    first = replicas[0]
    for replica in replicas[1:]:
        for p, q in zip(replica.parameters(), first.parameters()):
            p.copy_(q)
        for mod, src in zip(replica.modules(), first.modules()):
            for name, buf in src.named_buffers(recurse=False):
                old = getattr(mod, name)
                setattr(mod, name, buf.detach().clone().to(old.device))
