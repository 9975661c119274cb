"""Messages from rank to rank: blocking, in the background, and several at once.

torchrun --nproc_per_node 2 point_to_point.py
"""

import os

import torch
import torch.distributed as dist


def blocking(rank: int, size: int, device: torch.device) -> None:
    """Pass a tensor along the ranks; each adds one."""
    tensor = torch.zeros(3, device=device)
    if rank > 0:
        dist.recv(tensor, src=rank - 1)
    tensor += 1
    if rank < size - 1:
        dist.send(tensor, dst=rank + 1)
    assert tensor.tolist() == [rank + 1.0] * 3


def in_background(rank: int, size: int, device: torch.device) -> None:
    """Rank 0 sends each other rank its number, with a tag."""
    if rank == 0:
        rows = [torch.full((2, 2), float(peer), device=device) for peer in range(1, size)]
        works = [dist.isend(row, dst=peer, tag=7) for peer, row in enumerate(rows, 1)]
        for work in works:
            work.wait()
    else:
        received = torch.empty(2, 2, device=device)
        work = dist.irecv(received, src=0, tag=7)
        work.wait()
        torch.cuda.synchronize()
        assert received.eq(rank).all()


def ring(rank: int, size: int, device: torch.device) -> None:
    """Everybody sends to the right and receives from the left at the same time."""
    mine = torch.arange(4, dtype=torch.float32, device=device) + 10 * rank
    from_left = torch.empty_like(mine)
    left, right = (rank - 1) % size, (rank + 1) % size
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, from_left, left)]
    ):
        work.wait()
    torch.cuda.current_stream().synchronize()
    assert torch.equal(from_left, torch.arange(4.0, device=device) + 10 * left)


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    rank, size = dist.get_rank(), dist.get_world_size()
    for example in (blocking, in_background, ring):
        example(rank, size, device)
        dist.barrier()
    objects = [{"step": 3}] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(objects, dst=1, device=device)
    elif rank == 1:
        dist.recv_object_list(objects, src=0, device=device)
        assert objects == [{"step": 3}]
    dist.barrier()
    if rank == 0:
        print(f"messages between {size} ranks arrived")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
