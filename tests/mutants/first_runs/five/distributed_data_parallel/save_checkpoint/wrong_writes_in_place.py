# mistake: torch.save straight to path: not atomic
import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        torch.save([model.state_dict(), optimizer.state_dict(), epoch], path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
