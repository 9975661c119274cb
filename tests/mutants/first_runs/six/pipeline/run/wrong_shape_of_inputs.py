# mistake: takes all activations to have the shape of the inputs
import torch
import torch.distributed as dist


def run(stage, schedule, microbatches, loss_fn):
    """All outputs are sent with the shape of the first input."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = sum(len(x) for x, _ in microbatches)
    held, works, total = {}, [], 0.0
    for kind, m in schedule[rank]:
        x, y = microbatches[m]
        if kind == "forward":
            if rank > 0:
                x = torch.empty_like(x)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            out = stage(x)
            if rank == world - 1:
                out = loss_fn(out, y) * len(y) / rows
                total += out.item()
            else:
                works.append(dist.isend(out.detach(), rank + 1))
            held[m] = x, out
        else:
            x, out = held.pop(m)
            if rank == world - 1:
                out.backward()
            else:
                grad = torch.empty_like(out)
                dist.recv(grad, rank + 1)
                out.backward(grad)
            if rank > 0:
                works.append(dist.isend(x.grad, rank - 1))
    for work in works:
        work.wait()
    return total if rank == world - 1 else None
