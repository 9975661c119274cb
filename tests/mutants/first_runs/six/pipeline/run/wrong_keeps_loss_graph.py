# mistake: adds up losses with their graphs
import torch
import torch.distributed as dist


def _send(tensor, to):
    shape = torch.tensor([tensor.dim(), *tensor.shape], dtype=torch.int64, device=tensor.device)
    return [
        (dist.isend(each, to), each)
        for each in (shape[:1].clone(), shape[1:].clone(), tensor.contiguous())
    ]


def _receive(source, device):
    dims = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(dims, source)
    shape = torch.empty(int(dims), dtype=torch.int64, device=device)
    dist.recv(shape, source)
    made = torch.empty(shape.tolist(), device=device)
    dist.recv(made, source)
    return made


def run(stage, schedule, microbatches, loss_fn):
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    rows = sum(len(inputs) for inputs, _ in microbatches)
    device = microbatches[0][0].device
    held, pending, total = {}, [], 0.0
    for kind, m in schedule[rank]:
        if kind == "forward":
            if first:
                taken = microbatches[m][0]
            else:
                taken = _receive(rank - 1, device).requires_grad_()
            made = stage(taken)
            if last:
                made = loss_fn(made, microbatches[m][1]) * (len(microbatches[m][0]) / rows)
                total = total + made
            else:
                pending += _send(made.detach(), rank + 1)
            held[m] = taken, made
        else:
            taken, made = held.pop(m)
            if last:
                made.backward()
            else:
                gradient = torch.empty_like(made)
                dist.recv(gradient, rank + 1)
                made.backward(gradient)
            if not first:
                grad = taken.grad.contiguous()
                pending.append((dist.isend(grad, rank - 1), grad))
            del taken, made
    for handle, _ in pending:
        handle.wait()
    return float(total) if last else None
