"""Whether only the gradients of a rank's own elements are left when the inner optimizer steps.

These mistakes belong to ``sharding.Zero2Optimizer``.
"""

import itertools

import torch

from multigpu.checking.verdicts import listed

from .explain_training import Report, sizes_of

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
            f"on rank {rank} {places_of(look)}",
            "after the gradients were reduced to their owners, set .grad = None for what this rank"
            " does not own, before the inner step and not after it.",
            step=step,
        )

    def examine_contents(self, step, rank):
        """Whether gradients live on in other tensors."""
        contents = [storage.value for storage in self.note(step, rank)["contents"]]
        if not contents:
            return
        living = torch.cat(contents).sort().values
        held = {n: there(living, forms(parts)) for n, parts in self.right[step].parts.items()}
        total = sum(held.values())
        if total > self.bound:
            names = [name for name, number in held.items() if number]
            raise self.wrong(
                "gradients_kept_elsewhere",
                f"{FREED}, {self.at_most}; everything else is freed",
                f"on rank {rank} the numbers of {total} gradients were still in other tensors:"
                f" {listed(names, most=4)}",
                "a flat tensor, a list or a view of them was still there: a local variable and an"
                " attribute keep what they name. del it, or copy your part out of it.",
                step=step,
            )


def places_of(look):
    """Where gradients are: in the model, in what the inner optimizer steps, or in both."""
    came = f".grad of the model's parameters has {look['in_model']} elements"
    if look["held"] > look["in_model"]:
        rest = look["held"] - look["in_model"]
        came += f", and .grad of what the inner optimizer steps has {rest} more"
    if look["not_stepped"]:
        names = listed(look["not_stepped"], most=4)
        came += f". The inner optimizer does not step these parameters: {names}"
    return came


def forms(parts):
    """All that a rank can have of a gradient, (forms, numbers).

    The sums over some of the ranks, for a reduce leaves those behind on ranks that are not its
    destination, other ones in other parts of a tensor; and the same divided.
    """
    own = [part.flatten() for part in parts if part is not None]
    sums = [sum(some) for n in range(len(own)) for some in itertools.combinations(own, n + 1)]
    return torch.stack([form for total in sums for form in (total, total / len(parts))])


def there(living, known):
    """How many numbers are among those in ``living``, which is sorted, in one of their forms.

    To nine digits: no number of another meaning is as near by chance.
    """
    places = torch.searchsorted(living, known).clamp(1, len(living) - 1)
    apart = torch.minimum((living[places] - known).abs(), (living[places - 1] - known).abs())
    return int(((apart <= 1e-9 * known.abs()) & (known != 0)).any(dim=0).sum())
