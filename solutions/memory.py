"""Training in less memory: compute in 16 bits, and discard activations to compute them again.

Between forward and backward, activations often take more memory than everything else.  You write
two ways to need fewer bytes for them:

    ScaledStep      train in float16, whose small gradients would become zero without loss scaling
    Checkpointed    keep a module's inputs only, and compute the rest again in backward

``ScaledStep`` runs on ranks: ``torch.distributed`` is initialized when your code runs.
``Checkpointed`` needs one process, on the CPU or on a GPU.

    multigpu check memory.ScaledStep        check one class
    multigpu hint memory.ScaledStep         a hint; add --more for a stronger one
    python exercises/memory.py              train a small GPT with your classes, and compare

Read the lesson docs/lessons/precision first.  You build these here, so you may not use
``torch.utils.checkpoint`` or ``GradScaler``.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ScaledStep:
    """Steps for training in float16: scaled losses, and no step with gradients that overflowed.

    Numbers below 3e-8 become zero in float16, and many gradients are smaller than that.  So the
    loss is multiplied by a large ``scale`` before backward, and all gradients with it.  Gradients
    that get too large for float16 are infinite or not a number, and then the step is skipped.

    * ``ScaledStep(optimizer, scale, growth_interval)`` takes any torch optimizer whose ``step()``
      needs no closure, of one or more groups of parameters.  Parameters, their gradients and the
      loss are float32, only parts of forward and backward are float16.
    * ``backward(loss)`` calls backward for ``scale`` times the loss.  It leaves in the ``.grad`` of
      the optimizer's parameters what ``loss.backward()`` would leave if float16 had no limits:
      gradients that are **not scaled** any more, so that the caller can clip them.  They add up:
      ``.grad`` may hold the gradients of an earlier ``backward(loss)``, and a later one need not
      reach every parameter.  What ``loss.backward()`` leaves ``None`` stays ``None``.
    * ``step()`` steps the optimizer and returns True if all gradients on **all ranks** are finite,
      however large.  If a single number on a single rank is infinite or not a number, no rank
      steps, and all return False: weights and the optimizer's state stay as they are on every rank.
    * The ranks may hold the gradients of different parameters, as with ZeRO, and a rank may have
      none at all in a step.  So they must tell each other.  Messages are on the device of the
      parameters.
    * The attribute ``scale`` is a float, which is the same on all ranks.  After a skipped step it
      is halved.  When ``growth_interval`` steps in a row were made it is doubled, and the count
      begins again.
    * The caller clears the gradients after each step, even after a skipped one.

    Example::

        scaled = ScaledStep(optimizer)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = loss_fn(model(inputs), targets)
        scaled.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepped = scaled.step()

    Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.2.

    Lesson: docs/lessons/precision
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scale: float = 2.0**16,
        growth_interval: int = 2000,
    ) -> None:
        self.optimizer = optimizer
        self.scale = scale
        self.growth_interval = growth_interval
        self._steps = 0  # in a row, since the last one that was skipped

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to ``.grad``, without letting small ones become zero."""
        for gradient in self._gradients():  # what is there already is scaled, too
            gradient.mul_(self.scale)
        (loss * self.scale).backward()  # type: ignore[no-untyped-call]
        for gradient in self._gradients():
            gradient.div_(self.scale)

    def step(self) -> bool:
        """Step if all gradients of all ranks are finite, and adapt the scale."""
        gradients = self._gradients()
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        skip = torch.tensor(float(not finite), device=self._device)
        dist.all_reduce(skip, op=dist.ReduceOp.MAX)
        if skip:
            self.scale, self._steps = self.scale / 2, 0
            return False
        self.optimizer.step()
        self._steps += 1
        if self._steps == self.growth_interval:
            self.scale, self._steps = self.scale * 2, 0
        return True

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.optimizer.param_groups[0]["params"][0].device
        return device

    def _gradients(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [p.grad for group in groups for p in group["params"] if p.grad is not None]


class Checkpointed(nn.Module):
    """A module that keeps its inputs for backward, and computes everything else again.

    * ``Checkpointed(module)`` wraps any module.  Its parameters are those of ``module``.
    * It is called with one or more tensors, all on one device, and returns what ``module`` returns
      for them: one tensor.  Some inputs may hold integers or booleans, or need no gradient.
    * Between forward and backward it keeps nothing that ``module`` computed inside, on any device:
      only the inputs themselves (not copies of them), the output, and the states of random
      generators.
    * In backward ``module`` is called once more, and then all gradients are what they would be
      without ``Checkpointed``: those of the inputs, and those of the parameters, which add up in
      ``.grad`` over several passes.  This holds even if no input needs a gradient, as in the first
      layer of a model.  Parameters may be frozen (``requires_grad=False``), and one that this
      forward did not use keeps ``None``.
    * The second call gets the same **random numbers** as the first, so that dropout drops the same
      elements, on the CPU and on the GPU of the inputs.  Backward leaves the generators in the
      state in which they were before it.
    * The second call computes under the same **autocast** as the first, even if backward runs
      outside of it, or inside of another one.
    * The output needs a gradient only if an input or a parameter of ``module`` does, and then
      ``module`` uses at least one of these.  Without gradients (``torch.no_grad()``) ``module`` is
      called only once.
    * ``module`` has no buffers that forward changes.  There is one backward for each forward, and
      several forwards may come before their backwards.  Gradients are not differentiated again.

    Example::

        model = nn.Sequential(*(Checkpointed(block) for block in blocks), head)
        loss_fn(model(inputs), targets).backward()      # runs every block twice

    Source: Chen et al. 2016, arXiv 1604.06174.

    Lesson: docs/lessons/precision
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the module."""
        # Autograd calls backward below if any argument needs a gradient, so weights are arguments.
        weights = [p for p in self.module.parameters() if p.requires_grad]
        output: Tensor = _Recomputed.apply(self.module, len(inputs), *inputs, *weights)
        return output


class _Recomputed(torch.autograd.Function):
    """A module as one operator: autograd saves what forward says, and calls backward."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, count: int, *tensors: Tensor) -> Tensor:
        device = tensors[0].device
        ctx.module, ctx.count = module, count
        ctx.save_for_backward(*tensors)
        ctx.gpus = [device] if device.type == "cuda" else []
        ctx.random = torch.get_rng_state(), [torch.cuda.get_rng_state(gpu) for gpu in ctx.gpus]
        kind = device.type
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        output: Tensor = module(*tensors[:count])  # without gradients: nothing inside is saved
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        inputs, weights = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        # Detached, so that the gradients end here and do not go on into the layers before.
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
        with torch.enable_grad(), torch.random.fork_rng(ctx.gpus), torch.autocast(*ctx.autocast):
            torch.set_rng_state(ctx.random[0])
            for gpu, state in zip(ctx.gpus, ctx.random[1], strict=True):
                torch.cuda.set_rng_state(state, gpu)
            output = ctx.module(*inputs)
        tensors = [*inputs, *weights]
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        return None, None, *(next(found) if t.requires_grad else None for t in tensors)


if __name__ == "__main__":
    # Two ranks in float16, and what a small GPT holds, each with and without your class.
    from functools import partial

    from multigpu import RankError, run_ranks, virtual_gpus
    from multigpu.training.models import SmallGPT, next_byte_loss

    class Unscaled:
        """The same without loss scaling."""

        def __init__(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
            self.optimizer, self.scale = optimizer, 1.0

        def backward(self, loss: Tensor) -> None:
            loss.backward()

        def step(self) -> bool:
            self.optimizer.step()
            return True

    def train(kind: Any) -> str:
        """A sum of squares with tiny gradients, in float16: how the loss fell."""
        weights = nn.Parameter(torch.full((4,), 2.0 + dist.get_rank()))
        scaled = kind(torch.optim.SGD([weights], lr=2e6), scale=2.0**44)
        losses, skipped = [], 0
        for _ in range(40):
            scaled.optimizer.zero_grad()
            loss = weights.half().square().float().sum() * 1e-8
            losses.append(loss.item())
            scaled.backward(loss)
            skipped += not scaled.step()
        return f"loss {losses[0]:.1e} to {losses[-1]:.1e}, {skipped} steps skipped"

    def peak_of_a_step(wrap: Any) -> int:
        """The most bytes of one step on a virtual GPU, with each layer in ``wrap(layer)``."""
        with virtual_gpus(1) as machine:
            model = SmallGPT().cuda()
            for i, layer in enumerate(model.layers):
                model.layers[i] = wrap(layer)
            rows = torch.randint(0, 256, (32, 64), device="cuda")
            next_byte_loss(model(rows), rows).backward()
            return machine.memory(0).peak

    try:
        writing = "ScaledStep"
        start = partial(run_ranks, backend="gloo", show=False)
        for name, kind in (("without", Unscaled), ("ScaledStep", ScaledStep)):
            print(f"{name:13} {start(train, 2, kind)[0]}")
        writing = "Checkpointed"
        for name, wrap in (("plain", lambda layer: layer), ("Checkpointed", Checkpointed)):
            print(f"{name:13} {peak_of_a_step(wrap) / 2**20:5.1f} MiB at the peak of a step")
    except (NotImplementedError, RankError) as error:
        if "NotImplementedError" not in repr(error):
            raise
        print(f"Next to write: {writing}. Check it with: multigpu check memory.{writing}")
