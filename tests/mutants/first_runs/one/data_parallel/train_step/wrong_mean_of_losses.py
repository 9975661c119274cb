# wrong: plain mean of the chunks' losses, right only when all chunks have the same size
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = [next(r.parameters()).device for r in replicas]
    for r in replicas:
        r.zero_grad()
    outputs = parallel_apply(replicas, split(inputs, devices))
    labels = split(targets, devices)
    losses = [loss_fn(o, t).to(devices[0]) for o, t in zip(outputs, labels)]
    loss = sum(losses) / len(losses)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()
