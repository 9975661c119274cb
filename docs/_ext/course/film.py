"""The film of one training step: after each movement, what was copied and what each GPU holds."""

from contextlib import contextmanager

import torch


def weights_of(module):
    """The first layer's weights. In a replica of nn.DataParallel they are a plain tensor."""
    return module.features[0].weight


class Film:
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
    def moving(self, column):
        with self.machine.traffic.record() as copies:
            yield
        self.note(copies, column)

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


class FilmOfDataParallel(Film):
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
