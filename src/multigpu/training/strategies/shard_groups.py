"""Which layers are gathered together, and which models cannot be divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from multigpu.training.agreement import everyones

REPEATED = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)  # nobody calls them, so they cannot be a block


def groups_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of `model` that are gathered one at a time; the rest is gathered with the root.

    A block is a part, with weights, of an nn.Sequential, nn.ModuleList or nn.ModuleDict. Parts that
    share a weight with others, or stand in two places, stay with the root: its weights are there
    during all of forward, so both places see one tensor.
    """
    users = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    return [
        block
        for block in dict.fromkeys(blocks_in(model))
        if places[id(block)] == 1 and owns_all(block, users)
    ]


def blocks_in(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost blocks inside of `module`, in its order."""
    for child in module.children():
        if isinstance(module, REPEATED) and not isinstance(child, WITHOUT_FORWARD):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from blocks_in(child)


def owns_all(block: nn.Module, users: Counter[int]) -> bool:
    """Whether no module outside of `block` has one of its weights."""
    inside = Counter(
        id(parameter)
        for module in block.modules()
        for parameter in module.parameters(recurse=False)
    )
    return all(users[each] == count for each, count in inside.items())


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The layers that keep statistics in float32, and so their weights, too."""
    kind = nn.modules.batchnorm._BatchNorm
    return [each for each in model.modules() if isinstance(each, kind) and each.affine]


def refuse_other_types(model: nn.Module) -> None:
    """Raise ValueError where weights are of several types: they travel together as one."""
    types = {each.dtype: name for name, each in model.named_parameters() if each.requires_grad}
    if len(types) > 1:
        said = ", ".join(f"{name} is {str(kind)[6:]}" for kind, name in types.items())
        raise ValueError(
            f"the weights are of {len(types)} types ({said}): they are gathered together, as one. "
            "Convert the model, for example with model.float(), or use mode='ddp'."
        )


def refuse_other_shapes(model: nn.Module) -> None:
    """Raise ValueError on every rank where ranks have built different models. All call it."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("no parameter of the model requires a gradient: nothing to train")
    mine = [(name, tuple(each.shape)) for name, each in model.state_dict().items()]
    others = everyones(mine)
    for rank, theirs in enumerate(others):
        for ours, other in zip(others[0], theirs, strict=False):
            if ours != other:
                raise ValueError(
                    f"rank {rank} has built another model than rank 0: {other[0]} {other[1]} "
                    f"instead of {ours[0]} {ours[1]}. Build the same model on every rank."
                )
        if len(theirs) != len(others[0]):
            raise ValueError(
                f"rank {rank} has built another model than rank 0: {len(theirs)} tensors instead "
                f"of {len(others[0])}. Build the same model on every rank."
            )
