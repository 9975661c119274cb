# wrong: switches requires_grad off to copy and on again afterwards, so frozen parameters are thawed
def broadcast(replicas):
    source = replicas[0]
    for replica in replicas[1:]:
        for p, q in zip(replica.parameters(), source.parameters()):
            p.requires_grad_(False)
            p.copy_(q.detach())
            p.requires_grad_(True)
        for a, b in zip(replica.buffers(), source.buffers()):
            a.copy_(b)
