# right: without the other functions, one loss per GPU weighted with its share of the rows
import torch


def train_step(replicas, inputs, targets, loss_fn, optimizer):
    rows = len(inputs)
    k = len(replicas)
    for replica in replicas:
        for p in replica.parameters():
            p.grad = None

    pairs = list(zip(replicas, inputs.chunk(k), targets.chunk(k)))
    losses = []
    for replica, x, y in pairs:
        device = next(replica.parameters()).device
        share = len(x) / rows
        losses.append(loss_fn(replica(x.to(device)), y.to(device)) * share)
    total = 0.0
    for loss in losses:
        loss.backward()
        total += loss.item()

    main = replicas[0]
    for replica in replicas[1:]:
        for p, q in zip(main.parameters(), replica.parameters()):
            if q.grad is not None:
                g = q.grad.to(p.device)
                p.grad = g.clone() if p.grad is None else p.grad + g
    optimizer.step()
    with torch.no_grad():
        for replica in replicas[1:]:
            for p, q in zip(main.parameters(), replica.parameters()):
                q.copy_(p)
            for a, b in zip(main.buffers(), replica.buffers()):
                b.copy_(a)
    return total
