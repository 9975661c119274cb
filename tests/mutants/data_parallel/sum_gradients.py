"""Answers to ``sum_gradients``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
from harness import right, wrong


@wrong("sum_gradients.nothing_added")
def returns_the_sums(replicas):
    sums = []
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(first.device) for p in (first, *others) if p.grad is not None]
        sums.append(sum(present) if present else None)
    return sums


@wrong("sum_gradients.one_left_out")
def off_by_one(replicas):
    count = max(2, len(replicas) - 1) if len(replicas) > 2 else len(replicas)
    for first, *others in zip(*(replica.parameters() for replica in replicas[:count])):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived


@wrong("sum_gradients.nothing_added")
def sums_in_the_last(replicas):
    for *others, last in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(last.device)
                last.grad = arrived if last.grad is None else last.grad + arrived


@wrong("sum_gradients.multiplied")
def sums_twice(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(first.device) for p in (first, *others) if p.grad is not None]
        if present:
            first.grad = sum(present) * len(replicas)


@wrong("wrong_values")
def adds_up_absolute_values(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(same[0].device).abs() for p in same if p.grad is not None]
        if present:
            same[0].grad = sum(present)


@wrong("missing")
def deletes_a_parameter(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived
    for module in replicas[0].modules():
        for name in list(module._parameters):
            del module._parameters[name]


@wrong("sum_gradients.grad_mode_changed")
def switches_gradients_off_for_good(replicas):
    torch.set_grad_enabled(False)
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived


@right
def by_name(replicas):
    main, *others = replicas
    for name, parameter in main.named_parameters():
        for other in others:
            grad = other.get_parameter(name).grad
            if grad is not None:
                grad = grad.to(parameter.device)
                parameter.grad = grad if parameter.grad is None else parameter.grad.add(grad)


@right
def through_the_cpu_and_clears_the_others(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        total = None
        for p in same:
            if p.grad is not None:
                total = p.grad.cpu() if total is None else total + p.grad.cpu()
            p.grad = None
        if total is not None:
            same[0].grad = total.to(same[0].device)


@right
def a_tree_of_pairs(replicas):
    step = 1
    while step < len(replicas):
        for i in range(0, len(replicas) - step, 2 * step):
            for mine, other in zip(replicas[i].parameters(), replicas[i + step].parameters()):
                if other.grad is not None:
                    arrived = other.grad.to(mine.device)
                    mine.grad = arrived if mine.grad is None else mine.grad + arrived
        step *= 2
