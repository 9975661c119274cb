"""How values travel from the worker to the judge: JSON for the structure, safetensors for tensors.

Nothing here unpickles.  What is not plain data arrives as Foreign, with only its type's name, so an
object of the learner's class never comes to life in the judge.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multigpu.ranks.errors import type_name

if TYPE_CHECKING:
    import torch

ATTRIBUTES = ("device", "requires_grad", "is_leaf", "layout")  # of a tensor, told to the judge
MAX_ITEMS = 100_000  # in one answer, all containers together
MAX_DEPTH = 30
MAX_TEXT = 100_000
MAX_BITS = 1024  # of a whole number; as far as a float reaches


@dataclass(frozen=True, eq=False)
class Returned:
    """A tensor that the learner's code handed back, and how it lay in the worker.

    ``value`` is a plain CPU copy; ``device`` says where the original was ("cuda:1").
    """

    value: "torch.Tensor"
    device: str
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool
    layout: str

    @property
    def shape(self) -> "torch.Size":
        """The shape of the original."""
        return self.value.shape

    @property
    def dtype(self) -> "torch.dtype":
        """The type of its numbers."""
        return self.value.dtype


@dataclass(frozen=True)
class Foreign:
    """Something that is neither plain data nor exactly a tensor."""

    type_name: str


class Unreadable(Exception):
    """The bytes are no answer of an Encoder."""


class TooMuch(Exception):
    """A value has more than MAX_ITEMS values in it."""


class Encoder:
    """Turns a value into bytes.  Make it before the learner's module is imported.

    It holds on to the functions and attributes of torch that it calls itself, so that replacing
    them later, say ``torch.Tensor.device``, changes nothing here.  This refuses accidents and
    shortcuts.  It is no guard against an attack: code in the same process can reach everything.
    """

    def __init__(self, tensor_types: frozenset[type]) -> None:
        import torch
        from safetensors.torch import save

        self._tensor_types = tensor_types
        self._parameter = torch.nn.Parameter
        self._named = (torch.device, torch.dtype)
        self._size = torch.Size
        self._save: Callable[[dict[str, torch.Tensor]], bytes] = save
        self._detach, self._cpu = torch.Tensor.detach, torch.Tensor.cpu
        self._to_dense, self._clone = torch.Tensor.to_dense, torch.Tensor.clone
        self._is_complex, self._resolve = torch.Tensor.is_complex, torch.Tensor.resolve_conj
        self._attributes = {
            kind: {name: getattr(kind, name).__get__ for name in ATTRIBUTES}
            for kind in tensor_types
        }
        self._alone = torch._C.DisableTorchFunction
        self._as_real = torch.view_as_real
        self._contiguous = torch.contiguous_format
        self._dumps, self._type, self._str = json.dumps, type, str
        self._type_name = type_name
        self._tensors: dict[str, torch.Tensor] = {}
        self._items = 0

    def encode(self, value: object) -> bytes:
        """One message with the whole value."""
        self._tensors, self._items = {}, 0
        try:
            tree = self._tree(value, 0)
        except TooMuch:
            self._tensors = {}
            tree = {"foreign": f"{self._type_name(self._type(value))} with too much in it"}
        header = self._dumps(tree).encode()
        return struct.pack(">I", len(header)) + header + self._save(self._tensors)

    def _tree(self, value: Any, depth: int) -> Any:
        kind = self._type(value)
        self._items += 1
        if self._items > MAX_ITEMS:
            raise TooMuch
        if depth > MAX_DEPTH:
            return {"foreign": f"{self._type_name(kind)} with too much in it"}
        if kind is int and value.bit_length() > MAX_BITS:
            return {"foreign": f"int of {value.bit_length()} bits"}
        if value is None or kind in (bool, int, float):
            return value
        if kind is str:
            return value[:MAX_TEXT]
        if kind in (list, tuple, self._size):
            name = "list" if kind is list else "tuple"
            return {name: [self._tree(item, depth + 1) for item in value]}
        if kind is dict:
            pairs = [
                [self._tree(key, depth + 1), self._tree(item, depth + 1)]
                for key, item in value.items()
            ]
            return {"dict": pairs}
        if kind in self._named:
            return self._str(value)
        if kind in self._tensor_types:
            return self._tensor(value)
        return {"foreign": self._type_name(kind)}

    def _tensor(self, tensor: "torch.Tensor") -> dict[str, Any]:
        name = self._str(len(self._tensors))
        copy = self._cpu(self._detach(tensor))
        if self._str(self._attribute(copy, "layout")) != "torch.strided":
            copy = self._to_dense(copy)
        if self._is_complex(copy):
            copy = self._as_real(self._resolve(copy))
        self._tensors[name] = self._clone(copy, memory_format=self._contiguous)
        return {
            "tensor": name,
            "complex": self._is_complex(tensor),
            "device": self._str(self._attribute(tensor, "device")),
            "requires_grad": self._attribute(tensor, "requires_grad"),
            "is_leaf": self._attribute(tensor, "is_leaf"),
            "is_parameter": isinstance(tensor, self._parameter),
            "layout": self._str(self._attribute(tensor, "layout")).removeprefix("torch."),
        }

    def _attribute(self, tensor: "torch.Tensor", name: str) -> Any:
        with self._alone():  # virtual GPUs would look the attribute up anew
            return self._attributes[self._type(tensor)][name](tensor)


def decode(message: bytes) -> Any:
    """The value of a message: plain data, Returned for tensors, Foreign for all else.

    Raises Unreadable.  The worker runs the learner's code, so its bytes can be anything.
    """
    from safetensors.torch import load

    try:
        (length,) = struct.unpack_from(">I", message)
        tree = json.loads(message[4 : 4 + length])
        return _value(tree, load(message[4 + length :]))
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _value(tree: Any, tensors: dict[str, "torch.Tensor"]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "list" in tree:
        return [_value(item, tensors) for item in tree["list"]]
    if "tuple" in tree:
        return tuple(_value(item, tensors) for item in tree["tuple"])
    if "dict" in tree:
        return {_value(key, tensors): _value(item, tensors) for key, item in tree["dict"]}
    if "foreign" in tree:
        return Foreign(str(tree["foreign"]))
    import torch

    fields = dict(tree)
    value = tensors[fields.pop("tensor")]
    return Returned(torch.view_as_complex(value) if fields.pop("complex") else value, **fields)


def describe(value: object) -> str:
    """What came back, in words for a message: "a list of 3 tensors", "a generator", "None"."""
    if isinstance(value, Returned):
        shape = tuple(value.shape)
        return f"a tensor of shape {shape} ({str(value.dtype)[6:]}) on {value.device}"
    if isinstance(value, Foreign):
        return _with_article(value.type_name)
    if isinstance(value, list | tuple):
        of = "tensors" if value and all(isinstance(v, Returned) for v in value) else "values"
        one = of[:-1] if len(value) == 1 else of
        return (
            f"an empty {type(value).__name__}"
            if not value
            else (f"a {type(value).__name__} of {len(value)} {one}")
        )
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
