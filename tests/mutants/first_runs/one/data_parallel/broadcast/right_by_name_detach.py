# right: look every tensor up by name, copy through detach()
def broadcast(replicas):
    first, *rest = [
        {**dict(replica.named_parameters()), **dict(replica.named_buffers())}
        for replica in replicas
    ]
    for name, value in first.items():
        for tensors in rest:
            tensors[name].detach().copy_(value.detach())
