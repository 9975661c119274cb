"""What is wrong with an answer to ``distributed_data_parallel.average_gradients``."""

from multigpu.checking import Wrong
from multigpu.checking.comparing import largest_difference, recognise, same
from multigpu.checking.verdicts import count, listed, numbered

from .known_means import KNOWN, from_one_rank
from .one_process import added, mistaken


class Report:
    """What became of ``gradients`` on every rank, and what is wrong with it."""

    def __init__(self, gradients, models, results, where):
        self.n, self.gradients, self.models = len(gradients), gradients, models
        self.results, self.where = results, where

    def wrong(self, mistake, expected, came, usually):
        return Wrong(
            f"average_gradients.{mistake}",
            expected=f"{expected} ({count(self.n, 'rank')})",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        for rank in range(self.n):
            self.examine_weights(rank)
        for name in self.gradients[0]:
            for rank in range(self.n):
                self.examine_gradient(name, rank)

    def examine_weights(self, rank):
        for name, right in self.models[rank].named_parameters():
            came = self.results[rank]["weights"].get(name)
            if came is not None and same(came.value, right.detach()):
                continue
            found = "is gone" if came is None else largest_difference(came.value, right.detach())
            raise self.wrong(
                "weights_changed",
                "the weights stay as they are, only .grad changes",
                f"on rank {rank}, {name} {found}",
                "the parameter itself was reduced, and not its gradient: parameter.grad.",
            )

    def examine_gradient(self, name, rank):
        parts = [own[name] for own in self.gradients]
        total, came = added(parts), self.results[rank]["gradients"].get(name)
        if total is None:
            self.examine_unused(name, rank, came)
            return
        users = [i for i, part in enumerate(parts) if part is not None]
        expected = f"{name}.grad on every rank is the sum over {numbered('rank', users)}"
        expected += f" divided by {self.n}"
        if came is None:
            raise self.wrong(
                "missing_stays_none" if parts[rank] is None else "gradient_lost",
                expected,
                f"on rank {rank} it is None",
                "this rank had none, and what the others sent was thrown away. Put the mean into"
                " .grad here too."
                if parts[rank] is None
                else "something set .grad to None.",
            )
        if not self.is_mean(came.value, total):
            raise self.wrong_mean(name, rank, expected, came.value, parts)

    def is_mean(self, came, total):
        return same(came, total / self.n, share_of=self.n)

    def examine_unused(self, name, rank, came):
        if came is None or not came.value.any():
            return
        raise self.wrong(
            "other_gradient",
            f"{name}.grad stays None or becomes zeros: no rank has one",
            f"on rank {rank} it has other numbers",
            "numbers of another parameter came into it.",
        )

    def wrong_mean(self, name, rank, expected, came, parts):
        everywhere = [own["gradients"].get(name) for own in self.results]
        right = added(parts) / self.n
        known = {"rounded": right} | from_one_rank(everywhere, parts) | mistaken(parts, rank)
        mistake, _, other = (recognise(came, known) or "other_gradient").partition(" ")
        what, usually = KNOWN.get(mistake) or (
            f"another tensor, which {largest_difference(came, right)}",
            "gradients of different parameters were mixed: do all ranks go through them in the"
            " same order?",
        )
        words = {"n": self.n, "ranks": numbered("rank", range(self.n)), "rank": other}
        wrong = [n for n, came in self.results[rank]["gradients"].items() if self.is_wrong(n, came)]
        more = f", and so {'are' if wrong[2:] else 'is'} {listed(wrong[1:], most=3)}"
        return self.wrong(
            mistake,
            expected,
            f"on rank {rank} it is {what.format(**words)}" + (more if wrong[1:] else ""),
            usually.format(**words),
        )

    def is_wrong(self, name, came):
        total = added([own[name] for own in self.gradients])
        return total is not None and (came is None or not self.is_mean(came.value, total))
