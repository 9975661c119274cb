"""Record one training step of data parallelism, by hand and with nn.DataParallel.

    python docs/_ext/course/explorers/dp_step_recording.py

prints JSON for the stepper. Ten handwritten digits go through a small CNN on 2, 3 and 4 virtual
GPUs; around each movement the copies between devices are recorded. The site draws these records
and nothing else.
"""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from multigpu import virtual_gpus
from multigpu.data import digits
from multigpu.pictures import palette
from multigpu.training.models import SmallCNN

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "solutions"))
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


def weights_of(module):
    """The first layer's weights. In a replica of nn.DataParallel they are a plain tensor."""
    return module.features[0].weight


class Recording:
    """Frames of one run on a (virtual) machine.

    A frame is ``{"movement": …, "copies": […], "holds": […]}``. A copy's ``column`` says what it
    carries: rows, weights, outputs or gradients. ``holds`` has one entry per GPU, read off the
    tensors themselves.
    """

    def __init__(self, machine, *, model, gradient_on_one_gpu):
        self.machine = machine
        self.model_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.first_weights = weights_of(model).detach().cpu().clone()
        self.gradient_on_one_gpu = gradient_on_one_gpu
        self.chunks, self.outputs, self.replicas = [], [], [model]
        self.copies, self.frames = [], []

    @contextmanager
    def moving(self, column, movement=None):
        """Note the copies that are made inside; a ``movement`` is a frame of its own."""
        with self.machine.traffic.record() as copies:
            yield
        self.note(copies, column)
        if movement:
            self.frame(movement)

    def note(self, copies, column):
        """Add copies to the frame that is being made, summed by link."""
        sums = {}
        for copy in copies:
            link = str(copy.source), str(copy.target)
            sums[link] = sums.get(link, 0) + copy.bytes
        self.copies += [
            {"source": source, "target": target, "column": column, "bytes": moved}
            for (source, target), moved in sums.items()
        ]

    def frame(self, movement):
        holds = [self.held_by(device) for device in self.machine.devices]
        self.frames.append({"movement": movement, "copies": self.copies, "holds": holds})
        self.copies = []

    def held_by(self, device):
        return {
            "rows": rows_on(device, self.chunks),
            "outputs": rows_on(device, self.outputs),
            "weights": self.version_on(device),
            "gradients": self.gradient_on(device),
        }

    def version_on(self, device):
        """0: the first weights, 1: those after the optimizer's step; None: no replica here."""
        for replica in self.replicas:
            if weights_of(replica).device == device:
                return self.version_of(replica)
        return None

    def version_of(self, replica):
        return 0 if torch.equal(weights_of(replica).detach().cpu(), self.first_weights) else 1

    def gradient_on(self, device):
        """``whole``: equal to one GPU's on all rows; ``part``: of some rows; None: none."""
        for replica in self.replicas:
            gradient = weights_of(replica).grad
            if weights_of(replica).device == device and gradient is not None:
                same = torch.allclose(gradient.cpu(), self.gradient_on_one_gpu, atol=1e-6)
                return "whole" if same else "part"
        return None


def rows_on(device, tensors):
    return sum(len(tensor) for tensor in tensors if tensor.device == device)


class RecordingOfDataParallel(Recording):
    """nn.DataParallel frees its replicas itself, so memory has to tell how long they live.

    A GPU other than the first holds a replica as long as it has the model's bytes allocated. Which
    version that is was seen when the replica was made.
    """

    def replicated(self, replicas):
        self.versions = {weights_of(r).device: self.version_of(r) for r in replicas}

    def version_on(self, device):
        known = super().version_on(device)
        if known is not None or self.machine.memory(device.index).allocated < self.model_bytes:
            return known
        return self.versions[device]

    def backward_frames(self, copies):
        """Backward is one call: cut its copies into gradients of outputs, then of weights."""
        first = str(self.machine.devices[0])
        summed = [copy for copy in copies if str(copy.target) == first]
        self.note([copy for copy in copies if str(copy.target) != first], "outputs")
        before = [dict(held) for held in self.frames[-1]["holds"]]
        for device, held in zip(self.machine.devices, before, strict=True):
            sent = any(str(copy.source) == str(device) for copy in summed)
            held["gradients"] = "part" if sent or str(device) == first else None
        self.frames.append({"movement": "backward", "copies": self.copies, "holds": before})
        self.copies = []
        self.note(summed, "gradients")
        self.frame("sum_gradients")


def start(kind, machine):
    """Model and optimizer on the first GPU, and the recording's first frame."""
    model = fresh_model().to(machine.devices[0])
    recording = kind(machine, model=model, gradient_on_one_gpu=gradient_on_one_gpu())
    recording.frame("start")
    return recording, model, torch.optim.SGD(model.parameters(), lr=0.1)


def recording_by_hand(machine):
    """The seven functions of the exercises, here those of ``solutions/data_parallel.py``."""
    recording, model, optimizer = start(Recording, machine)
    devices, (images, labels) = machine.devices, batch()
    with recording.moving("rows", "split"):
        recording.chunks = by_hand.split(images, devices)
    with recording.moving("weights", "replicate"):
        recording.replicas = by_hand.replicate(model, devices)
    with recording.moving("outputs", "parallel_apply"):
        recording.outputs = by_hand.parallel_apply(recording.replicas, recording.chunks)
    with recording.moving("outputs", "gather"):
        recording.outputs = [by_hand.gather(recording.outputs, devices[0])]
    with recording.moving("outputs", "backward"):
        loss_fn(recording.outputs[0], labels.to(devices[0])).backward()
    with recording.moving("gradients", "sum_gradients"):
        by_hand.sum_gradients(recording.replicas)
    with recording.moving("weights", "step"):
        optimizer.step()
    with recording.moving("weights", "broadcast"):
        by_hand.broadcast(recording.replicas)
    begin_next_step(recording)
    with recording.moving("rows", "next_forward"):
        recording.chunks = by_hand.split(images, devices)
    return recording.frames


class Recorded(nn.DataParallel):
    """nn.DataParallel itself, with the movements of its forward recorded one by one."""

    def __init__(self, model, recording):
        super().__init__(model)
        self.recording = recording

    def scatter(self, inputs, kwargs, device_ids):
        with self.recording.moving("rows", "split"):
            scattered = super().scatter(inputs, kwargs, device_ids)
            self.recording.chunks = [positional[0] for positional in scattered[0]]
        return scattered

    def replicate(self, module, device_ids):
        with self.recording.moving("weights"):
            replicas = super().replicate(module, device_ids)
        self.recording.replicated(replicas)
        self.recording.frame("replicate")
        return replicas

    def parallel_apply(self, replicas, inputs, kwargs):
        with self.recording.moving("outputs", "parallel_apply"):
            self.recording.outputs = super().parallel_apply(replicas, inputs, kwargs)
        return self.recording.outputs

    def gather(self, outputs, output_device):
        with self.recording.moving("outputs", "gather"):
            self.recording.outputs = [super().gather(outputs, output_device)]
        return self.recording.outputs[0]


def recording_of_data_parallel(machine):
    recording, model, optimizer = start(RecordingOfDataParallel, machine)
    (images, labels), wrapped = batch(), Recorded(model, recording)
    outputs = wrapped(images)
    with recording.moving("outputs"):
        loss = loss_fn(outputs, labels.to(outputs.device))
    with machine.traffic.record() as copies:
        loss.backward()
    recording.backward_frames(copies)
    with recording.moving("weights", "step"):
        optimizer.step()
    recording.frame("broadcast")  # there is none: nothing is called, nothing is recorded
    begin_next_step(recording)
    made = len(recording.frames)
    wrapped(images)
    # The next forward's split and replicate are one frame: what both have sent, and what is where.
    split, replicate = recording.frames[made], recording.frames[made + 1]
    del recording.frames[made:]
    recording.frames.append({"movement": "next_forward", "holds": replicate["holds"],
                             "copies": split["copies"] + replicate["copies"]})  # fmt: skip
    return recording.frames


def begin_next_step(recording):
    """The first step's rows and outputs are gone; gradients are cleared, as the next step does."""
    recording.chunks = recording.outputs = []
    for replica in recording.replicas:
        replica.zero_grad()


def recorded():
    runs = {}
    for size in SIZES:
        with virtual_gpus(size) as machine:
            hand = recording_by_hand(machine)
        with virtual_gpus(size) as machine:
            runs[size] = {"hand": hand, "dp": recording_of_data_parallel(machine)}
    weights = sum(p.numel() * p.element_size() for p in fresh_model().parameters())
    colors = [palette.color(index) for index in range(max(SIZES))]
    return {
        "rows": ROWS,
        "weights": weights,
        "colors": colors,
        "host": palette.HOST,
        "cases": runs,
    }


if __name__ == "__main__":
    json.dump(recorded(), sys.stdout)
