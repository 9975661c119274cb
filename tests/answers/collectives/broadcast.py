"""Answers to ``broadcast`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch.distributed as dist


def others(src):
    return [rank for rank in range(dist.get_world_size()) if rank != src]


# %% a_tree: pass
def broadcast(tensor, src):
    size = dist.get_world_size()
    place = (dist.get_rank() - src) % size
    reached = 1
    while reached < size:
        if place < reached and place + reached < size:
            dist.send(tensor, (place + reached + src) % size)
        elif reached <= place < 2 * reached:
            dist.recv(tensor, (place - reached + src) % size)
        reached *= 2


# %% in_a_batch: pass
def broadcast(tensor, src):
    if dist.get_rank() == src:
        ops = [dist.P2POp(dist.isend, tensor, rank) for rank in others(src)]
    else:
        ops = [dist.P2POp(dist.irecv, tensor, src)]
    for handle in dist.batch_isend_irecv(ops) if ops else []:
        handle.wait()


# %% each_half_of_the_ranks_by_itself: pass
def broadcast(tensor, src):
    def spread(ranks):
        """ranks[0] has the numbers."""
        if len(ranks) < 2 or me not in ranks:
            return
        middle = (len(ranks) + 1) // 2
        near, far = ranks[:middle], ranks[middle:]
        if me == near[0]:
            dist.send(tensor, far[0])
        elif me == far[0]:
            dist.recv(tensor, near[0])
        spread(near if me in near else far)

    me = dist.get_rank()
    spread([src, *others(src)])


# %% leaves_the_last_rank_out: hang deadlock
def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            if rank < dist.get_world_size() - 1:
                dist.send(tensor, rank)
    else:
        dist.recv(tensor, src)


# %% throws_the_handles_away: wrong broadcast.not_waited
def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.isend(tensor, rank)
    else:
        dist.recv(tensor, src)
