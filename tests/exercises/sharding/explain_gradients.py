"""Whether only the gradients of a rank's own elements are left when the inner optimizer steps.

These mistakes belong to ``sharding.Zero2Optimizer``.
"""

from multigpu.checking.wording import count, listed

from .explain_training import Report, sizes_of
from .one_process import added

FREED = "when the inner optimizer steps, a rank has the gradients of its own elements only"


class Gradients(Report):
    """What Zero2Optimizer promises beyond Zero1Optimizer."""

    @classmethod
    def most_gradients(cls, case, world):
        sizes = sizes_of(case).values()
        return -(-sum(sizes) // world) + max(sizes) if case.measured else None

    def examine_more(self):
        for step in range(len(self.right)):
            for rank in range(self.n):
                for look in self.note(step, rank)["gradients"]:
                    self.examine_grad(step, rank, look)
                self.examine_contents(step, rank)

    def examine_grad(self, step, rank, look):
        """What .grad keeps alive."""
        if look["held"] <= self.bound:
            return
        if look["shown"] <= self.bound:
            raise self.wrong(
                "gradients_are_views",
                f"{FREED}, {self.at_most}",
                f"on rank {rank} .grad has {look['shown']} elements, but they are views of storages"
                f" with {look['held']}",
                "a slice of a flat tensor keeps all of it alive: clone() the slice, or receive into"
                " a tensor that is no larger.",
                step=step,
            )
        raise self.wrong(
            "gradients_not_freed",
            f"{FREED}, {self.at_most}",
            f"on rank {rank} .grad had {look['held']} elements, among them those of"
            f" {listed(look['names'], most=4)}",
            "after the gradients were reduced to their owners, set .grad = None for what this rank"
            " does not own, before the inner step and not after it.",
            step=step,
        )

    def examine_contents(self, step, rank):
        """Whether gradients live on in other tensors."""
        contents = [storage.value for storage in self.note(step, rank)["contents"]]
        found = [
            name
            for name, parts in self.right[step].parts.items()
            if any(contains(storage, known) for known in forms(parts, rank) for storage in contents)
        ]
        held = sum(self.trained[name] for name in found)
        if held > self.bound:
            raise self.wrong(
                "gradients_kept_elsewhere",
                f"{FREED}, {self.at_most}; everything else is freed",
                f"on rank {rank} the gradients of {count(len(found), 'parameter')}"
                f" ({listed(found, most=4)}) with {held} elements were still in other tensors",
                "a flat tensor, a list or a view of them was still there: a local variable and an"
                " attribute keep what they name. del it, or copy your part out of it.",
                step=step,
            )


def forms(parts, rank):
    """What a rank can have of a gradient: its own, the sum, and both divided."""
    total = added(parts)
    for tensor in (parts[rank], total):
        if tensor is not None and tensor.any():
            yield from (tensor.flatten(), tensor.flatten() / len(parts))


def contains(storage, piece):
    """Whether the numbers of ``piece`` stand in ``storage``, one after another."""
    if len(storage) < len(piece):
        return False
    windows = storage.unfold(0, len(piece), 1)  # (places, numbers)
    near = (windows - piece).abs().amax(dim=1) <= 1e-9 * piece.abs().max()
    return bool(near.any())
