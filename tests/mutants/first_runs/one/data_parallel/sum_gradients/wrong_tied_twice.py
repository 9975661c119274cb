# wrong: walks the submodules one by one, so a tied weight is met twice and its gradient added twice
def sum_gradients(replicas):
    for other in replicas[1:]:
        for mod, other_mod in zip(replicas[0].modules(), other.modules()):
            pairs = zip(mod.parameters(recurse=False), other_mod.parameters(recurse=False))
            for p, q in pairs:
                if q.grad is None:
                    continue
                g = q.grad.to(p.device)
                p.grad = g.clone() if p.grad is None else p.grad + g
