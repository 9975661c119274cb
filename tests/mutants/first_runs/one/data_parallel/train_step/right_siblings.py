# right: the functions above, one loss on the gathered outputs
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = [next(replica.parameters()).device for replica in replicas]
    optimizer.zero_grad()
    for replica in replicas:
        replica.zero_grad()

    chunks = split(inputs, devices)
    outputs = gather(parallel_apply(replicas, chunks), devices[0])
    loss = loss_fn(outputs, targets.to(devices[0]))
    loss.backward()

    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()
