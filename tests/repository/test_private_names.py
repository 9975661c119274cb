"""The package rests on names that PyTorch does not promise to keep: this is the list of them.

A new release of PyTorch is tried with all tests. A name that is no longer here is taken off the
list, and one more needs a reason.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import multigpu

PRIVATE = {
    "devices": {
        # The stacks of modes, of functions and of operators
        "_EnableTorchFunction", "_get_current_function_mode_stack", "_pop_torch_dispatch_stack",
        "_push_on_torch_dispatch_stack",
        # What an operator's arguments are; lazy conjugation inside an operator that is run whole
        "_schema", "_SetExcludeDispatchKeyGuard",
        # The shell around the data, its marks, and how a parameter stays the same object elsewhere
        "_cdata", "_indices", "_make_wrapper_subclass", "_set_conj", "_set_neg",
        "_backward_hooks", "_post_accumulate_grad_hooks", "_swap_tensor_impl", "_values",
        # Backward begins without interception; where a gradient belongs; optimizers by lists
        "_engine_run_backward", "_foreach_supported_types", "_input_metadata",
        # torch.cuda: whether there is a driver, and the streams that nn.DataParallel keeps
        "_get_accelerator", "_initialized", "_lazy_init", "_streams",
        # DistributedDataParallel compares and sends parameters by their addresses
        "_broadcast_coalesced", "_verify_params_across_processes",
        # Threads of remote calls
        "_InternalRPCPickler", "_run_function",
    },
    "ranks": {
        # Every group that is made is one that is traced: there is no hook for that
        "_new_group_with_tag", "_new_process_group_helper", "_world",
        # The real group inside that one: made as torch makes it, for two kinds of device
        "_register_backend", "_set_default_backend", "_set_group_name",
        "_set_sequence_number_for_group", "_timeout",
        # What C++ and torch's own code call of a group
        "_allgather_base", "_device_types", "_enable_collectives_timing", "_end_coalescing",
        "_get_backend", "_has_hooks", "_reduce_scatter_base", "_start_coalescing",
        "_wait_for_pending_works",
        # Copies of ours are not counted; stand-ins for tensors have no memory
        "_mode_utils", "_subclasses",
        # What happens at the end of a backward pass: DDP waits for its buckets this way
        "_execution_engine",
    },
    "training": {
        # A model is run without numbers, to see which tensors each call changes
        "_subclasses", "_version",
        # Both dimensions of a mesh as one: else PyTorch warns of two messages for each clipping
        "_flatten",
    },
}  # fmt: skip

LAYERS = ("checking", "commands", "data", "pictures", "scaling")  # which need none

# Of Python itself; parts of the names of public modules; an operator.
OTHERS = {
    *("_WorkItem", "_bootstrap_inner", "_clear", "_exit", "_exit_function", "_getframe"),
    "_current_frames",
    *("_run_exitfuncs", "_shutdown", "_replace", "_asdict", "_thread", "_of"),
    *("_C", "_functions", "_dynamo", "_pytree", "_python_dispatch", "_to_copy"),
}


@cache
def places() -> tuple[object, ...]:
    """Modules of PyTorch in which something is replaced or called by its name, their own names."""
    import torch.distributed.rpc
    import torch.nn.parallel

    return (
        torch._C, torch.autograd, torch.cuda, torch.distributed, torch.distributed.ProcessGroup,
        torch.nn.parallel._functions, sys.modules["torch.optim.optimizer"],
        torch.distributed.rpc.internal,
    )  # fmt: skip


def names(node: ast.AST) -> Iterator[str]:
    """The names that a piece of a program uses of others."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()):
            yield name
        case ast.ImportFrom(module=str(module), names=imported) if module.startswith("torch"):
            yield from (*module.split("."), *(alias.name for alias in imported))
        case ast.Constant(value=str(text)) if any(hasattr(place, text) for place in places()):
            yield text


def own_names(node: ast.AST) -> Iterator[str]:
    """The names that a piece of a program gives."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


@pytest.mark.parametrize("layer", [*PRIVATE, *LAYERS])
def test_the_list_is_complete_and_has_nothing_more(layer: str) -> None:
    files = Path(multigpu.__path__[0], layer).glob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    used = {name for node in nodes for name in names(node) if re.match("_[a-zA-Z]", name)}
    private = PRIVATE.get(layer, set())
    own = {name for node in nodes for name in own_names(node)} - private
    assert used - own - OTHERS == private
