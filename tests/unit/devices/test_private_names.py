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
from multigpu.devices import comm

PRIVATE = {
    # The two stacks of modes; how to run an operator on data, or as the others it is made of
    "_EnableTorchFunction", "_dispatch_has_kernel_for_dispatch_key",
    "_dispatch_tls_is_dispatch_key_excluded", "_dispatch_tls_set_dispatch_key_excluded",
    "_get_current_function_mode_stack", "_op_dk", "_pop_torch_dispatch_stack",
    "_push_on_torch_dispatch_stack", "_schema",
    # The shell around the data, and how a parameter stays the same object on another device
    "_cdata", "_indices", "_make_wrapper_subclass", "_set_conj", "_set_neg", "_str_intern",
    "_swap_tensor_impl", "_tensor_str", "_values",
    # What a caller of torch or of module.to(...) asks for
    "_device_constructors", "_nn", "_parse_to",
    # Where Python code runs without interception, or would not know these tensors
    "_engine_run_backward", "_foreach_supported_types", "_input_metadata",
    "_push_saved_tensors_default_hooks",
    # torch.cuda: what asks the driver
    "_exchange_device", "_initialized", "_is_in_bad_fork", "_lazy_init",
    "_maybe_exchange_device", "_streams",
    # The C++ functions behind nn.DataParallel's copies, and how these are packed
    "_broadcast", "_broadcast_coalesced", "_broadcast_out", "_flatten_dense_tensors", "_gather",
    "_gather_out", "_scatter", "_scatter_out", "_take_tensors", "_unflatten_dense_tensors",
}  # fmt: skip


# Modules of PyTorch in which something is replaced by its name, and their own names.
PLACES = (
    torch._C, torch._C._autograd, torch.autograd, torch.cuda, torch.nn.parallel._functions,
    sys.modules["torch.optim.optimizer"],
)  # fmt: skip
MODULES = {"_C", "_autograd", "_functions", "_utils"}
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
    assert (used | set(comm.STAND_INS)) - own - MODULES - OTHERS == PRIVATE
