"""Data parallelism by hand: one process trains one model on several GPUs.

``nn.DataParallel`` moves data between GPUs behind one wrapper.  Here you write these movements
yourself, as seven small functions that make up one training step:

    split -> replicate -> parallel_apply (forward) -> gather -> (backward)
          -> sum_gradients -> (optimizer step) -> broadcast

Everything works with real GPUs and without: if this machine has too few of them,
``multigpu.gpus(n)`` gives you virtual ones, and your code stays the same.  Before you try an
example, write ``from multigpu import gpus`` and call ``gpus(4)``.

    multigpu check data_parallel.split         check one function
    multigpu hint data_parallel.split          a hint; add --more for a stronger one
    python exercises/data_parallel.py          watch your functions work on real rows

Read the lesson docs/lessons/data_parallel_by_hand first.  You build these here, so you may not use
them: ``nn.DataParallel``, ``torch.nn.parallel``, ``torch.cuda.comm``.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    """Cut a batch into one chunk of rows per GPU and put each chunk on its GPU.

    * ``batch`` has shape (rows, ...) with one row or more, any number of further dimensions and
      any dtype.  It may be on the CPU or on a GPU.
    * ``devices`` is a list or a tuple, in any order: chunk i goes to ``devices[i]``.
    * Chunks are contiguous blocks of rows: the first chunk holds the first rows, the next one the
      rows after them, and so on.  No row is lost or repeated.
    * The sizes are those of ``torch.chunk``: with k GPUs every chunk has ceil(rows / k) rows, and
      only the last may be shorter.  A small batch gives fewer chunks than GPUs, never an empty one.
    * A chunk keeps the dtype and the further dimensions of the batch.

    Returns the list of chunks.  Each may be a copy, or a view that shares the batch's memory.

    Example::

        batch = torch.arange(10).reshape(5, 2)
        split(batch, gpus(4))
        # rows 0 and 1 on cuda:0, rows 2 and 3 on cuda:1, row 4 on cuda:2, nothing on cuda:3

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """Put a full copy of the model on every GPU.

    * ``replicas[0]`` is ``module`` itself, moved to ``devices[0]``.  The optimizer keeps training
      this module and not a copy of it.
    * Every other replica i is an independent copy on ``devices[i]``.  It has the same parameter
      values, the same train or eval mode in every submodule and the same ``requires_grad`` on
      every parameter.
    * It also has the same buffers, which are tensors that belong to the module but are not trained,
      such as the counts and averages of BatchNorm.  Integer buffers are copied as well, and so are
      non-persistent ones, which ``state_dict()`` leaves out.
    * Weights that are tied in ``module`` (one parameter used in two places) are tied in every
      replica too.
    * Nothing is shared: when one replica changes, the others do not.  Each one is a complete module
      with its own ``parameters()`` and ``buffers()``, so it can be trained by itself.
    * ``devices`` is a list or a tuple with one GPU or more, in any order.  ``module`` may be on the
      CPU or on a GPU.

    Returns the list of replicas, one per device.

    Example::

        model = nn.Linear(3, 2)
        replicas = replicate(model, gpus(2))
        replicas[0] is model         # True
        replicas[1].weight.device    # cuda:1

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    """Run the forward pass of all replicas at the same time, each in its own thread.

    * Replica i works on ``chunks[i]``, which is on its GPU already.  The calling thread may take
      one of the chunks itself.
    * All forwards run at the same time: no forward waits until another one has finished.
    * The outputs are in the order of the replicas, whichever forward finishes first.
    * A small batch gives fewer chunks than replicas.  Then the last replicas have nothing to do,
      and there are as many outputs as chunks.
    * A new thread always starts with gradients enabled.  Set the caller's grad mode
      (``torch.is_grad_enabled()``) in your threads, so that a caller inside ``torch.no_grad()`` or
      ``torch.inference_mode()`` gets outputs without gradients.  Any other caller gets outputs
      that can be trained.
    * When a replica raises an error, raise it again in the calling thread.  Its message, or a note
      on it (``error.add_note``), must name the replica, counted from 0: "replica 1".  You may
      raise another error if the first one is its cause (``raise ... from error``).

    Returns the list of outputs.  Output i stays on the GPU of replica i.

    Example::

        replicas = replicate(nn.Linear(3, 2), gpus(4))
        outputs = parallel_apply(replicas, split(torch.ones(5, 3), gpus(4)))
        [output.shape for output in outputs]     # (2, 2), (2, 2), (1, 2): three chunks

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    """Join the outputs of all replicas into one tensor on one GPU.

    * ``outputs`` is a list or a tuple of one tensor or more.  Each has at least one dimension, and
      its first dimension counts rows.  The tensors may have different numbers of rows, and may be
      on any GPUs in any order.
    * The rows keep their order: first all rows of ``outputs[0]``, then those of ``outputs[1]``,
      and so on.
    * The result has the dtype of the outputs and as many dimensions as each of them.  For example,
      (2, 10) and (1, 10) give (3, 10).
    * Gradients must be able to flow back: after ``result.sum().backward()`` every output has its
      gradient, on its own GPU.

    Returns one tensor on ``device``.

    Example::

        first, second = torch.ones(2, 10, device="cuda:0"), torch.ones(1, 10, device="cuda:1")
        gather([first, second], torch.device("cuda:0"))      # shape (3, 10) on cuda:0

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    """Add up the gradients of all replicas in the first one.

    After backward each replica holds the gradients of its own rows.  Their sum is the gradient of
    the whole batch.  It is a sum, not a mean, because the loss was already a mean over all rows.

    * Afterwards the ``.grad`` of every parameter of ``replicas[0]`` is the sum over all replicas,
      on the GPU of ``replicas[0]``.
    * A ``.grad`` that is ``None`` counts as zero.  It can be missing in any replica, the first one
      included, because a layer was not used or because the replica had no rows.
    * If no replica has a gradient for a parameter, its ``.grad`` stays ``None``.  This includes
      frozen parameters (``requires_grad=False``).
    * Tied weights are one parameter, so their gradient is added once per replica.
    * Only gradients change, never a weight.  What is left in the ``.grad`` of the other replicas
      does not matter.

    Returns nothing.

    Example::

        replicas = replicate(nn.Linear(1, 1), gpus(3))
        # say weight.grad is 1.0 on cuda:0, None on cuda:1 and 2.0 on cuda:2
        sum_gradients(replicas)
        replicas[0].weight.grad      # 3.0, on cuda:0

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


def broadcast(replicas: Sequence[nn.Module]) -> None:
    """Copy the parameters and buffers of the first replica into all others.

    The optimizer has changed ``replicas[0]`` only, so the other replicas must be updated.  All of
    this happens in one process.  ``collectives.broadcast``, which you write later, sends a tensor
    from one process to the others.

    * Afterwards every parameter and every buffer of every replica equals that of ``replicas[0]``.
      This includes frozen parameters, integer buffers and non-persistent buffers, which
      ``state_dict()`` leaves out.
    * Copy in place, as ``copy_`` does: every parameter and buffer stays the same object and keeps
      its memory, and only the numbers in it change.  Then everything that refers to the tensor sees
      the new numbers: an optimizer, a view, or a hook (a function that PyTorch calls during forward
      or backward).  ``p = ...`` and ``p.data = ...`` put a new tensor there instead.
    * ``replicas[0]`` does not change.  Each replica stays on its GPU, with its ``requires_grad``.

    Returns nothing.

    Example::

        replicas = replicate(nn.Linear(3, 2), gpus(2))
        nn.init.zeros_(replicas[0].weight)
        broadcast(replicas)
        replicas[1].weight           # zeros, still on cuda:1, the same parameter as before

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


def train_step(
    replicas: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> float:
    """Do one training step on all GPUs, with the same result as one GPU on the whole batch.

    * ``replicas`` come from ``replicate`` and have equal weights.  ``optimizer`` holds the
      parameters of ``replicas[0]``, and no others.
    * ``inputs`` and ``targets`` have the same number of rows, one or more.  It may be smaller than
      the number of GPUs, or not divisible by it.  Both are usually on the CPU.
    * ``loss_fn(outputs, targets)`` is a plain mean over the rows it gets, as cross entropy is.  So
      with chunks of different sizes the mean of the chunks' losses is not the loss of the batch.
    * The models have no BatchNorm and no dropout: with these, several GPUs cannot equal one.
    * The step must equal ``optimizer.zero_grad(); loss = loss_fn(model(inputs), targets);
      loss.backward(); optimizer.step()`` on one GPU, step after step, also with momentum.
      Gradients of an earlier step must not count, whichever replica they are in.  A layer that a
      step does not use has the gradient ``None``, not zeros, so that momentum does not change it.
    * Afterwards all replicas have equal parameters and buffers again.

    Returns the loss of the whole batch before the step, as a Python ``float``.  You may call the
    functions above, or write the step in another way.

    Example::

        replicas = replicate(SmallCNN(), gpus(3))
        optimizer = torch.optim.SGD(replicas[0].parameters(), lr=0.1, momentum=0.9)
        loss = train_step(replicas, images, labels, nn.CrossEntropyLoss(), optimizer)

    Lesson: docs/lessons/data_parallel_by_hand
    """
    raise NotImplementedError


if __name__ == "__main__":
    # What your functions do with ten handwritten digits, as far as they go.
    import traceback
    from contextlib import contextmanager

    from multigpu import gpus, pictures
    from multigpu.data import digits
    from multigpu.devices import current_machine
    from multigpu.training.models import SmallCNN

    gpu = gpus(3)
    images, labels = digits().train[:10]
    loss_fn = nn.CrossEntropyLoss()
    torch.manual_seed(0)

    @contextmanager
    def movement(name):
        """Print the picture of the bytes that move while the block runs."""
        with current_machine().traffic.record() as copies:
            yield
        print(pictures.traffic(copies, devices=gpu, title=name).text(), end="\n\n")

    try:
        with movement("split: ten images"):
            chunks = split(images, gpu)
        with movement("replicate: a small CNN"):
            replicas = replicate(SmallCNN(), gpu)
        optimizer = torch.optim.SGD(replicas[0].parameters(), lr=0.1, momentum=0.9)
        with movement("parallel_apply: nothing moves, every GPU has what it needs"):
            outputs = parallel_apply(replicas, chunks)
        with movement("gather: ten scores per image"):
            scores = gather(outputs, gpu[0])
        wanted = labels.to(gpu[0])
        with movement("backward: gradients of the scores go to the GPUs of the scores"):
            loss_fn(scores, wanted).backward()
        with movement("sum_gradients: one gradient per weight and replica"):
            sum_gradients(replicas)
        optimizer.step()
        with movement("broadcast: the new weights"):
            broadcast(replicas)
        for replica in replicas:  # five more steps start here, without old gradients
            replica.zero_grad()
        for step in range(1, 6):
            loss = train_step(replicas, images, labels, loss_fn, optimizer)
            print(f"train_step {step}: loss {loss:.3f}")
    except NotImplementedError as error:
        name = traceback.extract_tb(error.__traceback__)[-1].name
        print(f"Next to write: {name}. Check it with: multigpu check data_parallel.{name}")
