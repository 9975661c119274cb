"""Answers to ``shift`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor


def size():
    return dist.get_world_size()


def right_of():
    return (dist.get_rank() + 1) % size()


def left_of():
    return (dist.get_rank() - 1) % size()


# %% only_rank_zero_receives_first: pass


def shift(tensor):
    if size() == 1:
        return tensor.clone()
    received = tensor.clone()
    if dist.get_rank() == 0:
        dist.recv(received, left_of())
        dist.send(tensor, right_of())
    else:
        dist.send(tensor, right_of())
        dist.recv(received, left_of())
    return received


# %% from_any_source: pass


def shift(tensor):
    if size() == 1:
        return tensor.detach().clone()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=right_of())
    dist.recv(received, left_of() if not tensor.numel() else None)  # gloo cannot do both
    sending.wait()
    return received


# %% in_a_thread: pass


def shift(tensor):
    from threading import Thread

    if size() == 1:
        return torch.clone(tensor)
    received = torch.zeros_like(tensor)
    thread = Thread(target=dist.send, args=(tensor, right_of()))
    thread.start()
    dist.recv(received, left_of())
    thread.join()
    return received


# %% over_rank_zero: pass


def shift(tensor):
    """Slow, but nobody said that it must be fast."""
    received = tensor.clone()
    if dist.get_rank() == 0:
        held = [tensor.clone() for _ in range(size())]
        for rank in range(1, size()):
            dist.recv(held[rank], rank)
        for rank in range(1, size()):
            dist.send(held[rank - 1], rank)
        return held[-1]
    dist.send(tensor, 0)
    dist.recv(received, 0)
    return received


# %% asks_the_group_itself: pass


def shift(tensor):
    group = dist.group.WORLD
    if group.size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    sending = group.send([tensor], right_of(), 0)
    group.recv([received], left_of(), 0).wait()
    sending.wait()
    return received


# %% without_autograd: pass


def shift(tensor):
    with torch.inference_mode():
        if size() == 1:
            return tensor.clone()
        received = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        handles = [dist.irecv(received, src=left_of(), tag=7)]
        handles.append(dist.isend(tensor, dst=right_of(), tag=7))
        return received if [handle.wait() for handle in handles] else None


# %% three_batch: pass

# batch_isend_irecv with a list of P2POp, wait for all handles


def shift(tensor: Tensor) -> Tensor:
    world = dist.get_world_size()
    received = tensor.detach().clone()
    if world > 1:
        me = dist.get_rank()
        ops = [
            dist.P2POp(dist.isend, tensor, (me + 1) % world),
            dist.P2POp(dist.irecv, received, (me + world - 1) % world),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return received


# %% three_break_the_cycle: pass

# only blocking calls: rank 0 receives first, everybody else sends first


def shift(tensor: Tensor) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    out = torch.empty_like(tensor)
    if size == 1:
        out.copy_(tensor)
    elif rank == 0:
        dist.recv(out, src=left)
        dist.send(tensor, dst=right)
    else:
        dist.send(tensor, dst=right)
        dist.recv(out, src=left)
    return out


# %% three_bytes: pass

# unusual: irecv posted first, the message travels as raw bytes with a tag of its own


_TAG = 7


def _as_bytes(t: Tensor) -> Tensor:
    return t.detach().reshape(-1).view(torch.uint8)


def shift(tensor: Tensor) -> Tensor:
    result = torch.empty_like(tensor)
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return result.copy_(tensor)
    if tensor.numel() == 0:
        return result  # every rank has the same shape, nobody has anything to say
    handles = [
        dist.irecv(_as_bytes(result), src=(rank - 1) % n, tag=_TAG),
        dist.isend(_as_bytes(tensor), dst=(rank + 1) % n, tag=_TAG),
    ]
    for handle in handles:
        handle.wait()
    return result


# %% three_isend_recv: pass

# isend to the next, blocking recv from the previous, then wait


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    result = torch.empty_like(tensor)
    handle = dist.isend(tensor, (rank + 1) % n)
    dist.recv(result, (rank - 1) % n)
    handle.wait()
    return result


# %% returns_nothing: wrong returned_nothing


def shift(tensor):
    if size() > 1:
        received = torch.empty_like(tensor)
        sending = dist.isend(tensor, right_of())
        dist.recv(received, left_of())
        sending.wait()


# %% receives_into_what_it_sends: wrong shift.changed_while_sending


def shift(tensor):
    if size() == 1:
        return tensor.clone()
    sending = dist.isend(tensor, right_of())
    dist.recv(tensor, left_of())
    sending.wait()
    return tensor


# %% clears_the_buffer_too_late: wrong shift.changed_while_receiving


def shift(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    handles = [dist.irecv(received, left_of()), dist.isend(tensor, right_of())]
    received.fill_(-1)
    for handle in handles:
        handle.wait()
    return received


# %% never_waits_for_the_receive: wrong shift.not_waited


def shift(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.zeros_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.irecv(received, left_of())
    sending.wait()
    return received


# %% alone_it_returns_the_tensor_itself: wrong shares_memory


def shift(tensor):
    if size() == 1:
        return tensor
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received


# %% keeps_a_buffer_for_each_shape: wrong result_overwritten


def shift(tensor, buffers={}):
    key = (tensor.shape, tensor.dtype)
    received = buffers.setdefault(key, torch.empty_like(tensor))
    if size() == 1:
        return received.copy_(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received


# %% receives_into_a_buffer_of_a_fixed_size: wrong mismatch


def shift(tensor):
    spare = torch.empty(1024, dtype=tensor.dtype)
    if size() == 1:
        return tensor.clone()
    received = spare[: tensor.numel()]
    sending = dist.isend(tensor.view(-1), right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received.reshape(tensor.shape)


# %% receives_floats: wrong mismatch


def shift(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.zeros(tensor.shape)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received.to(tensor.dtype)


# %% returns_it_flat: wrong wrong_shape


def shift(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received.flatten()


# %% returns_a_list: wrong not_a_tensor


def shift(tensor):
    if size() == 1:
        return [tensor.clone()]
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return [received]


# %% gathers_everything: wrong refused_name


def shift(tensor):
    everything = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(everything, tensor)
    return everything[left_of()]


# %% goes_through_the_store: wrong shift.no_message


def shift(tensor):
    store = dist.distributed_c10d._get_default_store()
    shift.calls = getattr(shift, "calls", 0) + 1
    import pickle

    store.set(f"{shift.calls} {dist.get_rank()}", pickle.dumps(tensor.tolist()))
    arrived = pickle.loads(store.get(f"{shift.calls} {left_of()}"))
    return torch.tensor(arrived, dtype=tensor.dtype).reshape(tensor.shape)


# %% three_dtype: wrong mismatch

# buffer made with torch.zeros(shape): float32, whatever the dtype of the tensor is


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    result = torch.zeros(tensor.shape)
    handle = dist.isend(tensor, (rank + 1) % n)
    dist.recv(result, (rank - 1) % n)
    handle.wait()
    return result
