"""What is wrong with training through a sharded optimizer, in the learner's numbers.

These mistakes belong to both ``sharding.Zero1Optimizer`` and ``sharding.Zero2Optimizer``.
"""

import torch

from multigpu.checking import Wrong
from multigpu.checking.comparing import all_alike, examine_handles, largest_difference, same
from multigpu.checking.verdicts import count, listed

from .explain_state import examine_state
from .explain_traffic import calls_of, examine_traffic
from .explain_weights import examine_weights
from .one_process import train


class Report:
    """What training with one optimizer came to on every rank, and what is wrong with it."""

    function: str  # the learner's class
    most_traffic: int  # times Ψ

    def __init__(self, world, case, results, answer):
        self.n, self.case, self.results, self.answer = world, case, results, answer
        self.right = train(case)
        if any(gradient is None for step in self.right for gradient in step.gradients.values()):
            zeros = train(case, zeros=True)  # right as well
            self.right = min(self.right, zeros, key=self.wrong_weights)
        self.trained = sizes_of(case)
        self.total = sum(self.trained.values())
        self.share = -(-self.total // world)  # rounded up
        self.bound = self.share + max(self.trained.values())

    @property
    def at_most(self):
        """The share of a rank, in words."""
        return (
            f"at most {self.bound} of {self.total} elements: ⌈{self.total}/{self.n}⌉ ="
            f" {self.share}, plus the largest parameter's {self.bound - self.share}"
        )

    @classmethod
    def most_gradients(cls, case, world):
        """How many a rank may hold in the inner step; None where they may be there."""
        return None

    def wrong(self, mistake, expected, came, usually, *, step=None, where=None):
        situation = f"{self.case.title}; {count(self.n, 'rank')}"
        situation += "" if step is None else f", step {step + 1}"
        return Wrong(
            f"{self.function}.{mistake}",
            expected=f"{expected} ({situation})",
            came=came,
            usually=usually,
            where=where or self.answer.where,
        )

    def note(self, step, rank):
        """What the drive wrote down in one step on one rank."""
        return self.results[rank]["steps"][step]

    def examine(self):
        """Raise what is wrong.  Returns remarks on what is right, but could be better."""
        self.examine_start()
        for step in range(len(self.right)):
            self.examine_messages(step)
            for rank in range(self.n):
                self.examine_cleared(step, rank)
                self.examine_frozen(step, rank)
                examine_weights(self, step, rank)
        self.examine_inner()
        examine_state(self)
        self.examine_more()
        return examine_traffic(self) if self.case.measured and self.n > 1 else []

    def examine_more(self):
        """For what one of the optimizers promises beyond the other."""

    def examine_start(self):
        """Before the first step nothing has changed, and the options are there to be set."""
        before = self.right[0].before
        for rank, result in enumerate(self.results):
            came = {name: tensor.value for name, tensor in result["start"]["weights"].items()}
            for name, tensor in came.items():
                if not same(tensor, before[name]):
                    raise self.wrong(
                        "start_changed",
                        "the constructor changes no weight: all ranks have equal ones already",
                        f"on rank {rank}, {name} {largest_difference(tensor, before[name])}",
                        "weights were copied to another place in the wrong order, scaled, or"
                        " received from somewhere.",
                    )
            self.examine_groups(rank, result["start"]["groups"])

    def examine_groups(self, rank, groups):
        rate = rate_of(self.case)
        missing = groups.get("missing")
        if not missing and groups.get("rates") and all(r == rate for r in groups["rates"]):
            return  # there may be several: one for each inner optimizer
        came = groups.get("problem") or f"the values of lr in it are {listed(groups['rates'])}"
        if missing:
            came = f"it has no {listed(missing)}"
        raise self.wrong(
            "param_groups_missing",
            f"param_groups is a list with one dict, with params and lr, which is {rate}, on every"
            " rank",
            f"on rank {rank}: {came}",
            "return inner.param_groups. A rank without an inner optimizer needs a list like that"
            " too, for a schedule sets lr there on all ranks: that of an optimizer of the same"
            " class for [torch.zeros(1)] has all options.",
        )

    def examine_messages(self, step):
        """Every handle was waited for, and nobody wrote into what was on its way."""

        def wrong(mistake, came, usually, *, where):
            expected = "what travels is left alone until its handle was waited for"
            return self.wrong(mistake, expected, came, usually, step=step, where=where)

        for rank in range(self.n):
            examine_handles(calls_of(self, step, rank), wrong)

    def examine_cleared(self, step, rank):
        left = self.note(step, rank)["left"]
        if left:
            raise self.wrong(
                "not_cleared",
                "after zero_grad() the gradients of all parameters are None or zeros",
                f"on rank {rank}, {listed(left, most=4)} still had gradients",
                "it cleared nothing, or only what the inner optimizer holds: that is a part of the"
                " parameters, or copies. And model.parameters() can be gone through once: list() it"
                " first.",
                step=step,
            )

    def examine_frozen(self, step, rank):
        note, frozen = self.note(step, rank), self.right[0].before
        for name, tensor in note["weights"].items():
            if name not in self.trained and not same(tensor.value, frozen[name]):
                raise self.wrong(
                    "frozen_moved",
                    "a frozen parameter (requires_grad=False) stays as it is",
                    f"on rank {rank}, {name} {largest_difference(tensor.value, frozen[name])}",
                    "it was given to the inner optimizer with a gradient of zeros: weight decay"
                    " moves it then. Leave frozen parameters out.",
                    step=step,
                )

    def examine_inner(self):
        """The steps were made by optimizers of the class that was given."""
        for step in range(len(self.right)):
            if not any(self.note(step, rank)["inner_steps"] for rank in range(self.n)):
                raise self.wrong(
                    "inner_not_used",
                    f"an optimizer of the class {self.case.kind} makes the step",
                    "the weights are right, but no optimizer of that class stepped on any rank",
                    "the step was computed by hand. Make optimizer_class(mine, **kwargs) and call"
                    " its step().",
                    step=step,
                )

    def wrong_weights(self, training):
        """How many steps of a training differ from what came on rank 0."""
        steps = self.results[0]["steps"]
        return sum(
            not all_alike({n: t.value for n, t in came["weights"].items()}, step.weights)
            for came, step in zip(steps, training, strict=True)
        )


def rate_of(case):
    """The learning rate of a case: its own, or that which its optimizer takes by itself."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    return getattr(torch.optim, case.kind)([parameter], **case.options).defaults["lr"]


def sizes_of(case):
    """The elements of every trained parameter, by name."""
    return {n: p.numel() for n, p in case.model_of().named_parameters() if p.requires_grad}
