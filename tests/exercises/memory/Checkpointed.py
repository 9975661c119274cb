"""``memory.Checkpointed``: only inputs are kept, and the second forward is like the first.

The blocks that are wrapped note how each of their forwards computed: random numbers and dtype.  So
most mistakes are seen where they happen, before they become a wrong gradient.
"""

from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from multigpu.checking.declaration import case, exercise
from multigpu.checking.specimen import seeded
from multigpu.devices.machine import current_machine
from multigpu.devices.meters import MemoryMeter
from multigpu.ranks.errors import listed
from multigpu.ranks.memory_limit import counting

checkpointed = exercise(
    "memory.Checkpointed",
    expects="training gives the same weights as without Checkpointed, step after step",
)

WIDTH, ROWS = 24, 16


class Block(nn.Module):
    """(rows, width) to (rows, width), with dropout.  ``calls`` tells of each forward.

    ``kept`` are booleans and ``gain`` numbers, (rows, 1) each.  ``idle`` is never used.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, dtype=dtype)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, dtype=dtype)
        self.idle = nn.Linear(2, 2, dtype=dtype)
        self.calls: list[dict[str, Any]] = []

    def forward(self, rows, kept, gain):
        hidden = self.wide(rows)
        drawn = (torch.rand if self.training else torch.ones)(hidden.shape, device=rows.device)
        self.calls.append({"drawn": drawn.cpu(), "dtype": str(hidden.dtype)})
        hidden = torch.tanh(hidden) * (drawn > 0.3)
        return torch.where(kept, rows + gain * self.narrow(hidden), rows)


class Blocks(nn.Module):
    """Two blocks, of which each may be wrapped, and a head."""

    def __init__(self, case: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(seeded(lambda: Block(case.dtype), 7 + i) for i in range(2))
        self.head = seeded(lambda: nn.Linear(WIDTH, 1, dtype=case.dtype), 9)
        self.blocks[1].narrow.bias.requires_grad_(False)
        self.train(case.training)
        self.blocks[0].requires_grad_(not case.frozen)

    def forward(self, rows, kept, gain):
        for block in self.blocks:
            rows = block(rows, kept, gain)
        return self.head(rows)


@checkpointed.cases
def cases():
    yield a_case("two blocks", example=True)
    yield a_case("two blocks whose inputs need gradients, two passes in each step", 2, needs=True)
    yield a_case("two forwards, then their backwards", 2, needs=True, forwards_first=True)
    yield a_case("a frozen block whose inputs need gradients", needs=True, frozen=True)
    yield a_case("a frozen block whose inputs need no gradients", frozen=True)
    half, brain = torch.float16, torch.bfloat16
    yield a_case("autocast to bfloat16, backward outside of it", autocast=brain)
    yield a_case("autocast to float16, backward outside of it", autocast=half)
    yield a_case("autocast around backward alone", backward_autocast=brain)
    title = "one autocast in forward, another around backward"
    yield a_case(title, autocast=half, backward_autocast=brain)
    yield a_case("two blocks on a GPU", gpus=1)
    yield a_case("two blocks on the second of two GPUs", gpus=2)
    yield a_case("two blocks in eval mode on a GPU", gpus=1, training=False)
    yield a_case("autocast to bfloat16 on a GPU", gpus=1, autocast=torch.bfloat16)


def a_case(
    title, passes=1, *, gpus=0, needs=False, frozen=False, autocast=None, backward_autocast=None,
    forwards_first=False, training=True, **more,
):  # fmt: skip
    """``needs``: the inputs need gradients.  ``frozen``: the weights of the first block do not."""
    dtype = torch.float32 if autocast or backward_autocast else torch.float64
    generator = torch.Generator().manual_seed(1)

    def random(columns):
        return torch.randn(ROWS, columns, generator=generator, dtype=dtype)

    return case(
        title,
        gpus=gpus,
        steps=[[(random(WIDTH), random(1)) for _ in range(passes)] for _ in range(3)],
        kept=torch.arange(ROWS).remainder(3).gt(0).unsqueeze(1),
        needs=needs,
        frozen=frozen,
        autocast=autocast,
        backward_autocast=backward_autocast,
        forwards_first=forwards_first,
        training=training,
        dtype=dtype,
        **more,
    )


@checkpointed.drive
def drive(submission, case, devices):
    device = devices[-1] if devices else torch.device("cpu")
    model = Blocks(case).to(device)
    blocks = [*model.blocks]
    broken: dict[str, str] = {}  # what came, by the name of the property
    there, of_output = held(submission.Checkpointed, device)
    if there > 1.2 * of_output:
        of_it = f"of which the output has {of_output:,}"
        broken["activations_kept"] = f"{there:,} bytes more than before, {of_it}"
    for i, block in enumerate(blocks):
        model.blocks[i] = submission.Checkpointed(block)
    if {*map(id, blocks[0].parameters())} - {*map(id, model.parameters())}:
        broken["parameters_hidden"] = "parameters() does not give all of them"
    with torch.no_grad():
        rows, gain = (t.to(device) for t in case.steps[0][0])
        output = model.blocks[0](rows, case.kept.to(device), gain)
    came: dict[str, Any] = {"watched": broken}
    came["whether the output needs a gradient in torch.no_grad()"] = output.requires_grad
    if len(blocks[0].calls) > 1:
        broken["called_too_often"] = "in torch.no_grad() it was called more than once"
    if model.blocks[0](rows, case.kept.to(device), gain).requires_grad and case.frozen:
        broken["output_always_needs_gradients"] = "no input and no weight needs one"
        return came  # backward would fail
    return came | trained(model, blocks, case, device, broken)


def trained(model, blocks, case, device, broken=None):
    """Weights after each step, and the gradients of inputs that need one."""
    torch.manual_seed(3)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, 0.1, momentum=0.9)
    came: dict[str, Any] = {}
    for step, batches in enumerate(case.steps, 1):
        optimizer.zero_grad()
        batches = [
            [t.to(device, copy=True).requires_grad_(case.needs) for t in batch] for batch in batches
        ]
        groups = [batches] if case.forwards_first else [[batch] for batch in batches]
        for group in groups:
            for block in blocks:
                block.calls.clear()
            losses = [loss_of(model, case, *batch) for batch in group]
            states = broken is not None and generators(case)
            with autocast_to(case.backward_autocast, device):
                for number, loss in enumerate(losses, 1):
                    (loss * number).backward()
            if broken is not None and len(group) == 1:
                broken |= flaws(blocks, case, states) | broken
        for number, batch in enumerate(batches if case.needs else [], 1):
            for name, tensor in zip(("first", "third"), batch, strict=True):
                came[f"step {step}, pass {number}: the gradient of the {name} input"] = tensor.grad
        optimizer.step()
        for i, block in enumerate(blocks):
            without = listed(name for name, p in block.named_parameters() if p.grad is None)
            came[f"step {step}: the list of weights of block {i} without gradients"] = without
            for name, weight in block.named_parameters():
                came[f"step {step}: {name} of block {i}"] = weight.detach().clone()
    return came


def loss_of(model, case, rows, gain):
    with autocast_to(case.autocast, rows.device):
        return model(rows, case.kept.to(rows.device), gain).float().square().mean()


def autocast_to(dtype, device):
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def generators(case):
    """Their states, by name."""
    gpus = {f"cuda:{i}": torch.cuda.get_rng_state(i) for i in range(case.gpus)}
    return {"the CPU": torch.get_rng_state()} | gpus


def flaws(blocks, case, states):
    """What one pass did not keep, by the name of the property."""
    found, now = {}, generators(case)
    for number, block in enumerate(blocks):
        drawn = [call["drawn"] for call in block.calls]
        dtypes = [call["dtype"] for call in block.calls]
        if len(drawn) == 1 and (number or case.needs or not case.frozen):
            found["not_recomputed"] = f"block {number} was called once"
        if len(drawn) > 2:
            found["called_too_often"] = f"a pass called block {number} {len(drawn)} times"
        if not all(torch.equal(each, drawn[0]) for each in drawn):
            found["other_random_numbers"] = f"in block {number} they are different"
        if len({*dtypes}) > 1:
            found["autocast_lost"] = f"a linear layer gave {dtypes[0]}, and then {dtypes[1]}"
    moved = [name for name, state in states.items() if not torch.equal(state, now[name])]
    if moved:
        found["generator_moved"] = f"the generator of {moved[0]} is in another state"
    return found


def held(kind, device):
    """Bytes between forward and backward beyond those before, and those of the output."""
    meter = MemoryMeter()
    on_gpu = device.type == "cuda" and not current_machine().is_virtual  # whose data the CPU has

    def allocated():
        return meter.allocated + (torch.cuda.memory_allocated(device) if on_gpu else 0)

    with counting(meter):  # what is on the CPU
        wide, narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        module = nn.Sequential(wide, nn.Tanh(), narrow).to(device)
        inputs = torch.ones(512, WIDTH, device=device, requires_grad=True)
        module(inputs).sum().backward()  # from now on a GPU's libraries have their memory
        wrapped = kind(module)
        before = allocated()
        output = wrapped(inputs)
        return allocated() - before, output.nbytes


@checkpointed.expected
def expected(case):
    right = {"whether the output needs a gradient in torch.no_grad()": False}
    if case.gpus and case.training:  # a GPU draws other random numbers
        return right
    model = Blocks(case)
    with torch.random.fork_rng([]):
        return right | trained(model, [*model.blocks], case, torch.device("cpu"))


# --- what the second forward is like: the drive notes what is not ---------------------------------


def promised(name, expects, usually, *, fix, first=True):
    @checkpointed.holds(name, expects, usually, fix=fix, first=first)
    def _(run, case):
        return run.came(case)["watched"].get(name)


promised(
    "parameters_hidden",
    "the parameters of Checkpointed(module) are those of module",
    "the module is in a list, a dict or a function, where nn.Module does not look.",
    fix="Assign it to an attribute: self.module = module.",
)
promised(
    "output_always_needs_gradients",
    "the output needs a gradient only if an input or a weight does",
    "a tensor that needs a gradient is always among the arguments of Function.apply.",
    fix="Let it need a gradient only if a weight does.",
)
promised(
    "not_recomputed",
    "module is called once in forward and once more in backward",
    "the module was called with gradients, so autograd has kept what it computed inside; or no"
    " argument of Function.apply needs a gradient, and then autograd does not call backward.",
    fix="Call it without gradients in forward, as the forward of a torch.autograd.Function is, and"
    " again with gradients in backward. Give the weights to Function.apply, too.",
)
promised(
    "called_too_often",
    "module is called once in forward and, with gradients, once more in backward",
    "each gradient had a forward of its own, or the module ran again without a backward.",
    fix="One call of torch.autograd.grad gives the gradients of all inputs and all parameters.",
)
promised(
    "other_random_numbers",
    "the second call of module draws the same random numbers as the first",
    "dropout drops other elements, so the gradients belong to another forward.",
    fix="Keep torch.get_rng_state() and torch.cuda.get_rng_state() of forward, and set them again.",
)
promised(
    "autocast_lost",
    "the second call of module computes under the same autocast as the first",
    "backward runs where autocast is off, or another one, and the second call used that.",
    fix="Ask in forward: torch.is_autocast_enabled(device.type) and"
    " torch.get_autocast_dtype(device.type). Enter torch.autocast again in backward.",
)
promised(
    "generator_moved",
    "backward leaves all random generators in the state in which they were before it",
    "a generator was set back or seeded for the second call, and left there.",
    fix="torch.random.fork_rng() restores the generators at the end of its with-block.",
)
promised(
    "activations_kept",
    "between forward and backward nothing is kept but inputs, output and random states",
    "autograd or an attribute keeps what the module computed, or copies of the inputs.",
    fix="Make the first call without gradients, and ctx.save_for_backward(*inputs).",
    first=False,
)


# --- what answers are made of --------------------------------------------------------------------


class Again(torch.autograd.Function):
    """The module as one operator."""

    @staticmethod
    def forward(ctx, own, count, *tensors):
        ctx.own, ctx.count, ctx.state = own, count, own.state(tensors[0].device.type)
        ctx.save_for_backward(*own.saved(tensors[:count]), *tensors[count:])
        return own.module(*tensors[:count])

    @staticmethod
    def backward(ctx, gradient):
        tensors = ctx.saved_tensors
        inputs = ctx.own.inputs(tensors[: ctx.count])
        tensors = [*inputs, *tensors[ctx.count :]]
        return None, None, *ctx.own.gradients(ctx.state, inputs, tensors, gradient)


class Recomputing(nn.Module):
    """Right, and each mistake below changes one method."""

    allow_unused = True

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return Again.apply(self, len(inputs), *inputs, *self.weights())

    def weights(self):
        return [p for p in self.module.parameters() if p.requires_grad]

    def saved(self, inputs):
        return inputs

    def state(self, kind):
        random = torch.get_rng_state(), torch.cuda.get_rng_state_all()
        autocast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        return random, (kind, *autocast)

    def inputs(self, saved):
        return [t.detach().requires_grad_(t.requires_grad) for t in saved]

    @contextmanager
    def restored(self, random, autocast):
        with torch.random.fork_rng(range(torch.cuda.device_count())), torch.autocast(*autocast):
            torch.set_rng_state(random[0])
            torch.cuda.set_rng_state_all(random[1])
            yield

    def computed(self, state, inputs):
        with torch.enable_grad(), self.restored(*state):
            return self.module(*inputs)

    def gradients(self, state, inputs, tensors, gradient):
        output = self.computed(state, inputs)
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=self.allow_unused))
        return [next(found) if t.requires_grad else None for t in tensors]


class ByBackward(Recomputing):
    """Backward adds the gradients of the weights to .grad itself."""

    def gradients(self, state, inputs, tensors, gradient):
        torch.autograd.backward(self.computed(state, inputs), gradient)
        return [t.grad for t in tensors]


@checkpointed.right
class gradients_of_weights_by_backward(ByBackward):
    """A tensor that needs a gradient makes autograd call backward."""

    def weights(self):
        needed = any(p.requires_grad for p in self.module.parameters())
        return [torch.zeros((), requires_grad=needed)]


@checkpointed.right
class hooks_on_what_autograd_saves(Recomputing):
    """Autograd saves numbers in the place of tensors; the first that it asks for brings all."""

    def forward(self, *inputs):
        state, saved, again = self.state(inputs[0].device.type), [], []

        def pack(tensor):
            saved.append(None)
            return len(saved) - 1

        def unpack(number):
            if not again:
                with torch.autograd.graph.saved_tensors_hooks(
                    lambda tensor: again.append(tensor.detach()), lambda none: none
                ):
                    self.computed(state, self.inputs(inputs))
            return again[number]

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.module(*inputs)


@checkpointed.breaks("not_recomputed")
class calls_the_module(Recomputing):
    def forward(self, *inputs):
        return self.module(*inputs)


@checkpointed.breaks("other_random_numbers")
class new_random_numbers(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        with torch.autocast(*autocast):
            yield


@checkpointed.breaks("generator_moved")
class leaves_generators_there(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        with torch.autocast(*autocast):
            torch.set_rng_state(random[0])
            torch.cuda.set_rng_state_all(random[1])
            yield


@checkpointed.breaks("autocast_lost")
class without_autocast(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        with super().restored(random, (autocast[0], None, False)):
            yield


@checkpointed.breaks("activations_kept")
class copies_the_inputs(Recomputing):
    def saved(self, inputs):
        return [t.clone() for t in inputs]

    def inputs(self, saved):
        return [t.detach().requires_grad_(t.is_floating_point()) for t in saved]


@checkpointed.breaks("called_too_often")
class one_forward_for_each_gradient(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        def one(t):
            if t.requires_grad:
                output = self.computed(state, inputs)
                return torch.autograd.grad(output, t, gradient, allow_unused=True)[0]

        return [one(t) for t in tensors]


@checkpointed.breaks("parameters_hidden")
class in_a_list(Recomputing):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.hidden = [module]

    @property
    def module(self):
        return self.hidden[0]


@checkpointed.mistake(
    "weights_twice",
    "backward adds the gradients of the weights to .grad, and autograd adds what it returns.",
    fix="Return what torch.autograd.grad gives, or call torch.autograd.backward and return None.",
)
class adds_and_returns(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        found = super().gradients(state, inputs, tensors, gradient)
        for t, g in zip(tensors[len(inputs) :], found[len(inputs) :]):
            if g is not None:
                t.grad = g.clone() if t.grad is None else t.grad + g
        return found


@checkpointed.mistake(
    "kept_on_the_module",
    "what a forward keeps is in attributes of the module, where the next one overwrites it.",
    fix="Keep what belongs to one forward in its ctx.",
)
class inputs_on_the_module(Recomputing):
    def forward(self, *inputs):
        self.latest = inputs
        return super().forward(*inputs)

    def inputs(self, saved):
        return super().inputs(self.latest)


@checkpointed.mistake(
    "unused_not_allowed",
    "torch.autograd.grad refuses a parameter that this forward did not use.",
    fix="Pass allow_unused=True: the gradient of such a tensor is None.",
    status="crash",
)
class refuses_unused(Recomputing):
    allow_unused = False


@checkpointed.breaks("output_always_needs_gradients")
class needs_gradients_always(ByBackward):
    def weights(self):
        return [torch.zeros((), requires_grad=True)]


@checkpointed.breaks("not_recomputed")
class only_if_inputs_need_gradients(ByBackward):
    def weights(self):
        return []


@checkpointed.mistake(
    "goes_on_into_layers_before",
    "the second call's inputs belong to the graph of the layers before: backward goes on there.",
    fix="detach() the inputs before the second call, and require their gradients again.",
    status="crash",
)
class inputs_not_detached(Recomputing):
    def inputs(self, saved):
        return saved

    def weights(self):
        return [torch.zeros((), requires_grad=True)]

    def gradients(self, state, inputs, tensors, gradient):
        torch.autograd.backward(self.computed(state, inputs), gradient)
        return [t.grad if t.is_leaf else torch.ones_like(t) for t in tensors]


@checkpointed.mistake(
    "second_call_without_gradients",
    "inside of Function.backward gradients are off, so the second call has no graph.",
    fix="Make the second call in with torch.enable_grad():.",
    status="crash",
)
class no_graph(Recomputing):
    def computed(self, state, inputs):
        with self.restored(*state):
            return self.module(*inputs)


@checkpointed.mistake(
    "always_with_gradients",
    "forward turns gradients on, even where the caller has turned them off.",
    fix="Leave the mode as it is outside of backward.",
)
class enables_gradients(Recomputing):
    def forward(self, *inputs):
        with torch.enable_grad():
            return super().forward(*inputs)
