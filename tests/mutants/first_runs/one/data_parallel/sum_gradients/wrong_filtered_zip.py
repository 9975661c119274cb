# wrong: drops the missing gradients before the zip, so the lists no longer match when replicas miss different ones
def sum_gradients(replicas):
    first = [p for p in replicas[0].parameters() if p.grad is not None]
    for replica in replicas[1:]:
        grads = [p.grad for p in replica.parameters() if p.grad is not None]
        for p, g in zip(first, grads):
            p.grad = p.grad + g.to(p.device)
