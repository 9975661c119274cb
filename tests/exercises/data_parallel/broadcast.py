"""``data_parallel.broadcast``: all replicas become as the first one, written in place."""

import copy
import itertools

import torch
from torch import nn

from multigpu.checking.declaration import case, exercise, on
from multigpu.checking.specimen import Specimen
from multigpu.ranks.errors import counted, listed

from .replicas import leaves_gradients_on, placed, tensors_of

broadcast = exercise(
    "data_parallel.broadcast",
    expects="every parameter and buffer of every replica has the numbers of replica 0, and is the"
    " same object in the same memory as before",
)


@broadcast.cases
def cases():
    for n in (3, 2, 4):
        yield a_case("all with other numbers", different(n), range(n), example=n == 3)
    trained = [Specimen(seed=5) for _ in range(3)]
    with torch.no_grad():
        for parameter in trained[0].parameters():
            parameter.add_(1)
    yield a_case("only the parameters of replica 0 have changed", trained, range(3))
    for order in ([2, 0, 1], [1, 0], [1]):
        yield a_case("all with other numbers", different(len(order)), order, n=3)
    yield a_case("in float32", [model.float() for model in different(3)], range(3))
    yield a_case("called a second time, with newer numbers", different(3), range(3), twice=True)


def different(n):
    return [Specimen(seed=1 + i) for i in range(n)]


def a_case(what, models, order, n=None, twice=False, **more):
    title = f"{counted(len(order), 'replica')} on {listed(f'cuda:{i}' for i in order)}, {what}"
    n = n or len(order)
    return case(title, gpus=n, models=models, order=[*order], twice=twice, **more)


NEWER = Specimen(seed=9)


@broadcast.drive
def drive(submission, case, devices):
    replicas = placed(case.models, devices, case.order)
    if case.twice:
        submission.broadcast(replicas)
        overwrite(replicas[0], NEWER)
    before = tensors_of(replicas)
    views = {name: tensor.detach() for name, tensor in before.items()}
    kept = {f"`{name} is the old object`": each for name, each in before.items()}
    submission.broadcast(replicas)
    after = tensors_of(replicas)
    return {
        **after,
        **{key: after.get(key[1 : -len(" is the old object`")]) is kept[key] for key in kept},
        **{f"a view of {name}, taken before,": view for name, view in views.items()},
        **{f"requires_grad of {name}": tensor.requires_grad for name, tensor in after.items()},
    }


@torch.no_grad()
def overwrite(replica, newer):
    for target, source in zip(tensors(replica), tensors(newer), strict=True):
        target.copy_(source)


def tensors(replica):
    return itertools.chain(replica.parameters(), replica.buffers())


@broadcast.expected
def expected(case):
    first = NEWER if case.twice else case.models[0]
    right = tensors_of([first] * len(case.order))
    home = {f"replica {i}": f"cuda:{gpu}" for i, gpu in enumerate(case.order)}
    return {
        **{name: on(home[name[-9:]], tensor) for name, tensor in right.items()},
        **{f"`{name} is the old object`": True for name in right},
        **{f"a view of {name}, taken before,": tensor for name, tensor in right.items()},
        **{f"requires_grad of {name}": tensor.requires_grad for name, tensor in right.items()},
    }


leaves_gradients_on(broadcast)


# --- what answers are made of --------------------------------------------------------------------


def pairs(replicas, of=tensors):
    """Each tensor of the other replicas, and that of the first one which belongs to it."""
    for replica in replicas[1:]:
        yield from zip(of(replica), of(replicas[0]))


@broadcast.right
def copies_data(replicas):
    for target, source in pairs(replicas):
        target.data.copy_(source.data)


@broadcast.mistake(
    "non_persistent_skipped",
    "state_dict() leaves out buffers with persistent=False, here `position`.",
    fix="Copy all of parameters() and all of buffers().",
)
def load_state_dict(replicas):
    for replica in replicas[1:]:
        replica.load_state_dict(replicas[0].state_dict())


@broadcast.mistake(
    "buffers_skipped",
    "only the parameters were copied, and parameters() does not give buffers.",
    fix="Copy all of buffers() too: BatchNorm's statistics are there.",
)
@torch.no_grad()
def parameters_only(replicas):
    for target, source in pairs(replicas, nn.Module.parameters):
        target.copy_(source)


@broadcast.mistake(
    "nothing_copied",
    "the other replicas kept their old numbers: `p = ...` only names another tensor.",
    fix="target.copy_(source) writes into the replica.",
)
def assigns_to_a_name(replicas):
    for target, source in pairs(replicas):
        target = source.to(target.device)


@broadcast.mistake(
    "frozen_skipped",
    "parameters with requires_grad=False were left out.",
    fix="They belong to the model too: copy all of parameters().",
)
@torch.no_grad()
def trainable_only(replicas):
    for target, source in pairs(replicas):
        if target.requires_grad or not isinstance(target, nn.Parameter):
            target.copy_(source)


@broadcast.mistake(
    "integers_skipped",
    "tensors that are not floating point were left out, here `batches`.",
    fix="Copy every buffer, whatever its type: BatchNorm counts its batches in one.",
)
@torch.no_grad()
def floating_point_only(replicas):
    for target, source in pairs(replicas):
        if target.is_floating_point():
            target.copy_(source)


@broadcast.mistake(
    "one_replica_only",
    "only replica 1 was written to: the first replica uses up an iterator that all share.",
    fix="Loop over replicas[1:], and call parameters() and buffers() for each.",
)
@torch.no_grad()
def uses_one_iterator_for_all(replicas):
    source = tensors(replicas[0])
    for replica in replicas[1:]:
        for target, values in zip(tensors(replica), source):
            target.copy_(values)


@broadcast.mistake(
    "new_memory",
    "`p.data = ...` puts other memory under the parameter, and an older view does not see it.",
    fix="Write into the memory that is there, with p.data.copy_(...).",
)
def assigns_data(replicas):
    for target, source in pairs(replicas):
        target.data = source.data.to(target.device, copy=True)


@broadcast.mistake(
    "new_objects",
    "parameters were replaced by new ones, and an optimizer still holds the old ones.",
    fix="Write into those that are there with copy_.",
)
def sets_new_parameters(replicas):
    for replica in replicas[1:]:
        device = next(replica.parameters()).device
        made = copy.deepcopy(replicas[0]).to(device)
        for target, source in zip(replica.modules(), made.modules()):
            target._parameters.update(source._parameters)
            target._buffers.update(source._buffers)


@broadcast.mistake(
    "requires_grad_changed",
    "the parameters were frozen to write into them.",
    fix="Write under torch.no_grad(), and leave requires_grad as it is.",
)
def freezes_the_replicas(replicas):
    for replica in replicas[1:]:
        replica.requires_grad_(False)
        for target, source in zip(tensors(replica), tensors(replicas[0])):
            target.copy_(source.detach())


@broadcast.mistake(
    "recorded_by_autograd",
    "autograd forbids writing in place into a parameter that is trained.",
    fix="Write under torch.no_grad().",
    status="crash",
)
def forgets_no_grad(replicas):
    for target, source in pairs(replicas):
        target.copy_(source)
