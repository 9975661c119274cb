"""Answers to ``sum_gradients``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
from harness import right, wrong


@wrong("sum_gradients.averaged")
def divides_by_the_replicas(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(first.device) for p in (first, *others) if p.grad is not None]
        if present:
            first.grad = sum(present) / len(replicas)


@wrong("sum_gradients.averaged")
def divides_by_the_gradients_that_are_there(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(first.device) for p in (first, *others) if p.grad is not None]
        if present:
            first.grad = torch.stack(present).mean(0)


@wrong("sum_gradients.last_one_wins")
def overwrites(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                first.grad = other.grad.to(first.device)


@wrong("sum_gradients.nothing_added")
def adds_into_a_copy(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        if first.grad is None:
            continue
        total = first.grad.clone()
        for other in others:
            if other.grad is not None:
                total += other.grad.to(first.device)


@wrong("sum_gradients.nothing_added")
def returns_the_sums(replicas):
    sums = []
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(first.device) for p in (first, *others) if p.grad is not None]
        sums.append(sum(present) if present else None)
    return sums


@wrong("sum_gradients.first_left_out")
def sums_the_others_only(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(first.device) for p in others if p.grad is not None]
        if present:
            first.grad = sum(present)


@wrong("sum_gradients.first_counted_twice")
def starts_with_the_first_and_adds_all(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        first = same[0]
        present = [p.grad.to(first.device) for p in same if p.grad is not None]
        if present:
            start = present[0] if first.grad is None else first.grad.clone()
            first.grad = start + sum(present)


@wrong("sum_gradients.one_left_out")
def off_by_one(replicas):
    count = max(2, len(replicas) - 1) if len(replicas) > 2 else len(replicas)
    for first, *others in zip(*(replica.parameters() for replica in replicas[:count])):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived


@wrong("sum_gradients.tied_twice")
def tied_weights_once_per_name(replicas):
    replicas = list(replicas)
    first = dict(replicas[0].named_parameters(remove_duplicate=False))
    for replica in replicas[1:]:
        for name, other in replica.named_parameters(remove_duplicate=False):
            if other.grad is not None:
                arrived = other.grad.to(first[name].device)
                mine = first[name].grad
                first[name].grad = arrived if mine is None else mine + arrived


@wrong("sum_gradients.skipped_when_one_is_missing")
def only_where_all_have_one(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        if any(p.grad is None for p in same):
            continue
        same[0].grad = sum(p.grad.to(same[0].device) for p in same)


@wrong("sum_gradients.first_had_none")
def needs_a_gradient_in_the_first(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        if first.grad is None:
            continue
        for other in others:
            if other.grad is not None:
                first.grad += other.grad.to(first.device)


@wrong("sum_gradients.zeros_for_none")
def fills_up_with_zeros(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        total = torch.zeros_like(first)
        for p in (first, *others):
            if p.grad is not None:
                total += p.grad.to(first.device)
        first.grad = total


@wrong("exception", status="crash")
def does_not_know_none(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            first.grad += other.grad.to(first.device)


@wrong("exception", status="crash")
def forgets_to_move(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                first.grad = other.grad if first.grad is None else first.grad + other.grad


@wrong("sum_gradients.weights_changed")
def adds_weights_too(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived
                first.data += other.data.to(first.device)


@wrong("sum_gradients.in_the_wrong_replica")
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


@wrong("sum_gradients.wrong_sum")
def adds_up_absolute_values(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(same[0].device).abs() for p in same if p.grad is not None]
        if present:
            same[0].grad = sum(present)


@wrong("sum_gradients.others_counted_twice")
def adds_the_others_in_two_places(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others + others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived


@wrong("sum_gradients.parameters_lost")
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


@wrong("sum_gradients.wrong_sum")
def travels_as_float32(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.float().to(first.device).to(other.grad.dtype)
                first.grad = arrived if first.grad is None else first.grad + arrived


@right
def in_place_where_there_is_one(replicas):
    first = replicas[0]
    for replica in replicas[1:]:
        for mine, other in zip(first.parameters(), replica.parameters()):
            if other.grad is None:
                continue
            if mine.grad is None:
                mine.grad = torch.zeros_like(mine)
            mine.grad += other.grad.to(mine.device)


@right
def stacks_and_sums(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        home = same[0].device
        grads = [p.grad.to(home) for p in same if p.grad is not None]
        if grads:
            same[0].grad = torch.stack(grads).sum(dim=0)


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
