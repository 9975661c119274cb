"""In the worker: the learner's module and the function that an exercise asks for."""

import inspect
import os
import sys
import types
import warnings
from functools import lru_cache
from typing import Any

from multigpu.checking.request import Request
from multigpu.checking.tracing import codes_of


class SignatureMismatch(Exception):
    """The learner's function cannot be called as the checks call it."""


class MissingFunction(Exception):
    """The learner's module does not have the function."""


@lru_cache(maxsize=4)
def compiled(source: str, path: str) -> types.CodeType | None:
    """The code of a module, for the server: all workers that it forks have it then.

    None where there is anything to say about it: the worker then says it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return compile(source, path, "exec", dont_inherit=True)
        except Exception:
            return None


def load(request: Request) -> types.ModuleType:
    """Import the learner's module from its text.

    Its folder comes last on ``sys.path``: a ``random.py`` beside it hides nothing.
    """
    name = os.path.splitext(os.path.basename(request.path))[0]
    sys.dont_write_bytecode = True
    sys.path.append(os.path.dirname(request.path))
    module = types.ModuleType(name)
    module.__file__ = request.path
    sys.modules[name] = module
    code = compiled(request.source, request.path)
    if code is None:
        code = compile(request.source, request.path, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def find(submission: types.ModuleType, request: Request) -> Any:
    """The learner's function, if it can be called as the checks call it."""
    exercise = vars(submission).get(request.function)
    if exercise is None:
        names = [
            name
            for name, value in vars(submission).items()
            if getattr(value, "__module__", None) == submission.__name__
        ]
        raise MissingFunction(", ".join(names))
    if not callable(exercise):
        raise SignatureMismatch(f"{request.function} is no function but {type(exercise).__name__}")
    try:
        signature = inspect.signature(exercise)
    except (TypeError, ValueError):  # built in C: the call itself will tell
        return exercise
    try:
        signature.bind(
            *request.signature.positional, **dict.fromkeys(request.signature.keyword_only)
        )
    except TypeError as error:
        raise SignatureMismatch(f"{request.function}{_bare(signature)}") from error
    return exercise


def _bare(signature: inspect.Signature) -> str:
    """A signature without annotations."""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def first_line(exercise: Any) -> list[Any] | None:
    """File and line of a function's definition, or of a class's first method."""
    code = next(iter(codes_of(exercise)), None)
    return [code.co_filename, code.co_firstlineno] if code else None
