"""Answers to ``sum_gradients`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch


# %% through_the_cpu_and_clears_the_others: pass
def sum_gradients(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        total = None
        for p in same:
            if p.grad is not None:
                total = p.grad.cpu() if total is None else total + p.grad.cpu()
            p.grad = None
        if total is not None:
            same[0].grad = total.to(same[0].device)


# %% a_tree_of_pairs: pass
def sum_gradients(replicas):
    step = 1
    while step < len(replicas):
        for i in range(0, len(replicas) - step, 2 * step):
            for mine, other in zip(replicas[i].parameters(), replicas[i + step].parameters()):
                if other.grad is not None:
                    arrived = other.grad.to(mine.device)
                    mine.grad = arrived if mine.grad is None else mine.grad + arrived
        step *= 2


# %% backward_on_leaves: pass
def sum_gradients(replicas):
    first = replicas[0]
    for replica in replicas[1:]:
        leaves, gradients = [], []
        for target, source in zip(first.parameters(), replica.parameters()):
            if source.grad is not None:
                leaves.append(target)
                gradients.append(source.grad.detach().to(target.device, copy=True))
        if leaves:
            torch.autograd.backward(leaves, gradients)


# %% switches_gradients_off_for_good: wrong sum_gradients.grad_mode_changed
def sum_gradients(replicas):
    torch.set_grad_enabled(False)
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived


# %% adds_the_weights_too: wrong wrong_values
def sum_gradients(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived
                first.data += other.data.to(first.device)
