"""Answers to ``broadcast`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import torch
from collections import defaultdict


# %% state_dict_and_the_rest: pass
def broadcast(replicas):
    main = replicas[0]
    for replica in replicas[1:]:
        replica.load_state_dict(main.state_dict())
        buffers = dict(replica.named_buffers())
        for name, buffer in main.named_buffers():
            buffers[name].copy_(buffer)


# %% in_inference_mode: pass
def broadcast(replicas):
    with torch.inference_mode():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


# %% all_at_once: pass
def broadcast(replicas):
    source = [t.detach() for t in itertools.chain(replicas[0].parameters(), replicas[0].buffers())]
    for replica in replicas[1:]:
        target = [t.detach() for t in itertools.chain(replica.parameters(), replica.buffers())]
        torch._foreach_copy_(target, [tensor.to(target[0].device) for tensor in source])


# %% a_bucket_for_each_dtype: pass
def _groups(module):
    groups = defaultdict(list)
    for _, tensor in module.named_parameters():
        groups[tensor.dtype].append(tensor.data)
    for _, tensor in module.named_buffers(remove_duplicate=False):
        groups[tensor.dtype].append(tensor.data)
    return groups


def broadcast(replicas):
    buckets = {
        dtype: torch.cat([tensor.reshape(-1) for tensor in tensors])
        for dtype, tensors in _groups(replicas[0]).items()
    }
    for replica in replicas[1:]:
        for dtype, tensors in _groups(replica).items():
            bucket = buckets[dtype].to(tensors[0].device)
            offset = 0
            for tensor in tensors:
                piece = bucket[offset : offset + tensor.numel()]
                tensor.copy_(piece.view(tensor.shape))
                offset += tensor.numel()


# %% deletes_a_buffer: wrong missing
def broadcast(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
            del replica._buffers["position"]


# %% switches_gradients_off_for_good: wrong broadcast.grad_mode_changed
def broadcast(replicas):
    torch.set_grad_enabled(False)
    for replica in replicas[1:]:
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.copy_(source)
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.copy_(source)


# %% copies_the_first_time_only: wrong wrong_values
def broadcast(replicas):
    if not hasattr(replicas[0], "was_sent"):
        replicas[0].was_sent = True
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.data.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
