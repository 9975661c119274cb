"""Answers to ``shift``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


def size():
    return dist.get_world_size()


def right_of():
    return (dist.get_rank() + 1) % size()


def left_of():
    return (dist.get_rank() - 1) % size()


@wrong("shift.all_send_first", status="hang")
def waits_before_receiving(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    dist.isend(tensor, right_of()).wait()
    dist.recv(received, left_of())
    return received


@wrong("shift.all_receive_first", status="hang")
def forgets_to_send(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    dist.recv(received, left_of())
    return received


@wrong("returned_nothing")
def returns_nothing(tensor):
    if size() > 1:
        received = torch.empty_like(tensor)
        sending = dist.isend(tensor, right_of())
        dist.recv(received, left_of())
        sending.wait()


@wrong("returned_nothing")
def writes_into_the_argument(tensor):
    if size() > 1:
        received = torch.empty_like(tensor)
        sending = dist.isend(tensor, right_of())
        dist.recv(received, left_of())
        sending.wait()
        tensor.copy_(received)


@wrong("shift.changed_while_sending")
def receives_into_what_it_sends(tensor):
    if size() == 1:
        return tensor.clone()
    sending = dist.isend(tensor, right_of())
    dist.recv(tensor, left_of())
    sending.wait()
    return tensor


@wrong("shift.changed_while_receiving")
def clears_the_buffer_too_late(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    handles = [dist.irecv(received, left_of()), dist.isend(tensor, right_of())]
    received.fill_(-1)
    for handle in handles:
        handle.wait()
    return received


@wrong("shift.not_waited")
def never_waits_for_the_receive(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.zeros_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.irecv(received, left_of())
    sending.wait()
    return received


@wrong("shift.not_waited")
def never_waits_for_the_send(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    return received


@wrong("shift.not_waited")
def batch_without_wait(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.zeros_like(tensor)
    ops = [
        dist.P2POp(dist.isend, tensor, right_of()),
        dist.P2POp(dist.irecv, received, left_of()),
    ]
    dist.batch_isend_irecv(ops)
    return received


@wrong("shift.not_waited")
def waits_for_the_last_handle_only(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.zeros_like(tensor)
    handles = [dist.irecv(received, left_of()), dist.isend(tensor, right_of())]
    handles[-1].wait()
    return received


@wrong("shares_memory")
def alone_it_returns_the_tensor_itself(tensor):
    if size() == 1:
        return tensor
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received


@wrong("result_overwritten")
def keeps_a_buffer_for_each_shape(tensor, buffers={}):
    key = (tensor.shape, tensor.dtype)
    received = buffers.setdefault(key, torch.empty_like(tensor))
    if size() == 1:
        return received.copy_(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received


@wrong("result_overwritten")
def keeps_a_buffer_when_alone(tensor, buffers={}):
    if size() == 1:
        return buffers.setdefault((tensor.shape, tensor.dtype), tensor.clone()).copy_(tensor)
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received


@wrong("mismatch")
def receives_into_a_buffer_of_a_fixed_size(tensor):
    spare = torch.empty(1024, dtype=tensor.dtype)
    if size() == 1:
        return tensor.clone()
    received = spare[: tensor.numel()]
    sending = dist.isend(tensor.view(-1), right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received.reshape(tensor.shape)


@wrong("mismatch")
def receives_floats(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.zeros(tensor.shape)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received.to(tensor.dtype)


@wrong("wrong_shape")
def returns_it_flat(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return received.flatten()


@wrong("not_a_tensor")
def returns_a_list(tensor):
    if size() == 1:
        return [tensor.clone()]
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, right_of())
    dist.recv(received, left_of())
    sending.wait()
    return [received]


@wrong("refused_name")
def gathers_everything(tensor):
    everything = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(everything, tensor)
    return everything[left_of()]


@wrong("shift.no_message")
def goes_through_the_store(tensor):
    store = dist.distributed_c10d._get_default_store()
    shift.calls = getattr(shift, "calls", 0) + 1
    import pickle

    store.set(f"{shift.calls} {dist.get_rank()}", pickle.dumps(tensor.tolist()))
    arrived = pickle.loads(store.get(f"{shift.calls} {left_of()}"))
    return torch.tensor(arrived, dtype=tensor.dtype).reshape(tensor.shape)


@right
def only_rank_zero_receives_first(tensor):
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


@right
def from_any_source(tensor):
    if size() == 1:
        return tensor.detach().clone()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=right_of())
    dist.recv(received, left_of() if not tensor.numel() else None)  # gloo cannot do both
    sending.wait()
    return received


@right
def in_a_thread(tensor):
    from threading import Thread

    if size() == 1:
        return torch.clone(tensor)
    received = torch.zeros_like(tensor)
    thread = Thread(target=dist.send, args=(tensor, right_of()))
    thread.start()
    dist.recv(received, left_of())
    thread.join()
    return received


@right
def over_rank_zero(tensor):
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


@right
def asks_the_group_itself(tensor):
    group = dist.group.WORLD
    if group.size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    sending = group.send([tensor], right_of(), 0)
    group.recv([received], left_of(), 0).wait()
    sending.wait()
    return received


@right
def without_autograd(tensor):
    with torch.inference_mode():
        if size() == 1:
            return tensor.clone()
        received = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        handles = [dist.irecv(received, src=left_of(), tag=7)]
        handles.append(dist.isend(tensor, dst=right_of(), tag=7))
        return received if [handle.wait() for handle in handles] else None
