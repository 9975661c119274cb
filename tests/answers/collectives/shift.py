"""Answers to ``shift`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import pickle
import threading
import torch
import torch.distributed as dist
from exercises.collectives.shift import exchange, left_of, right_of, size


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
    if size() == 1:
        return torch.clone(tensor)
    received = torch.zeros_like(tensor)
    thread = threading.Thread(target=dist.send, args=(tensor, right_of()))
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


# %% as_bytes_without_autograd: pass
def shift(tensor):
    with torch.inference_mode():
        if size() == 1 or not tensor.numel():
            return tensor.clone()
        received = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        handles = [dist.irecv(received.view(-1).view(torch.uint8), src=left_of(), tag=7)]
        handles.append(dist.isend(tensor.view(-1).view(torch.uint8), dst=right_of(), tag=7))
        return received if [handle.wait() for handle in handles] else None


# %% receives_into_what_it_sends: wrong shift.changed_while_sending
def shift(tensor):
    return exchange(tensor, tensor) if size() > 1 else tensor.clone()


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
    return exchange(tensor, torch.empty_like(tensor)) if size() > 1 else tensor


# %% keeps_a_buffer_for_each_shape: wrong result_overwritten
def shift(tensor, buffers={}):
    received = buffers.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))
    return exchange(tensor, received) if size() > 1 else received.copy_(tensor)


# %% receives_into_a_buffer_of_a_fixed_size: wrong mismatch
def shift(tensor):
    if size() == 1:
        return tensor.clone()
    spare = torch.empty(1024, dtype=tensor.dtype)[: tensor.numel()]
    return exchange(tensor.view(-1), spare).reshape(tensor.shape)


# %% receives_floats: wrong mismatch
def shift(tensor):
    if size() == 1:
        return tensor.clone()
    return exchange(tensor, torch.zeros(tensor.shape)).to(tensor.dtype)


# %% gathers_everything: wrong refused_name
def shift(tensor):
    everything = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(everything, tensor)
    return everything[left_of()]


# %% goes_through_the_store: wrong shift.no_message
def shift(tensor):
    store = dist.distributed_c10d._get_default_store()
    shift.calls = getattr(shift, "calls", 0) + 1
    store.set(f"{shift.calls} {dist.get_rank()}", pickle.dumps(tensor.tolist()))
    arrived = pickle.loads(store.get(f"{shift.calls} {left_of()}"))
    return torch.tensor(arrived, dtype=tensor.dtype).reshape(tensor.shape)
