# wrong: where the first replica has no gradient, those of the others are lost
def sum_gradients(replicas):
    first = replicas[0]
    for other in replicas[1:]:
        for p, q in zip(first.parameters(), other.parameters()):
            if p.grad is None or q.grad is None:
                continue
            p.grad += q.grad.to(p.device)
