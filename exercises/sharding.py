"""Sharded training by hand: each rank keeps only a part of the state of training (ZeRO).

With DistributedDataParallel every rank holds all weights, all gradients and the whole state of the
optimizer, so the same numbers are stored n times on n ranks.  Here each rank keeps a part of them,
a **shard**, and does the work on that part for all ranks:

    Zero1Optimizer   the optimizer's state is sharded
    Zero2Optimizer   the gradients too
    Zero3            the weights too

Ψ is the number of trained elements, n the number of ranks.  With one backward per step, the
messages carry 2 Ψ elements per rank, as in an all-reduce, and 3 Ψ if the weights are sharded too.

``torch.distributed`` is initialized when your code runs: ask ``dist.get_rank()`` and
``dist.get_world_size()``.  It works on the CPU and on GPUs.

    multigpu check sharding.Zero1Optimizer    check one class
    multigpu hint sharding.Zero1Optimizer     a hint; add --more for a stronger one
    python exercises/sharding.py              train a small GPT, and see what each rank holds

Read the lesson docs/lessons/sharding first.  You build these here, so you may not use them:
``torch.nn.parallel``, ``DistributedSampler``, ``torch.distributed.algorithms``,
``torch.distributed.optim`` (``ZeroRedundancyOptimizer``), ``torch.distributed.fsdp``
(``fully_shard``).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Zero1Optimizer:
    """An optimizer whose state is divided among the ranks: each rank holds and steps its part.

    * ``Zero1Optimizer(params, optimizer_class, **kwargs)`` takes what a torch optimizer takes:
      ``params`` is an iterable of parameters, such as ``model.parameters()``, and ``kwargs`` are
      the options of ``optimizer_class`` (``lr``, ``betas``, ``weight_decay`` and so on).
    * ``optimizer_class`` is ``SGD``, ``Adam``, ``AdamW``, ``RMSprop`` or ``Adagrad`` of
      ``torch.optim``.  They compute each element independently, so a part of a parameter can be
      stepped without the rest.  Such an optimizer makes the steps: you create one or more inner
      optimizers for the elements that this rank owns.
    * All ranks start with equal weights, and each calls ``backward()`` on its own rows.  Nothing
      has averaged the gradients before ``step()``, which averages them over all ranks.
    * After every ``step()`` each rank has all the new weights: those that the plain optimizer gives
      in one process on the rows of all ranks together, with the same options.  Momentum, averages
      and counts are kept from step to step.  Nothing but ``step()`` changes weights.
    * A rank holds optimizer state for at most ⌈Ψ/n⌉ elements plus those of the largest parameter,
      at any time, even during the step.  (Adam has two numbers for each such element, SGD with
      momentum has one.)  A view keeps the memory of the whole tensor that it is a part of.  You may
      divide the work by whole parameters, by slices of all parameters side by side, or by slices
      of each parameter: all of these stay below that limit.
    * If there are so few parameters that a rank owns nothing, that rank still takes part.  Torch's
      optimizers refuse an empty list.
    * ``zero_grad()`` sets the gradients of all parameters to ``None`` or to zeros.
    * On every rank ``param_groups`` is a list with a dict as in a torch optimizer: ``params`` and
      all options, given or not.  Setting ``group["lr"]`` on all ranks changes the learning rate.
      (This is not a ``torch.optim.Optimizer``, so the schedulers of torch refuse it.)
    * Frozen parameters (``requires_grad=False``) do not change, and a tied one counts once.  A
      gradient that is ``None`` on some ranks counts as zeros there.  If it is ``None`` on all
      ranks, you may leave the parameter unchanged or step it with a gradient of zeros.
    * All parameters have one dtype and are on one device.
    * One step sends at most 3 Ψ elements per rank, as all-reduce (2 Ψ) and broadcast (Ψ) do, not
      counting the padding of unequal parts.  2 Ψ is possible: the check says what yours sends.

    Example::

        optimizer = Zero1Optimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()      # on every rank its own rows
        optimizer.step()

    Lesson: docs/lessons/sharding
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        optimizer_class: type[torch.optim.Optimizer],
        **kwargs: Any,
    ) -> None:
        raise NotImplementedError

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One dict with the options, such as ``lr``.  An attribute works as well as a property."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        raise NotImplementedError

    def step(self) -> None:
        """Average the gradients, step what this rank owns, and bring all weights to all ranks."""
        raise NotImplementedError


class Zero2Optimizer:
    """Like Zero1Optimizer, but each gradient is summed on its owner only, and freed elsewhere.

    The rules of ``Zero1Optimizer`` hold here too, and the arguments and methods are the same, so
    you may inherit from it.  Only ``step()`` differs:

    * The sum of a gradient goes only to the rank that owns it, with ``reduce`` or
      ``reduce_scatter`` and not with ``all_reduce``.
    * When the inner optimizer steps, only the gradients of what this rank owns are left: at most
      ⌈Ψ/n⌉ elements plus those of the largest parameter.  The ``.grad`` of all other parameters is
      ``None`` by then, and nothing else keeps its numbers in memory: no list, flat tensor or view.
    * One step sends at most 2 Ψ elements per rank: Ψ for the gradients and Ψ for the new weights.
      The padding of unequal parts is not counted.

    Example::

        optimizer = Zero2Optimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()      # every rank has all its gradients ...
        optimizer.step()                                # ... and has its part of them left

    Lesson: docs/lessons/sharding
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        optimizer_class: type[torch.optim.Optimizer],
        **kwargs: Any,
    ) -> None:
        raise NotImplementedError

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One dict with the options, such as ``lr``.  An attribute works as well as a property."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        raise NotImplementedError

    def step(self) -> None:
        """Average the gradients at their owners, free the rest, step, and share the weights."""
        raise NotImplementedError


class Zero3(nn.Module):
    """A model of which each rank keeps a part: a whole layer is in memory only while it is needed.

    A **layer** is a module with parameters of its own, those of ``parameters(recurse=False)``.

    * ``Zero3(module)`` cuts the parameters of every layer into n parts of equal length, with
      padding if n does not divide it, and keeps one of them: this rank's shard.  You may cut each
      parameter by itself, or those of a layer side by side.  Ranks may start with different
      weights, and all take the shards of rank 0's module.  No other code uses the module.
    * ``parameters()`` gives this rank's shards and nothing else: for every parameter at most
      ⌈its elements/n⌉, in tensors that an optimizer can step.
    * ``forward`` calls the module with the inputs it is given, and returns what the module returns.
      A layer's parameters are gathered for its forward, and discarded after it.
    * In backward they are gathered again, and discarded.  The layer's gradients are
      reduce-scattered (each rank gets the sum of its part), and after ``loss.backward()`` the
      ``.grad`` of every shard is its part of the mean over all ranks.  No other call is needed.
    * So training is the same as in one process on the rows of all ranks together, step after step,
      if all have the same number of rows and the loss is a mean over rows.
    * From the end of ``__init__`` on, this rank never has more weights than its shards and two
      whole layers.  Besides the shards' ``.grad`` it has at most the whole gradients of two layers,
      each of which may exist twice while it is sent.  Padding is not counted.  A layer that
      contains other layers may stay in memory while these run.
    * All memory that is still in use counts.  A view keeps the whole tensor that it is a part of.
      Autograd keeps what backward needs, and that includes weights: dropping your own reference to
      a gathered layer after its forward does not free it.
    * One step sends at most 3 Ψ elements per rank: Ψ to gather for forward, Ψ to gather for
      backward, Ψ to reduce-scatter the gradients.  (An all-reduce counts twice its elements.)
    * ``eval()``, ``train()`` and ``torch.no_grad()`` do what they do with the module itself.  A
      forward that is only for evaluation has no backward.
    * Every parameter is trained, is in one layer only, and is used once in each forward on all
      ranks.  All have one dtype.  There is one backward for each forward that trains, and gradients
      are zeroed before.  There is no BatchNorm and no other buffer that changes.

    Example::

        model = Zero3(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)   # of the shards
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()      # on every rank its own rows
        optimizer.step()                                # each rank steps its shards

    Lesson: docs/lessons/sharding
    """

    def __init__(self, module: nn.Module) -> None:
        raise NotImplementedError

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """This rank's shards."""
        raise NotImplementedError

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module."""
        raise NotImplementedError


if __name__ == "__main__":
    # A small GPT on 3 ranks with your code, as far as it goes, and what each rank held.
    from torch.optim.optimizer import register_optimizer_step_post_hook as after_inner_step
    from torch.optim.optimizer import register_optimizer_step_pre_hook as before_inner_step

    from multigpu import RankError, run_ranks
    from multigpu.data import text
    from multigpu.training.models import SmallGPT

    WORLD_SIZE, ROWS, STEPS = 3, 8, 10  # ranks, rows per rank and step, steps
    inputs, targets = text().train.tensors

    class Replicated(torch.optim.AdamW):
        """Without sharding: each rank holds everything, and all-reduces the gradients."""

        def __init__(self, params, optimizer_class, **kwargs):
            super().__init__(params, **kwargs)

        def step(self):
            for parameter in self.param_groups[0]["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            super().step()

    def elements(tensors):
        """How many numbers these tensors keep in memory; shared memory counts once."""
        storages = {t.untyped_storage().data_ptr(): t for t in tensors if t is not None}
        return sum(len(t.untyped_storage()) // t.element_size() for t in storages.values())

    def small_gpt():
        """With its own head, because Zero3 needs each parameter in one layer only."""
        model = SmallGPT()
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return model

    def train(make):
        """The last loss, and the most that this rank held: weights, gradients and state."""
        torch.manual_seed(0)  # all ranks begin with the same weights
        model = small_gpt()
        kind = make
        if make is Zero3:
            model, kind = Zero3(model), torch.optim.AdamW
        held = {"weights": [], "gradients": [], "state": []}

        def note_gradients(inner, *_):
            stepped = inner.param_groups[0]["params"]
            held["gradients"].append(elements(p.grad for p in (*model.parameters(), *stepped)))

        def note_state(inner, *_):
            held["state"].append(elements(t for own in inner.state.values() for t in own.values()))

        hooks = before_inner_step(note_gradients), after_inner_step(note_state)
        shared = {} if make is Zero3 else {"optimizer_class": torch.optim.AdamW}
        optimizer = kind(model.parameters(), lr=3e-3, **shared)
        for step in range(STEPS):
            first = ROWS * (WORLD_SIZE * step + dist.get_rank())
            rows = slice(first, first + ROWS)
            optimizer.zero_grad()
            scores = model(inputs[rows])  # (rows, length, 256)
            # Between forward and backward: what is stepped, and what the modules hold.
            held["weights"].append(elements((*model.parameters(), *nn.Module.parameters(model))))
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets[rows].flatten())
            loss.backward()
            optimizer.step()
        for hook in hooks:
            hook.remove()
        dist.all_reduce(loss.detach_())
        return loss.item() / WORLD_SIZE, {name: max(seen) for name, seen in held.items()}

    total = sum(parameter.numel() for parameter in small_gpt().parameters())
    print(f"A GPT with Ψ = {total:,} weights and AdamW on {WORLD_SIZE} ranks, {STEPS} steps.")
    print("Elements on each rank: weights after forward; the rest when the optimizer steps.")
    for make in (Replicated, Zero1Optimizer, Zero2Optimizer, Zero3):
        try:
            results = run_ranks(train, WORLD_SIZE, make, show=False)
        except RankError as error:
            if "NotImplementedError" not in str(error):
                raise SystemExit(str(error)) from None
            name = f"sharding.{make.__name__}"
            print(f"Next to write: {make.__name__}. Check it with: multigpu check {name}")
            break
        loss = max(loss for loss, _ in results)
        most = {name: max(held[name] for _, held in results) for name in results[0][1]}
        held = "  ".join(f"{name} {number:>7,}" for name, number in most.items())
        print(f"  {make.__name__:<15} {held}  loss {loss:.4f}")
