# wrong: clears only the replicas that have rows in this step, an idle one still adds its gradients of an earlier step
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = [next(r.parameters()).device for r in replicas]
    chunks = split(inputs, devices)
    optimizer.zero_grad()
    for replica, _ in zip(replicas, chunks):
        replica.zero_grad()
    result = gather(parallel_apply(replicas, chunks), devices[0])
    loss = loss_fn(result, targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return float(loss)
