"""Wrappers that go wrong in the same way in NaiveDDP, OverlappedDDP and BucketedDDP.

They send after backward.  When that happens values do not show: it is looked at after the values.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import Shared

every_wrapper = Shared()


class Wrapper(nn.Module):
    """A right NaiveDDP, with what BucketedDDP needs besides."""

    def __init__(self, module, bucket_bytes=0):
        super().__init__()
        self.module, self.quiet = module, False
        self.start()

    def start(self):
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        for p in self.module.parameters():
            if p.requires_grad and not self.quiet:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self.average(p)

    def average(self, p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False


# --- the start -----------------------------------------------------------------------------------


@every_wrapper.mistake(
    "start_not_shared",
    "nothing was sent, or what arrived is in copies: of the tensors, or of the whole module.",
    fix="dist.broadcast(tensor.detach(), src=0) writes into the tensor itself.",
)
class forgets_the_start(Wrapper):
    def start(self):
        pass


@every_wrapper.mistake(
    "buffers_not_sent",
    "parameters() does not include buffers.",
    fix="Send those of buffers() too.",
)
class sends_parameters_only(Wrapper):
    def start(self):
        for p in self.module.parameters():
            dist.broadcast(p.detach(), src=0)


@every_wrapper.mistake(
    "non_persistent_not_sent",
    "state_dict() does not include non-persistent buffers.",
    fix="parameters() and buffers() together give all tensors.",
)
class sends_the_state_dict(Wrapper):
    def start(self):
        for tensor in self.module.state_dict().values():
            dist.broadcast(tensor, src=0)


@every_wrapper.mistake(
    "frozen_not_sent",
    "parameters with requires_grad=False were left out.",
    fix="They belong to the model too: send all parameters.",
)
class sends_what_is_trained(Wrapper):
    def start(self):
        trained = [p for p in self.module.parameters() if p.requires_grad]
        for tensor in (*trained, *self.module.buffers()):
            dist.broadcast(tensor.detach(), src=0)


@every_wrapper.mistake(
    "integers_not_sent",
    "tensors that are not floating point were left out.",
    fix="Send every buffer, whatever its dtype.",
)
class sends_floating_point_only(Wrapper):
    def start(self):
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point():
                dist.broadcast(tensor.detach(), src=0)


@every_wrapper.mistake(
    "start_averaged",
    "the numbers of all ranks were averaged.",
    fix="Every rank takes those of rank 0 as they are: dist.broadcast(tensor, src=0).",
)
class averages_parameters(Wrapper):
    def start(self):
        for p in self.module.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)


# --- gradients -----------------------------------------------------------------------------------


@every_wrapper.mistake(
    "summed",
    "all_reduce adds up, and the sum was never divided.",
    fix="Divide by dist.get_world_size(), which is {n} here.",
)
class sums(Wrapper):
    def average(self, p):
        dist.all_reduce(p.grad)


@every_wrapper.mistake(
    "not_averaged",
    "this is the rank's own gradient: nothing was sent, or the mean is in another tensor.",
    fix="Reduce .grad itself, or copy the result back into it.",
)
class does_nothing(Wrapper):
    def average(self, p):
        pass


@every_wrapper.mistake(
    "only_divided",
    "this is the rank's own gradient divided by {n}: the sum over ranks is in another tensor.",
    fix="Reduce .grad itself, after it was set: a hook of register_hook is called before, and what"
    " is written into the tensor that it gets is lost. register_post_accumulate_grad_hook is called"
    " after that.",
)
class divides_and_throws_the_sum_away(Wrapper):
    def average(self, p):
        dist.all_reduce(p.grad.clone())
        p.grad /= dist.get_world_size()


@every_wrapper.mistake(
    "divided_twice",
    "the gradient was divided by {n} twice, for example before the all-reduce and after it.",
    fix="Divide once.",
)
class divides_twice(Wrapper):
    def average(self, p):
        super().average(p)
        p.grad /= dist.get_world_size()


@every_wrapper.mistake(
    "divided_by_2",
    "the sum was divided by 2, and there are {n} ranks.",
    fix="Divide by dist.get_world_size(), and not by a fixed number or by that of the others.",
)
class divides_by_2(Wrapper):
    def average(self, p):
        dist.all_reduce(p.grad)
        p.grad /= 2


@every_wrapper.mistake(
    "of_one_rank",
    "rank 0's gradient was sent to the others.",
    fix="A broadcast is not a mean: all_reduce adds up the gradients of all ranks.",
)
class sends_the_gradients_of_rank_0(Wrapper):
    def average(self, p):
        dist.broadcast(p.grad, src=0)


# --- forward -------------------------------------------------------------------------------------

LOST = "forward takes one input, or none with a name."
PASS_ON = "Take all that come and pass them on: def forward(self, *inputs, **named)."


@every_wrapper.mistake("input_lost", LOST, fix=PASS_ON)
class takes_one_input(Wrapper):
    def forward(self, x):
        return self.module(x)


@every_wrapper.mistake("input_lost", LOST, fix=PASS_ON)
class takes_no_names(Wrapper):
    def forward(self, *inputs):
        return self.module(*inputs)


@every_wrapper.mistake(
    "output_changed",
    "forward takes something out of what the module returns, or puts something around it.",
    fix="return self.module(*inputs, **named).",
)
class returns_the_first_output(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs[0] if isinstance(outputs, tuple) else outputs
