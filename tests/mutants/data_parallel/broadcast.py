"""Answers to ``broadcast``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import copy
import itertools

import torch
from harness import right, wrong
from torch import nn


@wrong("broadcast.nothing_copied")
def assigns_to_a_name(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            other = first.to(other.device)


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


@wrong("broadcast.new_objects")
def sets_new_parameters(replicas):
    for replica in replicas[1:]:
        for (_, source), (_, target) in zip(replicas[0].named_modules(), replica.named_modules()):
            device = next(replica.parameters()).device
            for name, parameter in source.named_parameters(recurse=False):
                own = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
                setattr(target, name, own)
            for name, buffer in source.named_buffers(recurse=False):
                setattr(target, name, buffer.to(device))


@wrong("broadcast.new_objects")
def assigns_buffers(replicas):
    for replica in replicas[1:]:
        with torch.no_grad():
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
        for (_, source), (_, target) in zip(replicas[0].named_modules(), replica.named_modules()):
            for name, buffer in source.named_buffers(recurse=False):
                target._buffers[name] = buffer.to(next(replica.parameters()).device)


@wrong("broadcast.new_memory")
def assigns_data(replicas):
    for replica in replicas[1:]:
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.data = source.data.to(target.device)
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.data = source.data.to(target.device)


@wrong("broadcast.buffers_skipped")
def parameters_only(replicas):
    with torch.no_grad():
        for first, *others in zip(*(replica.parameters() for replica in replicas)):
            for other in others:
                other.copy_(first)


@wrong("broadcast.non_persistent_skipped")
def load_state_dict(replicas):
    for replica in replicas[1:]:
        replica.load_state_dict(replicas[0].state_dict())


@wrong("broadcast.integers_skipped")
def floating_point_only(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            targets = itertools.chain(replica.parameters(), replica.buffers())
            sources = itertools.chain(replicas[0].parameters(), replicas[0].buffers())
            for target, source in zip(targets, sources):
                if target.is_floating_point():
                    target.copy_(source)


@wrong("broadcast.frozen_skipped")
def trainable_only(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                if target.requires_grad:
                    target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


@wrong("broadcast.parameters_skipped")
def buffers_only(replicas):
    for replica in replicas[1:]:
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.copy_(source)


@wrong("broadcast.wrong_direction")
def copies_into_the_first(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for source, target in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for source, target in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


@wrong("broadcast.averaged")
def averages_the_weights(replicas):
    with torch.no_grad():
        for same in zip(*(replica.parameters() for replica in replicas)):
            mean = sum(p.cpu() for p in same) / len(same)
            for p in same:
                p.copy_(mean)


@wrong("broadcast.one_replica_only")
def second_replica_only(replicas):
    first, second = replicas[0], replicas[min(1, len(replicas) - 1)]
    with torch.no_grad():
        for target, source in zip(second.parameters(), first.parameters()):
            target.copy_(source)
        for target, source in zip(second.buffers(), first.buffers()):
            target.copy_(source)


@wrong("broadcast.from_the_neighbour")
def each_from_the_one_before_last_first(replicas):
    with torch.no_grad():
        for i in reversed(range(1, len(replicas))):
            pairs = zip(replicas[i].parameters(), replicas[i - 1].parameters())
            for target, source in pairs:
                target.copy_(source)
            for target, source in zip(replicas[i].buffers(), replicas[i - 1].buffers()):
                target.copy_(source)


@wrong("broadcast.added")
def adds_instead_of_copying(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            targets = itertools.chain(replica.parameters(), replica.buffers())
            sources = itertools.chain(replicas[0].parameters(), replicas[0].buffers())
            for target, source in zip(targets, sources):
                target += source.to(target.device)


@wrong("broadcast.requires_grad_changed")
def freezes_the_replicas(replicas):
    for replica in replicas[1:]:
        replica.requires_grad_(False)
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.copy_(source.detach())
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.copy_(source)


@wrong("broadcast.nothing_copied")
def copies_gradients(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            other.grad = None if first.grad is None else first.grad.to(other.device)


@wrong("exception", status="crash")
def forgets_no_grad(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            other.copy_(first)


@wrong("exception", status="crash")
def slices_numbers_too(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            targets = itertools.chain(replica.parameters(), replica.buffers())
            sources = itertools.chain(replicas[0].parameters(), replicas[0].buffers())
            for target, source in zip(targets, sources):
                target[:] = source.to(target.device)


@wrong("broadcast.first_changed")
def clears_all_before_it_copies(replicas):
    with torch.no_grad():
        for replica in replicas:
            for parameter in replica.parameters():
                parameter.zero_()


@wrong("broadcast.values_changed")
def copies_in_half_precision(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source.half())
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


@wrong("broadcast.some_skipped")
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


@wrong("broadcast.tensors_lost")
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


@wrong("broadcast.nothing_copied")
def copies_the_first_time_only(replicas):
    if getattr(replicas[0], "was_sent", False):
        return
    replicas[0].was_sent = True
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


@wrong("broadcast.values_changed")
def travels_as_float32(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(
                [*replica.parameters(), *replica.buffers()],
                [*replicas[0].parameters(), *replicas[0].buffers()],
            ):
                target.copy_(source.float())


@right
def copies_data(replicas):
    for replica in replicas[1:]:
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.data.copy_(source.data)
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.data.copy_(source.data)


@right
def state_dict_and_the_rest(replicas):
    main = replicas[0]
    for replica in replicas[1:]:
        replica.load_state_dict(main.state_dict())
        buffers = dict(replica.named_buffers())
        for name, buffer in main.named_buffers():
            buffers[name].copy_(buffer)


@right
@torch.no_grad()
def as_a_chain(replicas):
    for before, after in itertools.pairwise(replicas):
        for target, source in zip(after.parameters(), before.parameters()):
            target.copy_(source.to(target.device))
        for target, source in zip(after.buffers(), before.buffers()):
            target.copy_(source.to(target.device))


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
