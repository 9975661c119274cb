# right: no_grad and copy_ over zipped parameters and buffers
import torch


def broadcast(replicas):
    source = replicas[0]
    with torch.no_grad():
        for replica in replicas[1:]:
            for p, q in zip(source.parameters(), replica.parameters()):
                q.copy_(p)
            for b, c in zip(source.buffers(), replica.buffers()):
                c.copy_(b)
