# wrong: leaves out the frozen parameters, as the optimizer does not change them
import torch


def broadcast(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for p, q in zip(replicas[0].parameters(), replica.parameters()):
                if p.requires_grad:
                    q.copy_(p)
            for p, q in zip(replicas[0].buffers(), replica.buffers()):
                q.copy_(p)
