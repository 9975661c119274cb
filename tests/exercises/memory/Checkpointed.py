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
from multigpu.checking.verdicts import listed
from multigpu.devices.meters import MemoryMeter
from multigpu.ranks.memory_limit import Metering

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
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield a_case(f"autocast to {name}, backward outside of it", autocast=dtype)
    yield a_case("autocast around backward alone", backward_autocast=torch.bfloat16)
    half, brain = torch.float16, torch.bfloat16
    yield a_case(
        "one autocast in forward, another around backward", autocast=half, backward_autocast=brain
    )
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
    watched: dict[str, Any] = {"held": held(submission.Checkpointed, device), "passes": []}
    for i, block in enumerate(blocks):
        model.blocks[i] = submission.Checkpointed(block)
    watched["hidden"] = {*map(id, blocks[0].parameters())} - {*map(id, model.parameters())} != set()
    with torch.no_grad():
        rows, gain = (t.to(device) for t in case.steps[0][0])
        output = model.blocks[0](rows, case.kept.to(device), gain)
    came: dict[str, Any] = {"watched": watched}
    came["whether the output needs a gradient in torch.no_grad()"] = output.requires_grad
    watched["without gradients"] = len(blocks[0].calls)
    output_needs = model.blocks[0](rows, case.kept.to(device), gain).requires_grad
    watched["needs too much"] = case.frozen and output_needs
    if watched["needs too much"]:  # backward would fail
        return came
    return came | trained(model, blocks, case, device, watched["passes"])


def trained(model, blocks, case, device, passes=None):
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
            states = passes is not None and generators(case)
            with autocast_to(case.backward_autocast, device):
                for number, loss in enumerate(losses, 1):
                    (loss * number).backward()
            if passes is not None and len(group) == 1:
                passes.append(seen(blocks, case, states))
        if case.needs:
            for number, batch in enumerate(batches, 1):
                for name, tensor in zip(("first", "third"), batch, strict=True):
                    key = f"step {step}, pass {number}: the gradient of the {name} input"
                    came[key] = tensor.grad
        optimizer.step()
        for i, block in enumerate(blocks):
            without = [name for name, p in block.named_parameters() if p.grad is None]
            came[f"step {step}: the list of weights of block {i} without gradients"] = listed(
                without
            )
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


def seen(blocks, case, states):
    """What the forwards of one pass noted, and which generators backward moved."""
    now = generators(case)
    return {
        "calls": [len(block.calls) for block in blocks],
        "needed": [case.needs or not case.frozen, True],
        "without gradients": [block.wide.weight.grad is None for block in blocks],
        "dtypes": [[call["dtype"] for call in block.calls] for block in blocks],
        "drawn": [
            all(torch.equal(call["drawn"], block.calls[0]["drawn"]) for call in block.calls)
            for block in blocks
        ],
        "moved": [name for name, state in states.items() if not torch.equal(state, now[name])],
    }


def held(kind, device):
    """Bytes between forward and backward beyond those before, and those of the output."""
    meter = MemoryMeter(2**60, lambda **_: AssertionError("the limit is never reached"))
    on_gpu = device.type == "cuda"

    def allocated():
        return meter.allocated + (torch.cuda.memory_allocated(device) if on_gpu else 0)

    with Metering(meter):  # counts what is on the CPU
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


# --- what the second forward is like -------------------------------------------------------------


@checkpointed.holds(
    "parameters_hidden",
    expects="the parameters of Checkpointed(module) are those of module",
    usually="the module is in a list, a dict or a function, where nn.Module does not look.",
    fix="Assign it to an attribute: self.module = module.",
    first=True,
)
def parameters_are_seen(run, case):
    if run.came(case)["watched"]["hidden"]:
        return "parameters() does not give all of them"
    return None


@checkpointed.holds(
    "not_seen_by_autograd",
    expects="module is called again in backward even if no input needs a gradient",
    usually="autograd calls backward only if an argument of Function.apply needs a gradient, and"
    " the inputs of a first layer need none.",
    fix="Give the weights to Function.apply, or one more tensor that needs a gradient.",
    first=True,
)
def first_block_is_trained(run, case):
    for each in passes_of(run, case):
        missing = each["without gradients"][0] and each["calls"][0] == 1
        if missing and not case.frozen:
            return "after backward the weights of the first block have no gradients"
    return None


@checkpointed.holds(
    "output_always_needs_gradients",
    expects="the output needs a gradient only if an input or a weight does",
    usually="a tensor that needs a gradient is always among the arguments of Function.apply.",
    fix="Let it need a gradient only if a weight does.",
    first=True,
)
def output_needs_what_it_must(run, case):
    if run.came(case)["watched"]["needs too much"]:
        return "no input and no weight needs a gradient, and the output does"
    return None


@checkpointed.holds(
    "not_recomputed",
    expects="module is called once in forward and once more in backward",
    usually="the module was called with gradients, so autograd has kept what it computed inside.",
    fix="Call it without gradients in forward, and again with gradients in backward. A"
    " torch.autograd.Function does both: its forward runs without gradients.",
    first=True,
)
def computed_again(run, case):
    for each in passes_of(run, case):
        for block, (calls, needed) in enumerate(zip(each["calls"], each["needed"], strict=True)):
            if calls == 1 and needed:
                return f"block {block} was called once"
    return None


@checkpointed.holds(
    "called_too_often",
    expects="module is called once in forward and once more in backward, and only once without"
    " gradients",
    usually="each gradient was computed by a forward of its own, or the module is called again"
    " where no backward follows.",
    fix="One call of torch.autograd.grad gives the gradients of all inputs and all parameters.",
    first=True,
)
def computed_once_more(run, case):
    if run.came(case)["watched"]["without gradients"] > 1:
        return "in torch.no_grad() it was called more than once"
    for calls in (each["calls"] for each in passes_of(run, case)):
        if max(calls) > 2:
            return f"in one pass block {calls.index(max(calls))} was called {max(calls)} times"
    return None


@checkpointed.holds(
    "other_random_numbers",
    expects="the second call of module draws the same random numbers as the first",
    usually="dropout drops other elements in the second call, so the gradients belong to another"
    " forward.",
    fix="Keep the states of the generators in forward, and set them before the second call:"
    " torch.get_rng_state() on the CPU, torch.cuda.get_rng_state() on a GPU.",
    first=True,
)
def same_random_numbers(run, case):
    for drawn in (each["drawn"] for each in passes_of(run, case)):
        if not all(drawn):
            return f"in block {drawn.index(False)} they are different"
    return None


@checkpointed.holds(
    "autocast_lost",
    expects="the second call of module computes under the same autocast as the first",
    usually="backward runs where autocast is off, or is another one, and the second call used"
    " that.",
    fix="Ask in forward: torch.is_autocast_enabled(device.type) and"
    " torch.get_autocast_dtype(device.type). Enter torch.autocast again in backward.",
    first=True,
)
def same_autocast(run, case):
    for dtypes in (own for each in passes_of(run, case) for own in each["dtypes"]):
        if len(set(dtypes)) > 1:
            return (
                f"a linear layer gave {dtypes[0]} in the first call and {dtypes[1]} in the second"
            )
    return None


@checkpointed.holds(
    "generator_moved",
    expects="backward leaves all random generators in the state in which they were before it",
    usually="a generator was set back or seeded for the second call, and left there.",
    fix="torch.random.fork_rng() restores the generators at the end of its with-block.",
    first=True,
)
def generators_stay(run, case):
    for moved in (each["moved"] for each in passes_of(run, case)):
        if moved:
            return f"the generator of {moved[0]} is in another state"
    return None


@checkpointed.holds(
    "activations_kept",
    expects="between forward and backward nothing is kept but inputs, output and random states",
    usually="autograd or an attribute keeps what the module computed inside, or copies of the"
    " inputs.",
    fix="Run the first call without gradients, and save the inputs themselves:"
    " ctx.save_for_backward(*inputs).",
)
def little_is_held(run, case):
    found = run.came(case)["watched"]["held"]
    if found[0] <= 1.2 * found[1]:
        return None
    return f"{found[0]:,} bytes more than before, of which the output has {found[1]:,}"


def passes_of(run, case):
    return run.came(case)["watched"]["passes"]


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


# --- the mistakes --------------------------------------------------------------------------------


@checkpointed.breaks("not_recomputed")
class calls_the_module(Recomputing):
    def forward(self, *inputs):
        return self.module(*inputs)


@checkpointed.breaks("not_recomputed")
class keeps_the_graph(Recomputing):
    def forward(self, *inputs):
        class Kept(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *tensors):
                with torch.enable_grad():
                    ctx.inputs = self.inputs(tensors[: len(inputs)])
                    ctx.output = self.module(*ctx.inputs)
                return ctx.output.detach()

            @staticmethod
            def backward(ctx, gradient):
                torch.autograd.backward(ctx.output, gradient)
                return *(t.grad for t in ctx.inputs), *[None] * len(self.weights())

        return Kept.apply(*inputs, *self.weights())


@checkpointed.breaks("other_random_numbers")
class new_random_numbers(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        with torch.autocast(*autocast):
            yield


@checkpointed.breaks("other_random_numbers")
class random_numbers_of_the_cpu_only(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        with torch.random.fork_rng(range(torch.cuda.device_count())), torch.autocast(*autocast):
            torch.set_rng_state(random[0])
            yield


@checkpointed.breaks("generator_moved")
class leaves_generators_there(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        with torch.autocast(*autocast):
            torch.set_rng_state(random[0])
            torch.cuda.set_rng_state_all(random[1])
            yield


@checkpointed.breaks("generator_moved")
class forks_the_current_gpu_only(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        current = [torch.cuda.current_device()] if random[1] else []
        with torch.random.fork_rng(current), torch.autocast(*autocast):
            torch.set_rng_state(random[0])
            torch.cuda.set_rng_state_all(random[1])
            yield


@checkpointed.breaks("activations_kept")
class copies_the_inputs_to_the_cpu(Recomputing):
    def saved(self, inputs):
        self.copies = [t.cpu().clone() for t in inputs]
        return inputs


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


@checkpointed.breaks("activations_kept")
class keeps_the_hidden_ones_too(Recomputing):
    def forward(self, *inputs):
        first = getattr(self.module, "wide", None) or self.module[0]
        hook = first.register_forward_hook(lambda *call: setattr(self, "kept", call[2]))
        try:
            return super().forward(*inputs)
        finally:
            hook.remove()


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
    "backward adds the gradients of the weights to .grad, and also returns them, so autograd adds"
    " them again.",
    fix="Do one of the two: torch.autograd.grad and return them, or torch.autograd.backward and"
    " return None for the weights.",
)
class adds_and_returns(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        found = super().gradients(state, inputs, tensors, gradient)
        for t, g in zip(tensors[len(inputs) :], found[len(inputs) :]):
            if g is not None:
                t.grad = g.clone() if t.grad is None else t.grad + g
        return found


@checkpointed.mistake(
    "gradients_replaced",
    "the gradients of a pass replaced what .grad held of the pass before.",
    fix="Add to .grad, or return the gradients: then autograd adds them.",
)
class sets_gradients(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        found = super().gradients(state, inputs, tensors, gradient)
        for t, g in zip(tensors[len(inputs) :], found[len(inputs) :]):
            t.grad = g
        return [*found[: len(inputs)], *[None] * (len(found) - len(inputs))]


OVERWRITTEN = (
    "the inputs or the random states are kept in attributes of the module, and a second forward"
    " before the backward of the first one overwrites them."
)
IN_CTX = "Keep what belongs to one forward in its ctx."


@checkpointed.mistake("kept_on_the_module", OVERWRITTEN, fix=IN_CTX)
class inputs_on_the_module(Recomputing):
    def forward(self, *inputs):
        self.latest = inputs
        return super().forward(*inputs)

    def inputs(self, saved):
        return super().inputs(self.latest)


@checkpointed.mistake("kept_on_the_module", OVERWRITTEN, fix=IN_CTX)
class states_on_the_module(Recomputing):
    def state(self, kind):
        self.latest = super().state(kind)

    def computed(self, state, inputs):
        return super().computed(self.latest, inputs)


@checkpointed.mistake(
    "first_input_only",
    "backward returned a gradient for the first input alone.",
    fix="Return one for each input that needs it, in the order of the arguments of forward.",
)
class gradient_of_the_first_input(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        first, *others = super().gradients(state, inputs, tensors, gradient)
        count = len(inputs) - 1
        return [first, *[None] * count, *others[count:]]


@checkpointed.mistake(
    "unused_not_allowed",
    "torch.autograd.grad refuses a tensor that the output does not depend on, such as a parameter"
    " that this forward did not use.",
    fix="Pass allow_unused=True: the gradient of such a tensor is None.",
    status="crash",
)
class refuses_unused(Recomputing):
    allow_unused = False


@checkpointed.mistake(
    "unused_get_zeros",
    "a parameter that the forward did not use got zeros as its gradient. With weight decay, an"
    " optimizer then changes it.",
    fix="Its gradient stays None: allow_unused=True gives that, materialize_grads=True does not.",
)
class zeros_for_unused(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        found = super().gradients(state, inputs, tensors, gradient)
        pairs = zip(tensors, found)
        return [torch.zeros_like(t) if t.requires_grad and g is None else g for t, g in pairs]


@checkpointed.breaks("output_always_needs_gradients")
class needs_gradients_always(ByBackward):
    def weights(self):
        return [torch.zeros((), requires_grad=True)]


@checkpointed.breaks("autocast_lost")
class only_turns_autocast_on(Recomputing):
    @contextmanager
    def restored(self, random, autocast):
        enabled = autocast[2] or torch.is_autocast_enabled(autocast[0])
        with super().restored(random, (autocast[0], torch.bfloat16, enabled)):
            yield


@checkpointed.breaks("other_random_numbers")
class second_call_in_eval(Recomputing):
    def computed(self, state, inputs):
        self.module.eval()
        output = super().computed(state, inputs)
        self.module.train()
        return output


@checkpointed.breaks("other_random_numbers")
class current_gpu_only(Recomputing):
    def state(self, kind):
        random, autocast = super().state(kind)
        return (random[0], [torch.cuda.get_rng_state()] if random[1] else []), autocast

    @contextmanager
    def restored(self, random, autocast):
        with torch.random.fork_rng(range(torch.cuda.device_count())), torch.autocast(*autocast):
            torch.set_rng_state(random[0])
            for own in random[1]:
                torch.cuda.set_rng_state(own)
            yield


@checkpointed.mistake(
    "weights_without_gradients",
    "backward returned the gradients of the inputs only, and autograd does not see the weights that"
    " were used inside.",
    fix="Give the weights to Function.apply as well, and return their gradients; or call"
    " torch.autograd.backward, which adds them to .grad.",
)
class gradients_of_inputs_only(Recomputing):
    def gradients(self, state, inputs, tensors, gradient):
        found = super().gradients(state, inputs, tensors, gradient)
        return [*found[: len(inputs)], *[None] * (len(found) - len(inputs))]


@checkpointed.breaks("not_seen_by_autograd")
class only_if_inputs_need_gradients(ByBackward):
    def weights(self):
        return []


@checkpointed.mistake(
    "goes_on_into_layers_before",
    "the inputs of the second call still belong to the graph of the layers before, so backward goes"
    " on into these, and the outer backward reaches these a second time.",
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
