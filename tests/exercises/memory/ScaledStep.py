"""``memory.ScaledStep``: gradients that float16 would lose, and one decision for all ranks.

Every rank has parameters of its own, so nothing but a message tells a rank what another one's
gradients are like.  A part of each loss is computed in float16: without scaling its gradients lose
digits, and they are infinite where a rank's loss is large.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import case, exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted

scaled_step = exercise(
    "memory.ScaledStep",
    expects=".grad holds the gradients that float32 would give, and step() steps all ranks or none",
)
handles_are_waited_for(scaled_step)

NAN, LARGE = math.nan, 1e3  # of a loss: its gradients are infinite in float16 with a large scale


class Half(nn.Module):
    """Rows of 3 numbers in; a score, a bias and a number of float32 out; ``idle`` is never used."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]) / (1 + rank))
        self.bias = nn.Parameter(torch.tensor(0.5 + rank))
        self.exact = nn.Parameter(torch.tensor(1.0))
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, rows):
        scores = (rows @ self.weight).half()
        return scores.float().mean(), self.bias.half().float(), self.exact


def rows_of(rank, step, number):
    """Of a rank in one pass; rank 0's have a zero, which times infinity is not a number."""
    return (torch.arange(6.0).reshape(2, 3) + rank + number) * (1 + step % 3) / 8


@scaled_step.cases
def cases():
    for world in (3, 2, 4, 1):
        last = world - 1
        everything = [
            *[{}, {last: LARGE}, {}, {}, {0: LARGE}, {0: LARGE, last: LARGE}, {}, {}],
            *[{(last, "bias"): LARGE}, {}, {last: None}, {}, {}, {(last, "exact"): 1e25}, {}],
        ]
        yield a_case(world, "SGD", everything, growth=2, example=world == 3)
        small = [{}, {last: NAN}, {}, {last: 1e9}, {}]
        yield a_case(world, "Adam", small, growth=3, clip=1e-6, scale=1.0, fine=0.125)
        passes = [{}, {(0, 0): LARGE}, {}, {(last, 1): LARGE}, {}, {}]
        yield a_case(world, "SGD", passes, growth=1, passes=2, scale=2.0**30)


def a_case(world, kind, unusual, *, growth, fine=1e-6, clip=None, passes=1, scale=2.0**16, **more):
    """``unusual[s]`` has a rank's factor of the loss in step s, if it is not ``fine``.

    A factor may be for one pass or one parameter alone, as in ``{(rank, "bias"): 1e3}``.  With None
    the rank makes no backward in this step.
    """
    what = ["", "clipped, "][clip is not None] + ["", "two passes in each step, "][passes > 1]
    return case(
        f"{kind}, {what}scale {scale:g}, growth_interval={growth}, on {counted(world, 'rank')}",
        world=world,
        kind=kind,
        unusual=unusual,
        fine=fine,
        growth=growth,
        clip=clip,
        passes=passes,
        scale=scale,
        **more,
    )


def optimizer_of(model, kind):
    options = {"SGD": {"lr": 1e3, "momentum": 0.9, "weight_decay": 1e-5}, "Adam": {"lr": 0.1}}
    groups = [{"params": [model.weight]}, {"params": [model.bias, model.exact, model.idle]}]
    return getattr(torch.optim, kind)(groups, **options[kind])


def losses_of(model, case, rank, step):
    """The losses of all passes of a step; the second pass does not reach ``exact``."""
    own = case.unusual[step - 1]
    if own.get(rank, 0) is None:
        return
    for number in range(case.passes):
        factor = own.get((rank, number), own.get(rank, case.fine))
        score, bias, exact = model(rows_of(rank, step, number).to(model.weight.device))
        loss = score * factor + bias * own.get((rank, "bias"), factor)
        if number == 0:
            loss = loss + exact * own.get((rank, "exact"), case.fine)
        yield loss


@scaled_step.drive
def drive(submission, case, rank):
    model = Half(rank).to(rank_device())
    optimizer = optimizer_of(model, case.kind)
    scaled = submission.ScaledStep(optimizer, case.scale, case.growth)
    came: dict[str, Any] = {}
    for step in range(1, len(case.unusual) + 1):
        optimizer.zero_grad()
        for loss in losses_of(model, case, rank, step):
            scaled.backward(loss)
        came |= gradients_of(model, step)
        if case.clip:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        came[f"step {step}: what step() returned"] = scaled.step()
        came[f"step {step}: scale"] = scaled.scale
        came |= weights_of(model, step)
    return came


def gradients_of(model, step):
    return {
        f"step {step}: the gradient of {name}": None if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def weights_of(model, step):
    return {f"after step {step}: {n}": p.detach().clone() for n, p in model.named_parameters()}


@scaled_step.expected
def expected(case):
    """All ranks in one process."""
    models = [Half(rank) for rank in range(case.world)]
    optimizers = [optimizer_of(model, case.kind) for model in models]
    results: list[dict[str, Any]] = [{} for _ in models]
    scale, in_a_row = case.scale, 0
    for step in range(1, len(case.unusual) + 1):
        fine = []
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for loss in losses_of(model, case, rank, step):
                (loss * scale).backward()
            gradients = [p.grad.div_(scale) for p in model.parameters() if p.grad is not None]
            fine.append(all(bool(g.isfinite().all()) for g in gradients))
            if fine[-1]:
                results[rank] |= gradients_of(model, step)
            if case.clip:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        in_a_row = in_a_row + 1 if all(fine) else 0
        scale = scale if all(fine) else scale / 2
        if in_a_row == case.growth:
            scale, in_a_row = 2 * scale, 0
        for rank, model in enumerate(models):
            if all(fine):
                optimizers[rank].step()
            results[rank][f"step {step}: what step() returned"] = all(fine)
            results[rank][f"step {step}: scale"] = scale
            results[rank] |= weights_of(model, step)
    return results


@scaled_step.words
def words(case):
    return {"scale": f"{case.scale:,.0f}"}


# --- what answers are made of --------------------------------------------------------------------


class Scaled:
    """Right, and each mistake below changes one method."""

    def __init__(self, optimizer, scale=2.0**16, growth_interval=2000):
        self.optimizer, self.scale, self.growth_interval = optimizer, scale, growth_interval
        self.count = 0

    def parameters(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def gradients(self):
        return [p.grad for p in self.parameters() if p.grad is not None]

    def backward(self, loss):
        before = self.gradients_before()
        (loss * self.scale).backward()
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad / self.scale
        self.add(before)

    def gradients_before(self):
        """Taken away, so that they are not divided twice."""
        before = {p: p.grad for p in self.parameters() if p.grad is not None}
        for parameter in before:
            parameter.grad = None
        return before

    def add(self, before):
        for parameter, gradient in before.items():
            new = parameter.grad
            parameter.grad = gradient if new is None else new + gradient

    def overflowed(self):
        return any(not torch.isfinite(g).all() for g in self.gradients())

    def any_rank(self, overflowed):
        device = self.parameters()[0].device
        found = [torch.zeros(1, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(found, torch.tensor([float(overflowed)], device=device))
        return sum(found).item() > 0

    def step(self):
        if self.any_rank(self.overflowed()):
            self.skipped()
            return False
        self.optimizer.step()
        self.stepped()
        return True

    def skipped(self):
        self.scale /= 2
        self.count = 0

    def stepped(self):
        self.count += 1
        if self.count % self.growth_interval == 0:
            self.scale *= 2
            self.count = 0


@scaled_step.right
class gathers_and_adds(Scaled):
    pass


@scaled_step.right
class looks_in_backward(Scaled):
    bad = 0.0

    def backward(self, loss):
        super().backward(loss)
        finite = [g.isfinite().all() for g in self.gradients()]
        self.bad = max(self.bad, float(not all(finite)))

    def overflowed(self):
        bad, self.bad = self.bad, 0.0
        return bool(bad)

    def any_rank(self, overflowed):
        found = torch.tensor(float(overflowed), device=self.parameters()[0].device)
        dist.all_reduce(found)
        return bool(found)


@scaled_step.mistake(
    "not_scaled",
    "the loss was not scaled before backward, so small gradients lost digits in float16.",
    fix="(loss * scale).backward(), then divide every gradient by scale.",
)
class plain_backward(Scaled):
    def backward(self, loss):
        loss.backward()


@scaled_step.mistake(
    "still_scaled",
    "the gradients were not divided by scale after backward, or in step() only: the caller clips"
    " what is {scale} times too large.",
    fix="Divide every .grad by scale in backward().",
)
class not_divided(Scaled):
    def backward(self, loss):
        (loss * self.scale).backward()


@scaled_step.mistake(
    "divided_twice",
    "what .grad held before this backward() is divided by scale once more.",
    fix="Put the gradients that are there away, and add them again afterwards.",
)
class divides_all_each_time(Scaled):
    def gradients_before(self):
        return {}


@scaled_step.mistake(
    "replaces",
    "what .grad held of earlier passes was lost.",
    fix="Add it to the new gradients: accumulation calls backward() several times before step().",
)
class forgets_before(Scaled):
    def gradients_before(self):
        super().gradients_before()
        return {}


@scaled_step.mistake(
    "first_group_only",
    "only the first of the optimizer's groups was looked at.",
    fix="for group in optimizer.param_groups, for p in group['params'].",
)
class first_group(Scaled):
    def parameters(self):
        return self.optimizer.param_groups[0]["params"]


@scaled_step.mistake(
    "steps_with_overflow",
    "the optimizer stepped although gradients are infinite or not a number.",
    fix="If any is not finite, return False without a step.",
)
class steps_anyway(Scaled):
    def step(self):
        fine = super().step()
        if not fine:
            self.optimizer.step()
        return fine


@scaled_step.mistake(
    "steps_with_overflow",
    "only infinite gradients were looked for. Clipping makes them nan, and a loss can be nan.",
    fix="torch.isfinite is False for both.",
)
class looks_for_inf(Scaled):
    def overflowed(self):
        return any(torch.isinf(g).any() for g in self.gradients())


@scaled_step.mistake(
    "each_rank_decides",
    "a rank looks at its own gradients only: one skips the step while the others make it.",
    fix="all_reduce whether gradients overflowed, with MAX or as a sum, and decide by the result.",
)
class decides_alone(Scaled):
    def any_rank(self, overflowed):
        return overflowed


@scaled_step.mistake(
    "finite_refused",
    "a sum or a norm of finite gradients can be infinite itself, such as 1e25 squared.",
    fix="Look at every number: torch.isfinite(gradient).all().",
)
class looks_at_the_norm(Scaled):
    def overflowed(self):
        squares = sum(g.square().sum() for g in self.gradients())
        return not math.isfinite(squares)


@scaled_step.mistake(
    "only_some_ask",
    "only some ranks call the collective, such as one that overflowed, and wait for the others.",
    fix="All ranks call it in every step.",
    status="hang",
    roughly=True,
)
class asks_if_overflowed(Scaled):
    def any_rank(self, overflowed):
        return overflowed and super().any_rank(overflowed)


@scaled_step.mistake(
    "not_halved",
    "the scale stayed the same after a step that was skipped, so the next one overflows as well.",
    fix="Halve it.",
)
class keeps_the_scale(Scaled):
    def skipped(self):
        self.count = 0


@scaled_step.mistake(
    "never_grows",
    "the scale was not doubled.",
    fix="Count the steps in a row that were not skipped. At growth_interval, double the scale.",
)
class does_not_double(Scaled):
    def stepped(self):
        pass


@scaled_step.mistake(
    "skipped_step_does_not_reset",
    "the count went on after a step that was skipped.",
    fix="Only steps in a row count: set the count to 0 where you halve the scale.",
)
class counts_on(Scaled):
    def skipped(self):
        self.scale /= 2
