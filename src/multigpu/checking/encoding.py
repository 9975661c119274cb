"""How requests and answers are encoded on their way between the judge and a worker.

There: a Request, and the check's drive with its arguments, pickled by the judge, whom the workers
trust.  Back: JSON for the structure, safetensors for tensors (``torch.load(weights_only=True)``
would import half a second's worth of torch first).  None of it is unpickled: what is not plain
data arrives as Foreign, with only its type's name, so an object of the learner's class never comes
to life in the judge.
"""

import io
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multigpu.checking.catalog import Exercise
from multigpu.ranks.errors import counted, type_name
from multigpu.ranks.resource_monitor import Limits

if TYPE_CHECKING:
    import torch

MAX_ITEMS = 100_000  # in one answer, all containers together
MAX_DEPTH = 30
MAX_TEXT = 100_000
MAX_BITS = 1024  # of a whole number; as far as a float reaches


@dataclass(frozen=True)
class Request:
    """One run of a learner's module.

    ``source`` is the text of ``path``, so that judge and worker speak of the same version even
    while the learner saves a new one.  Either one worker has ``gpus`` GPUs: virtual ones, or real
    ones when ``backing`` is "real".  Or there are ``ranks`` workers that form a process group.
    """

    exercise: Exercise
    path: str
    source: str
    return_lines: dict[int, int]  # of the source; found once, for all runs
    drive: bytes  # and its arguments, ``by_value``: for the worker, never for the server
    limits: Limits
    backing: str
    gpus: int = 0
    ranks: int = 0
    memory: str | None = None  # of each GPU, or of each rank
    out_of_reach: tuple[str, ...] = ()  # folders that the learner's code must not read


@dataclass(frozen=True, eq=False)
class Returned:
    """A tensor that the learner's code handed back.

    ``value`` is a plain, dense CPU copy; ``device`` says where the original was ("cuda:1").
    """

    value: "torch.Tensor"
    device: str

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
    """The bytes were not written by an Encoder."""


class TooMuch(Exception):
    """A value has more in it than MAX_ITEMS and MAX_DEPTH allow."""


class Encoder:
    """Turns a value into bytes.  Make it before the learner's module is imported.

    It holds on to the functions and attributes of torch that it calls itself, so that replacing
    them later, say ``torch.Tensor.device``, changes nothing here.  This refuses accidents and
    shortcuts.  It does not stop an attack, because code in the same process can reach
    everything.
    """

    def __init__(self) -> None:
        import torch
        from safetensors.torch import save

        from multigpu.devices.tensor import VirtualTensor

        kinds = (torch.Tensor, torch.nn.Parameter, VirtualTensor)
        self._device_of = {kind: kind.device.__get__ for kind in kinds}
        self._size = torch.Size
        self._named = (torch.device, torch.dtype)
        self._detach, self._cpu = torch.Tensor.detach, torch.Tensor.cpu
        self._to_dense, self._clone = torch.Tensor.to_dense, torch.Tensor.clone
        self._is_complex, self._resolved = torch.is_complex, torch.resolve_conj
        self._as_real, self._contiguous = torch.view_as_real, torch.contiguous_format
        self._alone = torch._C.DisableTorchFunction
        self._save: Callable[[dict[str, torch.Tensor]], bytes] = save
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
        if self._items > MAX_ITEMS or depth > MAX_DEPTH:
            raise TooMuch
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
            pairs = [[self._tree(part, depth + 1) for part in pair] for pair in value.items()]
            return {"dict": pairs}
        if kind in self._named:
            return self._str(value)
        if kind in self._device_of:
            return self._tensor(value)
        return {"foreign": self._type_name(kind)}

    def _tensor(self, tensor: "torch.Tensor") -> dict[str, Any]:
        name = self._str(len(self._tensors))
        with self._alone():  # virtual GPUs would look it up again
            device = self._str(self._device_of[self._type(tensor)](tensor))
        copy = self._to_dense(self._cpu(self._detach(tensor)))
        if is_complex := self._is_complex(copy):  # safetensors does not know all of these types
            copy = self._as_real(self._resolved(copy))
        self._tensors[name] = self._clone(copy, memory_format=self._contiguous)
        return {"tensor": name, "is_complex": is_complex, "device": device}


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
    tensor = tensors[tree["tensor"]]
    if tree["is_complex"]:
        import torch  # the command reads this module before torch is loaded

        tensor = torch.view_as_complex(tensor)
    return Returned(tensor, tree["device"])


def describe(value: object) -> str:
    """What came back, in words for a message: "a list of 3 tensors", "a generator", "None"."""
    if isinstance(value, Returned):
        shape = tuple(value.shape)
        return f"a tensor of shape {shape} ({str(value.dtype)[6:]}) on {value.device}"
    if isinstance(value, list | tuple):
        kind = type(value).__name__
        if not value:
            return f"an empty {kind}"
        of = "tensor" if all(isinstance(v, Returned) for v in value) else "value"
        return f"a {kind} of {counted(len(value), of)}"
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    name = value.type_name if isinstance(value, Foreign) else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# --- the drive and its arguments, on their way to the workers ------------------------------------


def by_value(drive: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Drive and arguments as bytes, with every function of the check's own files inside."""
    import cloudpickle  # type: ignore[import-untyped]
    import torch

    # The workers cannot import the check's file, nor those beside it.
    # A drive of our own (running.py) is given a function of that file as its first argument.
    module: str = (arguments[0] if drive.__module__.startswith("multigpu.") else drive).__module__
    package = module.rpartition(".")[0]
    cloudpickle.register_pickle_by_value(sys.modules[package or module])

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            # torch would write a file for each tensor, which takes each worker half a millisecond
            # to read; cases hold many small ones.
            if is_array(obj):
                return torch.tensor, (obj.numpy(),)
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump((drive, arguments))
    return file.getvalue()


def is_array(value: Any) -> bool:
    """Whether numpy can hold all that there is of a tensor."""
    import torch

    return (
        type(value) is torch.Tensor
        and not vars(value)
        and value.is_cpu
        and value.layout is torch.strided
        and value.is_contiguous()
        and not value.requires_grad
        and value.dtype in (torch.float32, torch.float64, torch.int64, torch.bool)
    )
