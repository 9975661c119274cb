"""The model server: one process holds the model and the optimizer, the others compute gradients.

This is an older way to train one model on many machines (Li et al. 2014), which all-reduce has
mostly replaced.  Rank 0 is the server, ranks 1 to n are the workers:

    worker 1   backward --gradients-->            <--new weights--
    worker 2   backward --gradients-->  server    <--new weights--
    worker n   backward --gradients-->  mean, optimizer step

You write one step of each side.  You choose what to send, one message per parameter or one for all,
with any call of ``torch.distributed``.  Both sides must agree, so they are checked together.

    multigpu check model_server             check both functions
    multigpu hint model_server.worker_step  a hint; add --more for a stronger one
    python exercises/model_server.py        train on real rows, and watch the server's link

Read the lesson docs/lessons/server_to_all_reduce first.

For both sides of a step:

* All ranks have built the same model, with the same weights at the start.
* Messages go only between rank 0 and a worker.  ``dist.reduce`` and ``dist.broadcast`` with rank 0
  as root are fine, too.  In each step every parameter is sent at most once from a worker to the
  server, as a gradient, and at most once back, as new weights.  With parameters of W bytes and n
  workers the server's link therefore carries 2 n W bytes per step.
* Weights that are tied (one parameter used in two places) are one parameter and are sent once.
  Frozen parameters (``requires_grad`` is False) need not be sent.  Buffers, which are tensors of
  the model that are not trained, must not be sent.
* If a call returns a handle, wait for it, and until then do not write into what you are sending.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def worker_step(model: nn.Module, loss: Tensor) -> None:
    """One step of a worker: backward, gradients to the server, new weights back.

    * Ranks 1 to n call it, each with its own copy of the model and with the loss of its own rows.
      Backward has not run yet, so you must call it.
    * The gradients of this one loss are sent to rank 0.  You must clear ``.grad`` yourself, so that
      gradients of an earlier step do not count again.
    * A parameter that this loss does not depend on has no gradient (``.grad`` is ``None``).  It
      counts as zeros.
    * Afterwards the model has the new weights that the server's optimizer computed.  Its buffers
      are still the worker's own.
    * A worker has no optimizer: only the server has state such as momentum.

    Returns nothing.

    Example::

        # on rank 1 and rank 2, while rank 0 calls server_step(model, optimizer)
        for inputs, targets in batches:
            worker_step(model, loss_fn(model(inputs), targets))

    Lesson: docs/lessons/server_to_all_reduce
    """
    model.zero_grad()  # what an earlier step has left must not count again
    loss.backward()
    for parameter in _trained(model):
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.send(gradient.contiguous(), dst=0)
    for parameter in _trained(model):
        _receive_into(parameter, src=0)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step of the server: the mean of all workers' gradients, one optimizer step, new weights.

    * Rank 0 calls it.  ``optimizer`` holds the parameters of ``model``, and no other rank has an
      optimizer.  The server has no rows: it computes no loss and no gradient of its own.
    * It receives the gradients of every worker and takes their mean, which is their sum divided by
      the number of workers.  A missing gradient counts as zeros, and that of a frozen parameter
      stays None.  Gradients of earlier steps do not count.
    * Then it does one step of the optimizer and sends the new weights to every worker.
    * Step after step this equals training in one process on the mean of the workers' losses.
    * Without workers (world size 1) it returns without communicating, and the weights do not
      change.

    Returns nothing.

    Example::

        # on rank 0, while ranks 1 and 2 call worker_step(model, loss)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            server_step(model, optimizer)

    Lesson: docs/lessons/server_to_all_reduce
    """
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    for worker in workers:
        for parameter in _trained(model):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            arrived = torch.empty_like(parameter, memory_format=torch.contiguous_format)
            dist.recv(arrived, src=worker)
            parameter.grad += arrived / len(workers)
    optimizer.step()
    for worker in workers:
        for parameter in _trained(model):
            dist.send(parameter.detach().contiguous(), dst=worker)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that travel.  ``parameters()`` gives tied ones once, in the same order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _receive_into(parameter: nn.Parameter, *, src: int) -> None:
    """Replace the numbers of a parameter by those that rank ``src`` sends."""
    arrived = torch.empty_like(parameter, memory_format=torch.contiguous_format)
    dist.recv(arrived, src=src)
    with torch.no_grad():  # autograd forbids in-place writes into parameters that are trained
        parameter.copy_(arrived)


if __name__ == "__main__":
    # A server and two workers train on handwritten digits, as far as your functions go.
    from multigpu import RankError, run_ranks
    from multigpu.data import digits
    from multigpu.training.models import SmallCNN

    STEPS, ROWS = 20, 50
    images, labels = digits().train[: 2 * ROWS * STEPS]

    def train(steps: int) -> list[float]:
        """The losses of a worker; none on the server."""
        torch.manual_seed(0)  # all ranks begin with the same weights
        model = SmallCNN()
        rank, losses = dist.get_rank(), []
        if rank == 0:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(steps):
                server_step(model, optimizer)
            return losses
        for step in range(steps):
            first = ROWS * ((rank - 1) * STEPS + step) % len(images)
            rows = slice(first, first + ROWS)
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            worker_step(model, loss)
            losses.append(loss.item())
        return losses

    try:
        for step, both in enumerate(zip(*run_ranks(train, 3, STEPS, show=False)[1:], strict=True)):
            print(f"step {step + 1:2}: losses of the workers {both[0]:.3f} and {both[1]:.3f}")
        print(f"\nOne step, W = {4 * sum(p.numel() for p in SmallCNN().parameters()):,} bytes:")
        trace = run_ranks(train, 3, 1, show=False).trace
        print(trace.traffic().text())
        hot = trace.sent_bytes(0) + trace.received_bytes(0)
        print(f"\nThrough the server's link went {hot:,} bytes: 2 n W with n = 2 workers.")
    except RankError as error:
        missing = [f for f in ("worker_step", "server_step") if f"in {f}" in str(error)]
        if "NotImplementedError" not in str(error) or not missing:
            raise SystemExit(str(error)) from None
        print(f"Next to write: {missing[0]}. Check both with: multigpu check model_server")
