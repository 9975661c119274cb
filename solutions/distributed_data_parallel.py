"""DistributedDataParallel by hand: one process per GPU, each with its own rows and its own model.

Every process, a **rank**, runs the same script.  After backward the ranks average their gradients,
so all of them take the same step, and their models stay equal although no weights are sent:

    shard_indices (which rows are mine?) -> forward -> backward
          -> average the gradients with all_reduce -> optimizer step

You write the average three times: after backward (NaiveDDP), during backward (OverlappedDDP), and
during backward with many gradients per message, in buckets, as PyTorch's DDP does (BucketedDDP).
The functions after that are for ranks with different numbers of rows, and for checkpoints.

``torch.distributed`` is initialized when your code runs: ask ``dist.get_rank()`` and
``dist.get_world_size()``.  Put the tensors that you send on the device of the model or of the
values, so that your code works on the CPU and, with NCCL, on GPUs.

    multigpu check distributed_data_parallel.shard_indices    check one function
    multigpu hint distributed_data_parallel.shard_indices     a hint; add --more for a stronger one
    python exercises/distributed_data_parallel.py             train on real digits with your code

Read the lesson docs/lessons/distributed_data_parallel first; each task names its own lesson.  You
build these here, so you may not use them: ``torch.nn.parallel``, ``DistributedSampler``,
``torch.distributed.algorithms``, ``torch.distributed.optim``, ``torch.distributed.fsdp``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn


def shard_indices(
    num_samples: int,
    world_size: int,
    rank: int,
    *,
    epoch: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[int]:
    """Say which rows of the data set one rank trains on in one epoch.

    The result is exactly the list that ``torch.utils.data.DistributedSampler`` gives:

    * First all ``num_samples`` rows (one or more) get an order, which is the same on every rank.
      With ``shuffle`` it is ``torch.randperm(num_samples, generator=generator)``, where
      ``generator`` is a new ``torch.Generator`` with the seed ``seed + epoch``, so every epoch has
      a different order.  Without ``shuffle`` it is 0, 1, 2, and so on, in every epoch.
    * Then this list gets a length divisible by ``world_size``, because ranks with more steps would
      wait for those with fewer.  With ``drop_last`` as few rows as possible are left out at the
      end.  Otherwise as few as possible are added, taken from the beginning of the list, which is
      repeated if there are fewer rows than ranks.
    * Rank r takes the entries at positions r, r + world_size, r + 2 * world_size, and so on.

    It is a plain function without messages, and all ranks call it with the same numbers.

    Returns a list of Python integers, which is empty if ``drop_last`` leaves no row.

    Example::

        shard_indices(5, 2, 0, epoch=0, shuffle=False)                    # [0, 2, 4]
        shard_indices(5, 2, 1, epoch=0, shuffle=False)                    # [1, 3, 0]: 0 fills up
        shard_indices(5, 2, 1, epoch=0, shuffle=False, drop_last=True)    # [1, 3]

    Lesson: docs/lessons/distributed_data_parallel
    """
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(num_samples, generator=generator).tolist()
    else:
        order = list(range(num_samples))
    per_rank, left_over = divmod(num_samples, world_size)
    if left_over and not drop_last:
        per_rank += 1
    total = per_rank * world_size
    while len(order) < total:  # with fewer rows than ranks once around is not enough
        order += order[: total - len(order)]
    return order[rank:total:world_size]


def average_gradients(model: nn.Module) -> None:
    """Replace every gradient by its mean over all ranks.

    Every rank has a model of the same kind and has called ``backward()`` on its own rows.

    * Afterwards the ``.grad`` of every trainable parameter is, on every rank, the sum over all
      ranks divided by the number of ranks, whether there are 1, 2, 3 or 4.
    * A rank that did not use a parameter has ``None`` there.  It counts as zero, the sum is still
      divided by the number of all ranks, and afterwards that rank has the mean too.
    * If no rank has a gradient, it may stay ``None`` or become zeros.  This includes frozen
      parameters (``requires_grad=False``).
    * Every rank must make the same calls in the same order.  If one rank skips a call, the others
      wait forever.
    * Only gradients change, never a weight.

    Returns nothing.

    Example::

        model = nn.Linear(1, 1)
        # say weight.grad is 1.0 on rank 0, None on rank 1 and 5.0 on rank 2
        average_gradients(model)
        model.weight.grad            # 2.0, on all three

    Lesson: docs/lessons/ddp_by_hand
    """
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:  # the other ranks wait for this one's part
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


class NaiveDDP(nn.Module):
    """A model with equal weights on every rank, which averages its gradients after backward.

    * ``NaiveDDP(module)`` wraps the module itself and not a copy.  It also copies the parameters
      and buffers of rank 0's module into those of all other ranks, which may differ before.  This
      includes frozen parameters, integer buffers and non-persistent buffers, which
      ``state_dict()`` leaves out.  (Buffers are tensors of a module that are not trained.)
    * ``forward`` calls the module with the inputs it is given, and returns what the module returns.
    * ``sync_gradients()`` is called after ``loss.backward()`` and before ``optimizer.step()``.
      Afterwards every gradient is the mean over all ranks, as in ``average_gradients``, also for a
      parameter that only some ranks used.
    * So training is the same as in one process on the rows of all ranks together, step after step,
      for any number of ranks, if all have the same number of rows and the loss is a mean over
      rows.  Weights are sent once, at the start.

    Example::

        model = NaiveDDP(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()      # on every rank its own rows
        model.sync_gradients()
        optimizer.step()

    Lesson: docs/lessons/ddp_by_hand
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        _start_from_rank_0(module)

    def forward(self, *inputs, **named):
        """Call the module."""
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        """Average the gradients over all ranks."""
        average_gradients(self.module)


def _start_from_rank_0(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)  # detached it still shares the parameter's memory


class OverlappedDDP(nn.Module):
    """The same as NaiveDDP, but each gradient is sent while backward still computes the others.

    * ``OverlappedDDP(module)`` wraps the module itself and starts all ranks from rank 0's
      parameters and buffers, and ``forward`` calls the module, as in NaiveDDP.
    * During ``loss.backward()``, as soon as the gradient of a parameter is ready, its all-reduce is
      started: one per trainable parameter, also if it is tied and has two names.  For this PyTorch
      has hooks, functions that it calls at that moment.  Do not wait there for other ranks.
    * ``sync_gradients()`` is called after backward, and waits until all all-reduces are done.
      Afterwards every gradient is the mean over all ranks, and no handle is kept.
    * Every trainable parameter is used on every rank, and backward is called once per step.
      Frozen parameters are not sent.

    Training is the same as in one process, as with NaiveDDP.

    Example::

        model = OverlappedDDP(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
        loss_fn(model(inputs), targets).backward()      # starts 4 all-reduces, last layer first
        model.sync_gradients()                          # waits for all 4
        optimizer.step()

    Lesson: docs/lessons/ddp_by_hand
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._handles: list[dist.Work] = []
        _start_from_rank_0(module)
        for parameter in module.parameters():  # a tied parameter comes once
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._start)

    def forward(self, *inputs, **named):
        """Call the module."""
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        """Wait until every gradient is the mean over all ranks."""
        for handle in self._handles:
            handle.wait()
        self._handles.clear()

    def _start(self, parameter: nn.Parameter) -> None:
        """Called in backward with a parameter whose gradient is ready."""
        parameter.grad /= dist.get_world_size()  # the sum of the parts is the mean then
        self._handles.append(dist.all_reduce(parameter.grad, async_op=True))


class BucketedDDP(nn.Module):
    """The same as OverlappedDDP, but gradients are sent together in buckets, as in PyTorch's DDP.

    * ``BucketedDDP(module, bucket_bytes=...)`` wraps the module itself and starts all ranks from
      rank 0's parameters and buffers, and ``forward`` calls the module, as in NaiveDDP.
    * A bucket is a group of parameters.  They are assigned from the last to the first, because
      backward reaches the last layers first.  Frozen ones are left out, a tied one counts once.
      Add parameters until the bucket passes ``bucket_bytes``.  The parameter that passes it may be
      the bucket's last or the next one's first.  A parameter larger than ``bucket_bytes`` may be
      alone in its bucket.  A gradient has ``numel() * element_size()`` bytes.
    * A bucket is sent in one collective.  During ``loss.backward()``, as soon as all gradients of a
      bucket are ready, its all-reduce is started, and backward continues at once.
    * ``sync_gradients()`` is called after backward.  It starts what has not been started yet, and
      waits for all.  Afterwards every gradient is the mean over all ranks.
    * A parameter that only some ranks used works too: a missing gradient counts as zero, and
      afterwards every rank has the mean.  So a bucket may be full on one rank and not on another,
      and still all ranks must start their collectives in the same order.  If no rank has a
      gradient, it may stay ``None`` or become zeros.
    * ``with model.no_sync():`` around forward and backward sends nothing.  The gradients of this
      rank add up in ``.grad``, as without a wrapper, and ``sync_gradients()`` does nothing there.
      The next backward outside the block averages the whole sums, even if an exception has ended
      the block.  Outside, backward is called once per step.

    Training is the same as in one process, as with NaiveDDP.

    Example::

        model = BucketedDDP(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), bucket_bytes=48)
        # float32: 8 + 32 bytes of the last layer, then 16 + 48 of the first one
        with model.no_sync():
            loss_fn(model(inputs), targets).backward()  # nothing is sent
        loss_fn(model(more), targets).backward()        # adds up, and starts 2 or 3 all-reduces
        model.sync_gradients()
        optimizer.step()

    Lesson: docs/lessons/ddp_by_hand
    """

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        self._sending = True
        self._started = 0  # buckets of this step whose all-reduce has been started
        _start_from_rank_0(module)
        trained = [p for p in module.parameters() if p.requires_grad]
        self._buckets = [_Bucket(group) for group in _groups(trained[::-1], bucket_bytes)]
        for bucket in self._buckets:
            for parameter in bucket.views:
                parameter.register_post_accumulate_grad_hook(self._ready)
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.views}

    def forward(self, *inputs, **named):
        """Call the module."""
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        """Start what has not been started, and wait until every gradient is the mean."""
        if not self._sending:
            return
        for bucket in self._buckets[self._started :]:
            bucket.start()
        for bucket in self._buckets:
            bucket.wait()
        self._started = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, nothing is sent: gradients add up on each rank."""
        self._sending = False
        try:
            yield
        finally:
            self._sending = True

    def _ready(self, parameter: nn.Parameter) -> None:
        """Called in backward with a parameter whose gradient is ready."""
        if not self._sending:
            return
        self._bucket_of[parameter].put(parameter)
        # In the order of the list, not as they fill: that order can differ from rank to rank.
        while self._started < len(self._buckets) and self._buckets[self._started].is_full:
            self._buckets[self._started].start()
            self._started += 1


class _Bucket:
    """One piece of memory in which the gradients of some parameters are side by side.

    After ``put`` a parameter's ``.grad`` is a view of that memory: what the all-reduce writes there
    is in ``.grad`` without being copied back.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.memory = parameters[0].new_zeros(sum(sizes))  # (numbers of all parameters,)
        pieces = self.memory.split(sizes)
        self.views = {p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
        self.world_size = dist.get_world_size()
        self.missing = set(parameters)
        self.handle: dist.Work | None = None

    @property
    def is_full(self) -> bool:
        return not self.missing

    def put(self, parameter: nn.Parameter) -> None:
        """Take in a gradient, divided: the sum of the parts is the mean then."""
        view = self.views[parameter]
        if parameter.grad is None:  # this rank did not use it
            view.zero_()
        else:
            torch.div(parameter.grad, self.world_size, out=view)
        parameter.grad = view
        self.missing.discard(parameter)

    def start(self) -> None:
        for parameter in list(self.missing):
            self.put(parameter)
        self.handle = dist.all_reduce(self.memory, async_op=True)

    def wait(self) -> None:
        self.handle.wait()
        self.missing = set(self.views)


def _groups(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Cut the list where the next parameter would make a group larger than ``bucket_bytes``."""
    groups: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if not groups or size > room:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(parameter)
        room -= size
    return groups


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    """Average gradients over ranks that hold different numbers of rows.

    Each rank has computed the **mean** loss over its own rows and has called ``backward()``.  In a
    plain mean over ranks, a row would count more on a rank with few rows than on one with many.

    * ``num_samples`` is this rank's number of rows in this step.  It differs between ranks and may
      be zero, but at least one rank has a row.
    * Afterwards the ``.grad`` of every trainable parameter is, on every rank, the gradient of the
      mean loss over the rows of all ranks together: what one process gets from the whole batch.
    * A rank without rows has not called ``backward()``, so all its gradients are ``None``.  It must
      take part as well, and has the gradients of the whole batch afterwards.
    * A rank with rows may not have used a parameter, and its ``None`` counts as zero.  If no rank
      has a gradient, as for frozen parameters, it may stay ``None`` or become zeros.
    * Only gradients change, never a weight.

    Returns nothing.

    Example::

        model = nn.Linear(1, 1)
        # weight.grad is 1.0 on rank 0 (3 rows), 5.0 on rank 1 (1 row), None on rank 2 (no rows)
        weighted_average_gradients(model, num_samples)
        model.weight.grad            # (3 * 1.0 + 1 * 5.0) / 4 = 2.0, on all three

    Lesson: docs/lessons/feeding_data
    """
    device = next(model.parameters()).device
    total = torch.tensor(num_samples, device=device)
    dist.all_reduce(total)  # rows of all ranks
    share = num_samples / total.item()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:  # the other ranks wait for this one's part
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= share
        dist.all_reduce(parameter.grad)


def global_mean(values: Tensor) -> float:
    """Take the mean over the values of all ranks.

    A loss or an accuracy over the whole test set is computed like this when each rank has seen only
    a part of it.

    * ``values`` holds this rank's values.  It has any shape and a floating-point or integer dtype,
      the same dtype on every rank.  The result must be right to five digits, so float16 may be too
      small for the sum.
    * Ranks may hold different numbers of values, and some none (a tensor of shape (0,)).  Each
      value counts once: with different counts this is not the mean of the ranks' means.
    * If no rank has any value, the result is ``nan``.
    * ``values`` does not change.

    Returns the same number on every rank, as a Python ``float``.

    Example::

        # rank 0 holds [1, 2], rank 1 holds [6], rank 2 holds []
        global_mean(values)          # 3.0 on all three

    Lesson: docs/lessons/feeding_data
    """
    count = torch.tensor(values.numel(), dtype=torch.float64, device=values.device)
    total = torch.stack([values.double().sum(), count])  # sum and count travel together
    dist.all_reduce(total)
    return (total[0] / total[1]).item()  # 0 / 0 is nan


def save_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int
) -> None:
    """Save everything that training needs to resume, in one file.

    Every rank calls it, with the same arguments.  ``load_checkpoint`` reads the file later and in
    other processes.  You choose the format of the file.

    * ``path`` is a ``str`` or a ``pathlib.Path``.  Its folder exists.  A file from an earlier call
      may be there already, and the new one replaces it.
    * Only rank 0 writes.  All ranks hold the same values, so nothing has to be sent.
    * The file is complete when the function returns, on every rank.
    * It is written atomically: at every moment the file at ``path`` is either the complete old file
      or the complete new one.  If the job is killed midway, or the disk is full, the old file is
      still there, unchanged.  A partly written file under another name may be left behind.
    * It is written in the folder of ``path`` or below it, because a file is renamed in one step
      only within one file system.  The current folder or ``/tmp`` may be on another one.
    * Save the model's ``state_dict()`` (parameters, frozen ones too, and buffers), the optimizer's
      (momentum, step counts, learning rates), and ``epoch``, a whole number.

    Returns nothing.

    Example::

        save_checkpoint("run/last.pt", model, optimizer, epoch=3)       # on every rank

    Lesson: docs/lessons/trainer
    """
    if dist.get_rank() == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        unfinished = f"{os.fspath(path)}.unfinished"  # in the same folder, so on the same disk
        torch.save(state, unfinished)
        os.replace(unfinished, path)  # one step: no reader ever sees half a file
    dist.barrier()  # the others wait here until the file is complete


def load_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer
) -> int:
    """Read what ``save_checkpoint`` has written, so that training resumes as if it never stopped.

    Every rank calls it, in a new job with the same number of ranks.

    * ``model`` is a new model of the same kind, and ``optimizer`` is a new optimizer of the same
      kind that holds its parameters.  Their values differ from the saved ones and between ranks.
    * Afterwards the parameters and buffers of the model, and the optimizer's state, are on every
      rank what they were when the checkpoint was saved, to the last bit.  So training (without
      dropout) resumes exactly as it would have continued without the stop, momentum included.
    * The parameters stay the same objects, because ``optimizer`` holds them, and everything stays
      on the device where ``model`` is.
    * ``path`` is a ``str`` or a ``pathlib.Path``.

    Returns the ``epoch`` that was saved, as an ``int``, on every rank.

    Example::

        epoch = load_checkpoint("run/last.pt", model, optimizer)        # 3, on every rank

    Lesson: docs/lessons/trainer
    """
    # On the CPU first: the file names the GPU of rank 0, and load_state_dict copies to this rank's.
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


if __name__ == "__main__":
    # One epoch of handwritten digits on 3 ranks with your code, as far as it goes.
    import tempfile
    import time

    from multigpu import run_ranks
    from multigpu.data import digits
    from multigpu.ranks import span
    from multigpu.training.models import SmallCNN

    WORLD_SIZE, ROWS = 3, 8  # ranks, and rows per rank and step
    train_rows, test_rows = digits()
    loss_fn = nn.CrossEntropyLoss()

    def train(wrap, folder):
        """Train as one rank.

        Returns lines to print, what is not written yet, and when the last step began.
        """
        lines = []
        try:
            for line in steps(wrap, folder):
                lines.append(line)
        except NotImplementedError as error:
            trace = error.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            return lines, trace.tb_frame.f_code.co_qualname.partition(".")[0], None
        return lines, None, last_step

    def steps(wrap, folder):
        global last_step
        rank, world_size = dist.get_rank(), dist.get_world_size()
        images, labels = train_rows.tensors
        mine = torch.tensor(shard_indices(len(labels), world_size, rank, epoch=0))
        yield f"rank {rank} has {len(mine)} of {len(labels)} rows: {mine[:5].tolist()} ..."
        torch.manual_seed(rank)  # other weights on every rank: the wrapper makes them equal
        model = wrap(SmallCNN())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for rows in mine.split(ROWS):
            last_step = time.monotonic()
            optimizer.zero_grad()
            with span("forward"):
                loss = loss_fn(model(images[rows]), labels[rows])
            with span("backward"):
                loss.backward()
            model.sync_gradients()
            optimizer.step()
        weights = sum(p.detach().double().sum().item() for p in model.parameters())
        yield f"rank {rank}: last loss {loss.item():.3f}, sum of all weights {weights:.4f}"
        if folder is None:
            return
        images, labels = (part[rank::world_size] for part in test_rows.tensors)
        hits = (model(images).argmax(dim=1) == labels).double()
        yield f"rank {rank}: {global_mean(hits):.1%} of all test rows are right"
        path = f"{folder}/checkpoint.pt"
        save_checkpoint(path, model, optimizer, 1)
        yield f"rank {rank}: resumes after epoch {load_checkpoint(path, model, optimizer)}"

    def in_buckets(model):
        return BucketedDDP(model, bucket_bytes=8 * 1024)

    with tempfile.TemporaryDirectory() as folder:
        for name, wrap, place in [
            ("NaiveDDP", NaiveDDP, None),
            ("OverlappedDDP", OverlappedDDP, None),
            ("BucketedDDP with buckets of 8 KiB", in_buckets, None),
            ("BucketedDDP, then a test and a checkpoint", in_buckets, folder),
        ]:
            results = run_ranks(train, WORLD_SIZE, wrap, place, show=False)
            print(f"\n{name}, {results.backend}")
            for lines in zip(*(lines for lines, _, _ in results), strict=True):
                print(*(f"  {line}" for line in lines), sep="\n")
            unfinished = results[0][1]
            if unfinished:
                print(f"Next to write: {unfinished}. Check it with: multigpu check {unfinished}")
                break
            if place is None:
                last = results.trace.since(min(began for _, _, began in results))
                print(f"  all-reduces of rank 0 in the last step: {len(last.collectives(0))}")
                print(last.timeline(title="The last step").text())
