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

checkpointed = exercise(
    "memory.Checkpointed",
    expects="training gives the same weights as without Checkpointed, step after step",
)

WIDTH, ROWS = 24, 16


class Block(nn.Module):
    """(rows, width) to (rows, width), with dropout.  ``calls`` tells of each forward."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, dtype=dtype)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, dtype=dtype)
        self.calls: list[dict[str, Any]] = []

    def forward(self, rows, kept):
        hidden = self.wide(rows)
        drawn = torch.rand(hidden.shape, device=rows.device)
        self.calls.append({"drawn": drawn.cpu(), "dtype": str(hidden.dtype)})
        hidden = torch.tanh(hidden) * (drawn > 0.3)
        return torch.where(kept, rows + self.narrow(hidden), rows)


class Blocks(nn.Module):
    """Two blocks, of which each may be wrapped, and a head."""

    def __init__(self, case: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(seeded(lambda: Block(case.dtype), 7 + i) for i in range(2))
        self.head = seeded(lambda: nn.Linear(WIDTH, 1, dtype=case.dtype), 9)
        self.blocks[1].narrow.bias.requires_grad_(False)
        self.blocks[0].requires_grad_(not case.frozen)

    def forward(self, rows, kept):
        for block in self.blocks:
            rows = block(rows, kept)
        return self.head(rows)


@checkpointed.cases
def cases():
    yield a_case("two blocks", example=True)
    yield a_case("two blocks whose inputs need gradients, two passes in each step", 2, needs=True)
    yield a_case("a frozen block whose inputs need gradients", needs=True, frozen=True)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield a_case(f"autocast to {name}, backward outside of it", autocast=dtype)
    yield a_case("two blocks on a GPU", gpus=1)
    yield a_case("autocast to bfloat16 on a GPU", gpus=1, autocast=torch.bfloat16)


def a_case(title, passes=1, *, gpus=0, needs=False, frozen=False, autocast=None, **more):
    dtype = torch.float32 if autocast else torch.float64
    generator = torch.Generator().manual_seed(1)
    steps = [
        [torch.randn(ROWS, WIDTH, generator=generator, dtype=dtype) for _ in range(passes)]
        for _ in range(3)
    ]
    return case(
        title,
        gpus=gpus,
        steps=steps,
        kept=torch.arange(ROWS).remainder(3).gt(0).unsqueeze(1),
        needs=needs,
        frozen=frozen,
        autocast=autocast,
        dtype=dtype,
        **more,
    )


@checkpointed.drive
def drive(submission, case, devices):
    device = devices[0] if devices else torch.device("cpu")
    model = Blocks(case).to(device)
    blocks = [*model.blocks]
    came: dict[str, Any] = {"watched": {"held": held(submission.Checkpointed, device)}}
    for i, block in enumerate(blocks):
        model.blocks[i] = submission.Checkpointed(block)
    with torch.no_grad():
        output = model.blocks[0](case.steps[0][0].to(device), case.kept.to(device))
    came["whether the output needs a gradient in torch.no_grad()"] = output.requires_grad
    came["watched"] |= {"without gradients": len(blocks[0].calls), "passes": []}
    came |= trained(model, blocks, case, device, came["watched"]["passes"])
    return came


def trained(model, blocks, case, device, passes=None):
    """Weights after each step, and the gradients of inputs that need one."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    came: dict[str, Any] = {}
    for step, batches in enumerate(case.steps, 1):
        optimizer.zero_grad()
        for number, rows in enumerate(batches, 1):
            rows = rows.to(device, copy=True).requires_grad_(case.needs)
            for block in blocks:
                block.calls.clear()
            with torch.autocast(device.type, case.autocast, enabled=case.autocast is not None):
                loss = model(rows, case.kept.to(device)).float().square().mean()
            states = generators()
            loss.backward()
            if passes is not None:
                passes.append(seen(blocks, states))
            if case.needs:
                came[f"step {step}, pass {number}: the gradient of the inputs"] = rows.grad
        optimizer.step()
        for i, block in enumerate(blocks):
            for name, weight in block.named_parameters():
                came[f"step {step}: {name} of block {i}"] = weight.detach().clone()
    return came


def generators():
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def seen(blocks, states):
    """What the forwards of one pass noted, and which generators backward moved."""
    same = [torch.equal(*pair) for pair in zip(states, generators(), strict=True)]
    return {
        "calls": [len(block.calls) for block in blocks],
        "trained": [block.wide.weight.requires_grad for block in blocks],
        "without gradients": [block.wide.weight.grad is None for block in blocks],
        "dtypes": [[call["dtype"] for call in block.calls] for block in blocks],
        "drawn": [
            all(torch.equal(call["drawn"], block.calls[0]["drawn"]) for call in block.calls)
            for block in blocks
        ],
        "moved": [name for name, ok in zip(("CPU", "GPU"), same, strict=False) if not ok],
    }


def held(kind, device):
    """Bytes on the GPU between forward and backward, beyond those before: of how much output."""
    if device.type == "cpu":
        return None
    block = Block(torch.float64).to(device)
    inputs = torch.ones(ROWS, WIDTH, dtype=torch.float64, device=device, requires_grad=True)
    kept = torch.ones(ROWS, 1, dtype=torch.bool, device=device)
    block(inputs, kept).sum().backward()  # from now on the GPU's libraries have their memory
    wrapped = kind(block)
    before = torch.cuda.memory_allocated(device)
    output = wrapped(inputs, kept)
    return torch.cuda.memory_allocated(device) - before, output.nbytes


@checkpointed.expected
def expected(case):
    right = {"whether the output needs a gradient in torch.no_grad()": False}
    if case.gpus:  # a GPU draws other random numbers
        return right
    model = Blocks(case)
    with torch.random.fork_rng([]):
        return right | trained(model, [*model.blocks], case, torch.device("cpu"))


@checkpointed.words
def words(case):
    return {"dtype": str(case.autocast)}


# --- what the second forward is like -------------------------------------------------------------


@checkpointed.holds(
    "not_seen_by_autograd",
    expects="module is called again in backward also if no input needs a gradient",
    usually="autograd calls backward only if an argument of Function.apply needs a gradient, and"
    " the inputs of a first layer need none.",
    fix="Give the weights to Function.apply, or one more tensor that needs a gradient.",
    first=True,
)
def first_block_is_trained(run, case):
    for each in passes_of(run, case):
        if each["trained"][0] and each["without gradients"][0] and each["calls"][0] == 1:
            return "after backward the weights of the first block have no gradients"
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
    for calls in (each["calls"] for each in passes_of(run, case)):
        if min(calls) == 1:
            return f"block {calls.index(1)} was called once"
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
    expects="the second call of module computes under the same autocast as the first, {dtype}",
    usually="backward runs outside of the with-block, so the second call computes in float32.",
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
    expects="after backward the random generators are in the state in which they were before it",
    usually="the second call set a generator back, and left it there: the numbers that are drawn"
    " next were drawn before.",
    fix="torch.random.fork_rng() restores the generators at the end of its with-block.",
    first=True,
)
def generators_stay(run, case):
    for moved in (each["moved"] for each in passes_of(run, case)):
        if moved:
            return f"the generator of the {moved[0]} is in another state"
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
    if found is None or found[0] <= 1.1 * found[1]:
        return None
    return f"{found[0]:,} bytes more than before on the GPU, of which the output has {found[1]:,}"


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
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in tensors]


@checkpointed.right
class gradients_of_weights_by_backward(Recomputing):
    """A tensor that needs a gradient makes autograd call backward, which adds to .grad itself."""

    def weights(self):
        needed = any(p.requires_grad for p in self.module.parameters())
        return [torch.zeros((), requires_grad=needed)]

    def gradients(self, state, inputs, tensors, gradient):
        torch.autograd.backward(self.computed(state, inputs), gradient)
        return [t.grad for t in tensors]


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
        hook = self.module.wide.register_forward_hook(lambda *call: setattr(self, "kept", call[2]))
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
class only_if_inputs_need_gradients(Recomputing):
    def weights(self):
        return []

    def gradients(self, state, inputs, tensors, gradient):
        torch.autograd.backward(self.computed(state, inputs), gradient)
        return [t.grad for t in tensors]


@checkpointed.mistake(
    "goes_on_into_layers_before",
    "the inputs of the second call still belong to the graph of the layers before, so backward goes"
    " on into these, and the outer backward comes there once more.",
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
    "forward turns gradients on, also where the caller has turned them off.",
    fix="Leave the mode as it is outside of backward.",
)
class enables_gradients(Recomputing):
    def forward(self, *inputs):
        with torch.enable_grad():
            return super().forward(*inputs)
