# wrong: broadcast comes before the optimizer step, so the other replicas are always one step behind
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = [next(r.parameters()).device for r in replicas]
    for replica in replicas:
        replica.zero_grad()
    outputs = parallel_apply(replicas, split(inputs, devices))
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    broadcast(replicas)
    optimizer.step()
    return loss.item()
