# wrong: fills the old gradients of the other replicas with zeros, so a layer not used in this step gets zeros and not None, and momentum or weight decay moves it
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = [next(r.parameters()).device for r in replicas]
    optimizer.zero_grad()
    for replica in replicas[1:]:
        for p in replica.parameters():
            if p.grad is not None:
                p.grad.zero_()
    outputs = parallel_apply(replicas, split(inputs, devices))
    output = gather(outputs, devices[0])
    loss = loss_fn(output, targets.to(output.device))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()
