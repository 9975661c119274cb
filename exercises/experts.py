"""Experts on many GPUs: tokens travel to the weights that they need, and back.

A mixture of experts has many MLPs, its experts, in the place of one, and a router chooses for each
token which of them it goes to.  Each rank holds some of the experts and some of the tokens.  So a
token is sent to the rank of its expert, and the result is sent back:

    dispatch    send every token to the rank of its expert, and sort the tokens there by expert
    combine     send the results back, in the original order of the tokens

You do not write the router: an argument says which expert each token goes to.  Every rank calls
both at the same time, and ``torch.distributed`` is initialized: ask ``dist.get_rank()`` and
``dist.get_world_size()``.  They work on the CPU and on GPUs.

    multigpu check experts.dispatch         check one function
    multigpu hint experts.dispatch          a hint; add --more for a stronger one
    python exercises/experts.py             train four experts on two ranks with your code

Read the lesson docs/lessons/experts first.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def dispatch(tokens: Tensor, expert: Tensor, num_experts: int) -> tuple[Tensor, Any]:
    """Send every token to the rank of its expert.

    * ``tokens`` has the shape (n, width), in any floating-point dtype, and ``expert`` the shape
      (n,), int64 on the same device: token i goes to expert ``expert[i]``.  Neither is changed.
    * Width, dtype and ``num_experts`` are the same on all ranks, but n is not: a rank may have any
      number of tokens, also none.  An expert may get no token, and so may a whole rank.
    * Experts are numbered from 0 to ``num_experts - 1``.  The world size divides ``num_experts``,
      and rank r holds ``num_experts / world_size`` experts that follow each other: rank 0 the
      first ones, and so on.  Expert e is on rank ``e // (num_experts // world_size)``.
    * Returns ``(received, sent)``.  ``received`` has one row for each token of any rank that goes
      to an expert of this rank, with the width and dtype of ``tokens``.  The rows of this rank's
      first expert come first, then those of its second one, and so on.  The rows of one expert are
      in the order of the ranks that they come from, and those from one rank in their order there.
    * ``sent`` is an object of your choice that holds what ``combine`` needs.  Callers read one
      attribute of it: ``sent.counts`` is a list of ints, the number of rows of each expert of this
      rank.  ``received.split(sent.counts)`` are then the tokens of each expert.
    * It is **differentiable**: in backward the gradient of a received row travels back to the rank
      of its token, where it becomes the token's gradient, neither summed nor averaged with others.
      Either the tokens of all ranks need a gradient or those of none do.
    * The numbers of a token go to the rank of its expert and nowhere else, once in forward, and
      those of a gradient come back once.  No padding is sent.  In addition, ranks may tell each
      other how many rows they send, and the numbers of the experts.
    * Several calls may come before their ``combine``, in any order.

    Example::

        # two ranks, four experts: 0 and 1 are on rank 0, 2 and 3 on rank 1
        # rank 0 has tokens a, b, c for experts 3, 0, 3; rank 1 has d, e for experts 0, 2
        received, sent = dispatch(tokens, expert, num_experts=4)
        # rank 0: received is b, d        and sent.counts is [2, 0]
        # rank 1: received is e, a, c     and sent.counts is [1, 2]

    Source: Lepikhin et al. 2020 (GShard), arXiv 2006.16668, section 3; Megatron-LM,
    ``megatron/core/transformer/moe/token_dispatcher.py``, ``MoEAlltoAllTokenDispatcher``.

    Lesson: docs/lessons/experts
    """
    raise NotImplementedError


def combine(outputs: Tensor, sent: Any) -> Tensor:
    """Send the results of the experts back to where their tokens came from.

    * ``outputs`` has one row for each row of what ``dispatch`` returned, in the same order.  Its
      width and dtype may differ from those of the tokens; they are the same on all ranks.
      It is not changed.
    * ``sent`` is what ``dispatch`` returned beside those rows.  It may be used more than once.
    * Returns a tensor (n, width of ``outputs``): row i is the result for token i of this rank.
    * It is **differentiable**: in backward the gradient of a result travels to the rank of its
      expert, where it becomes the gradient of its row of ``outputs``.  Either the outputs of all
      ranks need a gradient or those of none do, even on a rank without rows.
    * A result goes to the rank of its token and nowhere else, once in forward, and its gradient
      comes back once.  No padding is sent.

    Example::

        received, sent = dispatch(tokens, expert, num_experts)
        rows = received.split(sent.counts)
        outputs = torch.cat([mlp(own) for mlp, own in zip(experts, rows)])
        results = combine(outputs, sent)        # (n, width), in the order of tokens

    Source: as ``dispatch``; DeepSpeed, ``deepspeed/moe/sharded_moe.py``, ``_AllToAll``.

    Lesson: docs/lessons/experts
    """
    raise NotImplementedError


if __name__ == "__main__":
    # Four experts learn handwritten digits, on one rank and on two, with your code.
    from torch import nn

    from multigpu import RankError, run_ranks
    from multigpu.data import digits

    EXPERTS, WIDTH, ROWS, STEPS = 4, 32, 64, 30  # rows of a step, over all ranks
    images, labels = digits().train.tensors

    class Mixture(nn.Module):
        """Experts, of which this rank keeps its own, and a router, which all ranks have."""

        def __init__(self) -> None:
            super().__init__()
            own = EXPERTS // dist.get_world_size()
            first = dist.get_rank() * own
            made = [nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
                    for _ in range(EXPERTS)]  # fmt: skip
            self.router = nn.Linear(WIDTH, EXPERTS)
            self.experts = nn.ModuleList(made[first : first + own])
            self.came: list[list[int]] = []  # tokens of each own expert, step by step

        def forward(self, tokens: Tensor) -> Tensor:
            share, expert = self.router(tokens).softmax(-1).max(-1)
            received, sent = dispatch(tokens, expert, EXPERTS)
            self.came.append(sent.counts)
            rows = received.split(sent.counts)
            outputs = torch.cat([mlp(own) for mlp, own in zip(self.experts, rows, strict=True)])
            return tokens + share[:, None] * combine(outputs, sent)

    def train() -> tuple[list[float], list[list[int]]]:
        """The losses, and how many tokens came for each expert of this rank."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        mixture = Mixture()
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), mixture, nn.Linear(WIDTH, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses, of_experts = [], {*mixture.experts.parameters()}
        for step in range(STEPS):
            rows = torch.arange(step * ROWS, (step + 1) * ROWS)[rank::ranks] % len(labels)
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                if parameter.grad is None:  # only if your outputs have no graph
                    raise SystemExit("A parameter has no gradient: is your code differentiable?")
                if parameter not in of_experts:  # those of an expert have come to it already
                    dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
            optimizer.step()
            mean = loss.detach() / ranks
            dist.all_reduce(mean)
            losses.append(mean.item())
        return losses, mixture.came

    writing = "dispatch"
    try:
        for ranks in (1, 2):
            results = run_ranks(train, ranks, backend="gloo", show=False)
            losses = results[0][0]
            print(f"{ranks} rank{'s' * (ranks > 1)}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
            for rank, (_, came) in enumerate(results):
                print(f"  rank {rank}: tokens of its experts {came[0]}, last step {came[-1]}")
    except RankError as error:
        if "NotImplementedError" not in f"{type(error).__name__} {error}":
            raise SystemExit(str(error)) from None
        writing = "combine" if "in combine" in str(error) else writing
        print(f"Next to write: {writing}. Check it with: multigpu check experts.{writing}")
