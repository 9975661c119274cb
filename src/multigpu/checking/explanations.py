"""What torch's error messages usually mean, in plain words."""

import re

EXPLANATIONS = (
    (
        r"Expected all tensors to be on the same device",
        "two tensors of one operation lie on different devices. Bring one to the other: "
        "x.to(y.device).",
    ),
    (
        r"can't convert cuda:\d+ device type tensor to numpy",
        "numpy reads only the CPU's memory. Use x.cpu() first.",
    ),
    (r"invalid device ordinal", "there are fewer GPUs than this number; GPUs count from 0."),
    (r"CUDA out of memory", "more was put on this GPU than its memory holds."),
    (
        r"does not require grad and does not have a grad_fn",
        "the way back for gradients is cut: by detach(), .data, .item(), no_grad or a new tensor.",
    ),
    (
        r"'NoneType' object has no attribute",
        "something is None there. A gradient is None where a layer was not used, in a replica "
        "without rows, and of a tensor without requires_grad.",
    ),
    (
        r"unsupported operand type\(s\) for \S+: ('NoneType' and|.* and 'NoneType')",
        "something is None there. A gradient is None where a layer was not used, and in a hook of "
        "register_hook, which is called before .grad is set: register_post_accumulate_grad_hook is "
        "called after that.",
    ),
    (
        r"forward\(\) got an unexpected keyword argument|forward\(\) takes \d+ positional",
        "a model can have several inputs, and inputs with names: forward(self, *inputs, **named) "
        "passes all of them on.",
    ),
    (
        r"leaf Variable that requires grad",
        "a parameter was changed in place while autograd records. Do it inside torch.no_grad().",
    ),
    (
        r"modified by an inplace operation",
        "a tensor that backward still needs was changed in place.",
    ),
    (
        r"Expected parameter `\w+` of type torch\.Tensor\s+but got <class 'NoneType'>",
        "None was given to torch.distributed. A gradient (.grad) is None where the loss does not "
        "use a parameter, and where it is frozen: send zeros for it, or leave it out on all ranks.",
    ),
    (
        r"Boolean value of Tensor with more than one value",
        "`in`, index, sorted and == on a list of tensors compare their numbers. Compare the "
        "objects: with `is`, by name, or with tensors as keys of a dict.",
    ),
    (
        r"assigned grad expected to be a Tensor",
        "what was put into .grad is no tensor. sum([]) is the number 0: where no gradient is "
        "there, leave .grad as it is.",
    ),
    (
        r"assign(ed)? (a )?grad(ient)? (with dtype|of size|has data of a different)",
        "a gradient has the shape and the dtype of its parameter. torch.zeros(shape) is float32; "
        "torch.zeros_like(parameter) is as the parameter is.",
    ),
    (
        r"cannot register a hook on a tensor that doesn't require gradient",
        "it is a frozen parameter (requires_grad is False). It never gets a gradient: leave it "
        "out.",
    ),
    (
        r"closed by peer|Connection reset",
        "another rank has ended, or has destroyed its process group, while this one still needed "
        "it.",
    ),
    (
        r"process group has not been (initialized|initialised)",
        "the process group was destroyed before. Leave it alone: the checker takes it down.",
    ),
    (
        r"there is no rank -?\d+ in a group",
        "rank numbers end at world_size - 1. In a ring the next rank is (rank + 1) % world_size.",
    ),
    (
        r"Invalid (destination|source) rank|Pair is not connected",
        "a rank cannot send a message to itself, or receive one from itself.",
    ),
    (
        r"optimizer got an empty parameter list",
        "this rank owns no parameter, and torch's optimizers refuse an empty list. Make none there "
        "and let the rank take part in every message all the same.",
    ),
    (
        r"offset < this->size",
        "gloo cannot receive a message without any element from a rank that is not named. Give "
        "recv its src.",
    ),
    (
        r"second time",
        "backward ran twice through one graph. Compute the outputs again, or add up the losses.",
    ),
    (
        r"maximum recursion depth exceeded",
        "a function calls itself without end.",
    ),
    (r"EOF when reading a line", "there is nobody at the keyboard in a check: leave out input()."),
    (r"partially initialized module", "a file beside yours has the name of a library."),
)

FEWER_CHUNKS = (
    "chunk(n) makes fewer than n chunks when there are not enough elements. tensor_split(n) always "
    "makes n."
)


def explanation(text: str, code: str = "") -> str | None:
    """The explanation of the first message that ``text`` contains.

    ``code`` is the source of the functions in which the error was raised.
    """
    if re.search(r"(list|tuple) index out of range", text) and re.search(r"\bchunk\(", code):
        return FEWER_CHUNKS
    return next((why for pattern, why in EXPLANATIONS if re.search(pattern, text)), None)
