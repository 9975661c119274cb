"""Record one training step of data parallelism, by hand and with nn.DataParallel.

    python docs/_ext/course/recording.py

prints JSON for the stepper. Ten handwritten digits go through a small CNN on 2, 3 and 4 virtual
GPUs; around each movement the copies between devices are recorded. The site draws these records
and nothing else.
"""

import json
import sys
from pathlib import Path

import torch
from film import Film, FilmOfDataParallel, weights_of
from torch import nn

from multigpu import virtual_gpus
from multigpu.data import digits
from multigpu.pictures import palette
from multigpu.training.models import SmallCNN

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "solutions"))
import data_parallel as by_hand

ROWS = 10  # neither 3 nor 4 divides it
SIZES = (2, 3, 4)
loss_fn = nn.CrossEntropyLoss()


def batch():
    return tuple(tensor[:ROWS] for tensor in digits().train.tensors)


def fresh_model():
    torch.manual_seed(0)
    return SmallCNN()


def gradient_on_one_gpu():
    images, labels = batch()
    model = fresh_model()
    loss_fn(model(images), labels).backward()
    return weights_of(model).grad


def start(kind, machine):
    """Model and optimizer on the first GPU, and the film's first frame."""
    model = fresh_model().to(machine.devices[0])
    film = kind(machine, model=model, gradient_on_one_gpu=gradient_on_one_gpu())
    film.frame("start")
    return film, model, torch.optim.SGD(model.parameters(), lr=0.1)


def film_by_hand(machine):
    """The seven functions of the exercises, here those of ``solutions/data_parallel.py``."""
    film, model, optimizer = start(Film, machine)
    devices, (images, labels) = machine.devices, batch()
    with film.moving("rows"):
        film.chunks = by_hand.split(images, devices)
    film.frame("split")
    with film.moving("weights"):
        film.replicas = by_hand.replicate(model, devices)
    film.frame("replicate")
    with film.moving("outputs"):
        film.outputs = by_hand.parallel_apply(film.replicas, film.chunks)
    film.frame("parallel_apply")
    with film.moving("outputs"):
        film.outputs = [by_hand.gather(film.outputs, devices[0])]
    film.frame("gather")
    with film.moving("outputs"):
        loss_fn(film.outputs[0], labels.to(devices[0])).backward()
    film.frame("backward")
    with film.moving("gradients"):
        by_hand.sum_gradients(film.replicas)
    film.frame("sum_gradients")
    with film.moving("weights"):
        optimizer.step()
    film.frame("step")
    with film.moving("weights"):
        by_hand.broadcast(film.replicas)
    film.frame("broadcast")
    begin_next_step(film)
    with film.moving("rows"):
        film.chunks = by_hand.split(images, devices)
    film.frame("next_forward")
    return film.frames


class Filmed(nn.DataParallel):
    """nn.DataParallel itself, with the movements of its forward recorded one by one."""

    def __init__(self, model, film):
        super().__init__(model)
        self.film = film

    def scatter(self, inputs, kwargs, device_ids):
        with self.film.moving("rows"):
            scattered = super().scatter(inputs, kwargs, device_ids)
        self.film.chunks = [positional[0] for positional in scattered[0]]
        self.film.frame("split")
        return scattered

    def replicate(self, module, device_ids):
        with self.film.moving("weights"):
            replicas = super().replicate(module, device_ids)
        self.film.replicated(replicas)
        self.film.frame("replicate")
        return replicas

    def parallel_apply(self, replicas, inputs, kwargs):
        with self.film.moving("outputs"):
            self.film.outputs = super().parallel_apply(replicas, inputs, kwargs)
        self.film.frame("parallel_apply")
        return self.film.outputs

    def gather(self, outputs, output_device):
        with self.film.moving("outputs"):
            self.film.outputs = [super().gather(outputs, output_device)]
        self.film.frame("gather")
        return self.film.outputs[0]


def film_of_data_parallel(machine):
    film, model, optimizer = start(FilmOfDataParallel, machine)
    (images, labels), filmed = batch(), Filmed(model, film)
    loss_of_first_step(film, filmed, images, labels)
    with film.moving("weights"):
        optimizer.step()
    film.frame("step")
    film.frame("broadcast")  # there is none: nothing is called, nothing is recorded
    begin_next_step(film)
    made = len(film.frames)
    filmed(images)
    # The next forward's split and replicate are one frame: what both have sent, and what is where.
    split, replicate = film.frames[made], film.frames[made + 1]
    del film.frames[made:]
    film.frames.append({"movement": "next_forward", "holds": replicate["holds"],
                        "copies": split["copies"] + replicate["copies"]})  # fmt: skip
    return film.frames


def loss_of_first_step(film, filmed, images, labels):
    outputs = filmed(images)
    with film.moving("outputs"):
        loss = loss_fn(outputs, labels.to(outputs.device))
    with film.machine.traffic.record() as copies:
        loss.backward()
    film.backward_frames(copies)


def begin_next_step(film):
    """The first step's rows and outputs are gone; gradients are cleared, as the next step does."""
    film.chunks = film.outputs = []
    for replica in film.replicas:
        replica.zero_grad()


def recorded():
    runs = {}
    for size in SIZES:
        with virtual_gpus(size) as machine:
            hand = film_by_hand(machine)
        with virtual_gpus(size) as machine:
            runs[size] = {"hand": hand, "dp": film_of_data_parallel(machine)}
    weights = sum(p.numel() * p.element_size() for p in fresh_model().parameters())
    colours = [palette.colour(index) for index in range(max(SIZES))]
    return {
        "rows": ROWS,
        "weights": weights,
        "colours": colours,
        "host": palette.HOST,
        "cases": runs,
    }


if __name__ == "__main__":
    json.dump(recorded(), sys.stdout)
