"""The same training in four ways: by the Trainer, by hand, with Accelerate and with Fabric.

Each way takes a model and a feed and returns an `Epochs`, or a `TrainersEpochs`: call it, and it
trains one epoch more. Within a process group every way uses DistributedDataParallel with gradients
as views; without one, the plain model.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

from multigpu.data import digits
from multigpu.ranks.backend import rank_device
from multigpu.training.config import TrainConfig
from multigpu.training.history import ProgressBar
from multigpu.training.trainer import Trainer

ENDLESS = 10**6  # epochs: whoever measures says when to stop
VIEWS = {"gradient_as_bucket_view": True}


def digits_for(steps, *, batch_size):
    """Digits for so many steps in an epoch, some of them several times."""
    images, labels = digits().train.tensors
    chosen = torch.arange(steps * batch_size) % len(labels)
    return TensorDataset(images[chosen], labels[chosen])


class TrainersEpochs:
    """The Trainer, one epoch per call: first `steps`, then `end`, which is what `fit` repeats."""

    def __init__(self, model, dataset, *, batch_size):
        config = TrainConfig(batch_size=batch_size, epochs=ENDLESS)
        self.trainer, self.bar = Trainer(model, config, dataset), ProgressBar(0, shown=False)

    def __call__(self):
        self.steps()
        self.end()

    def steps(self):
        self.trainer._train_epoch(self.bar)

    def end(self):
        self.trainer._end_epoch(self.bar)

    def weights(self):
        return flat(self.trainer.strategy.plain)


class Epochs:
    """The loop that is written by hand, around a model as it is or as a library has wrapped it."""

    def __init__(self, model, optimizer, batches, *, plain, backward=torch.Tensor.backward):
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.plain, self.backward = plain, backward
        self.device = next(plain.parameters()).device

    def __call__(self):
        total = torch.zeros((), device=self.device)
        for inputs, targets in self.batches:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(inputs), targets)
            self.backward(loss)
            self.optimizer.step()
            total += loss.detach() * len(targets)
        return total.item()

    def weights(self):
        return flat(self.plain)


def by_hand(model, feed, *, own_loader):
    """What a person writes who knows DDP."""
    model.to(rank_device())
    batches = loader(feed) if own_loader else FromFeed(feed)
    wrapped = nn.parallel.DistributedDataParallel(model, **VIEWS) if grouped() else model
    return Epochs(wrapped, adamw(model), batches, plain=model)


def with_accelerate(model, feed, *, own_loader):
    """https://huggingface.co/docs/accelerate: everything goes through `prepare`."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs

    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        dataloader_config=DataLoaderConfiguration(split_batches=True),  # batch_size is the global
        kwargs_handlers=[DistributedDataParallelKwargs(**VIEWS)],
    )
    wrapped, optimizer = accelerator.prepare(model, adamw(model))
    batches = accelerator.prepare(loader(feed, share=False)) if own_loader else FromFeed(feed)
    return Epochs(wrapped, optimizer, batches, plain=model, backward=accelerator.backward)


def with_fabric(model, feed, *, own_loader):
    """https://lightning.ai/docs/fabric: everything goes through `setup`."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment
    from lightning_fabric.strategies import DDPStrategy

    here = TorchElasticEnvironment()  # the ranks are there already, and know who they are
    strategy = DDPStrategy(cluster_environment=here, **VIEWS) if grouped() else "auto"
    fabric = Fabric(devices=dist.get_world_size() if grouped() else 1, strategy=strategy)
    fabric.launch()
    wrapped, optimizer = fabric.setup(model, adamw(model))
    batches = loader(feed) if own_loader else FromFeed(feed)
    if own_loader:  # each rank's loader has the rank's own rows
        batches = fabric.setup_dataloaders(batches, use_distributed_sampler=False)
    return Epochs(wrapped, optimizer, batches, plain=model, backward=fabric.backward)


class FromFeed:
    """The batches of a feed, epoch after epoch."""

    def __init__(self, feed):
        self.feed, self.epoch = feed, -1

    def __iter__(self):
        self.epoch += 1
        for batch in self.feed.batches(self.epoch):
            yield batch.inputs, batch.targets


class Order(Sampler):
    """The rows of one rank of `world_size` in the order of a feed, epoch after epoch."""

    def __init__(self, feed, *, rank, world_size):
        self.feed, self.rank, self.world_size, self.epoch = feed, rank, world_size, -1

    def __iter__(self):
        self.epoch += 1
        share = self.feed.batch_size // self.world_size
        order = self.feed.order(self.epoch).view(-1, self.world_size, share)
        return iter(order[:, self.rank].flatten().tolist())

    def __len__(self):
        return self.feed.num_rows // self.world_size


def loader(feed, *, share=True):
    """A DataLoader as everybody writes it; but for its order, which makes all batches the same."""
    rank, world_size = (feed.rank, feed.world_size) if share else (0, 1)
    order = Order(feed, rank=rank, world_size=world_size)
    return DataLoader(feed.dataset, batch_size=feed.batch_size // world_size, sampler=order)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)


def grouped():
    return dist.is_initialized()


def flat(model):
    return torch.cat([weight.detach().cpu().flatten() for weight in model.parameters()])
