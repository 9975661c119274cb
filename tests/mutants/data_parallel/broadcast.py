"""Answers to ``broadcast``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import copy
import itertools

import torch
from harness import right, wrong
from torch import nn


@wrong("broadcast.nothing_copied")
def replaces_list_entries(replicas):
    replicas = list(replicas)
    for i in range(1, len(replicas)):
        device = next(replicas[i].parameters()).device
        replicas[i] = copy.deepcopy(replicas[0]).to(device)


@wrong("broadcast.nothing_copied")
def into_a_moved_copy(replicas):
    with torch.no_grad():
        for first, *others in zip(*(replica.parameters() for replica in replicas)):
            for other in others:
                other.to(first.device).copy_(first)


@wrong("broadcast.one_replica_only")
def second_replica_only(replicas):
    first, second = replicas[0], replicas[min(1, len(replicas) - 1)]
    with torch.no_grad():
        for target, source in zip(second.parameters(), first.parameters()):
            target.copy_(source)
        for target, source in zip(second.buffers(), first.buffers()):
            target.copy_(source)


@wrong("broadcast.nothing_copied")
def copies_gradients(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            other.grad = None if first.grad is None else first.grad.to(other.device)


@wrong("wrong_values")
def clears_all_before_it_copies(replicas):
    with torch.no_grad():
        for replica in replicas:
            for parameter in replica.parameters():
                parameter.zero_()


@wrong("wrong_values")
def weights_but_no_biases(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for (name, target), source in zip(replica.named_parameters(), replicas[0].parameters()):
                if "bias" not in name:
                    target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


@wrong("broadcast.new_objects")
def deep_copies_into_the_module(replicas):
    for replica in replicas[1:]:
        device = next(replica.parameters()).device
        replica.__dict__.update(copy.deepcopy(replicas[0]).to(device).__dict__)


@wrong("missing")
def deletes_a_buffer(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
            del replica._buffers["position"]


@wrong("broadcast.grad_mode_changed")
def switches_gradients_off_for_good(replicas):
    torch.set_grad_enabled(False)
    for replica in replicas[1:]:
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.copy_(source)
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.copy_(source)


@right
def state_dict_and_the_rest(replicas):
    main = replicas[0]
    for replica in replicas[1:]:
        replica.load_state_dict(main.state_dict())
        buffers = dict(replica.named_buffers())
        for name, buffer in main.named_buffers():
            buffers[name].copy_(buffer)


@right
def through_detached_views(replicas):
    def everything(replica):
        named = itertools.chain(replica.named_parameters(), replica.named_buffers())
        return {name: tensor.detach() for name, tensor in named}

    source = everything(replicas[0])
    for replica in replicas[1:]:
        for name, target in everything(replica).items():
            target.copy_(source[name], non_blocking=True)


@right
def zero_and_add(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(
                [*replica.parameters(), *replica.buffers()],
                [*replicas[0].parameters(), *replicas[0].buffers()],
            ):
                target.zero_().add_(source.to(target.device))


@right
def in_inference_mode(replicas):
    with torch.inference_mode():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


@right
def all_at_once(replicas):
    source = [t.detach() for t in itertools.chain(replicas[0].parameters(), replicas[0].buffers())]
    for replica in replicas[1:]:
        target = [t.detach() for t in itertools.chain(replica.parameters(), replica.buffers())]
        torch._foreach_copy_(target, [tensor.to(target[0].device) for tensor in source])
