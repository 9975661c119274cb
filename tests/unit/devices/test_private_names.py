"""Virtual GPUs rest on names that PyTorch does not promise to keep: this is the list of them.

A new release of PyTorch is tried with all tests of this folder. A name that is no longer here is
taken off the list, and one more needs a reason.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.parallel

import multigpu.devices

PRIVATE = {
    # The stacks of modes, of functions and of operators
    "_EnableTorchFunction", "_get_current_function_mode_stack", "_pop_torch_dispatch_stack",
    "_push_on_torch_dispatch_stack",
    # What an operator's arguments are; lazy conjugation inside an operator that is run whole
    "_schema", "_dispatch_tls_is_dispatch_key_excluded", "_dispatch_tls_set_dispatch_key_excluded",
    # The shell around the data, its marks, and how a parameter stays the same object elsewhere
    "_cdata", "_indices", "_make_wrapper_subclass", "_set_conj", "_set_neg", "_swap_tensor_impl",
    "_values",
    # Backward passes begin without interception; where a gradient belongs; optimizers by lists
    "_engine_run_backward", "_foreach_supported_types", "_input_metadata",
    # torch.cuda: whether there is a driver, and the streams that nn.DataParallel keeps
    "_initialized", "_lazy_init", "_streams",
}  # fmt: skip


# Modules of PyTorch in which something is replaced by its name, and their own names.
PLACES = (
    torch._C, torch.autograd, torch.cuda, torch.nn.parallel._functions,
    sys.modules["torch.optim.optimizer"],
)  # fmt: skip
MODULES = {"_C", "_functions"}
OTHERS = {"_WorkItem", "_bootstrap_inner", "_getframe", "_to_copy"}  # of Python; an operator


def names(node: ast.AST) -> Iterator[str]:
    """The names that a piece of a program uses of others."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()):
            yield name
        case ast.ImportFrom(module=str(module), names=imported) if module.startswith("torch"):
            yield from (alias.name for alias in imported)
        case ast.Constant(value=str(text)) if any(hasattr(place, text) for place in PLACES):
            yield text


def own_names(node: ast.AST) -> Iterator[str]:
    """The names that a piece of a program gives."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def test_the_list_is_complete_and_has_nothing_more():
    files = Path(multigpu.devices.__path__[0]).glob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    used = {name for node in nodes for name in names(node) if re.match("_[a-zA-Z]", name)}
    own = {name for node in nodes for name in own_names(node)} - PRIVATE
    assert used - own - MODULES - OTHERS == PRIVATE
