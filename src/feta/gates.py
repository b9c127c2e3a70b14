"""The gate of every public function and class: arguments are looked at before anything is done, by the signature.

    @gated
    def prune(model: nn.Module, …, seed: int = 0, device: str | torch.device | None = None)

The annotations say what an argument may be, and some names stand for more: a `seed` is one that torch can take, a
`device` one that is there, a model has weights that exist. What a value must be besides is checked where it is used.
Torch's random state is the caller's: it is put back when a function returns or raises. Threads that are inside are
counted, for what one of them may only do while it is alone.
"""

import functools
import inspect
import os
import sys
import threading
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from feta.errors import ConfigError, FileError, ModelError, printable, quoted, shown, unknown_name

Made = TypeVar("Made", bound=Callable[..., Any])

MOST = 2**63  # whole numbers are below this: torch counts with 64 bits
WORDS = {int: "a whole number", float: "a number", bool: "True, False", str: "text"}
WORDS |= {nn.Module: "a torch.nn.Module", Tensor: "a tensor", os.PathLike: "a path", torch.device: "a torch.device"}
WORDS |= {Mapping: "a mapping", dict: "a dict", tuple: "a tuple", Callable: "a function"}  # type: ignore[dict-item]
WORDS |= {Sequence: "a list", Iterable: "an iterable"}
CURES = {
    "method": "; write method='feta'",
    "pattern": "; write pattern='2:4', '4x1' or 'neurons'",
    "settings": "; write settings={kind}(…)",
    "optimiser": "; the model is copied, so pass a function of the parameters, such as "
    "optimiser=lambda parameters: torch.optim.AdamW(parameters, 1e-4)",
}
MEANT = {"sparsity": "share", "share": "sparsity"}  # one function's word for what another's is nearly the same


def gated(made: Made) -> Made:
    """A function, or a dataclass in its place, that checks its arguments first.

    Raises ConfigError, ModelError or FileError for what an argument cannot be; TypeError, as Python does, for one
    that is missing or not known.
    """
    if isinstance(made, type):
        made.__init__ = _guarded(made.__init__, f"{made.__name__}.", made)  # type: ignore[misc]
        return made
    return cast(Made, AT_WORK(RANDOM(_guarded(made, "", made))))


class Shared(ContextDecorator):
    """A state that all threads share: the first that comes in notes it, the last to leave puts it back."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self.read, self.write, self.before = read, write, None
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> Any:
        with self._lock:
            if self._inside == 0:
                self.before = self.read()
            self._inside += 1
            return self.before

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self.write(self.before)


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    for number, there in enumerate(state[1]):
        torch.cuda.set_rng_state(there, number)


RANDOM = Shared(_random_state, _set_random_state)


class AtWork(ContextDecorator):
    """The threads that are inside; one of them may ask to be alone, and others then wait at the door."""

    def __init__(self) -> None:
        self._changed, self._inside = threading.Condition(), Counter[int]()
        self._sole: int | None = None

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._sole in (None, me))
            self._inside[me] += 1

    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this thread is the only one inside, and then stays so until the end."""
        me = threading.get_ident()
        with self._changed:
            free = self._sole is None and not self._inside.keys() - {me}
            self._sole = me if free else self._sole
        try:
            yield free
        finally:
            with self._changed:
                self._sole = None if free else self._sole
                self._changed.notify_all()


AT_WORK = AtWork()


def _guarded(function: Callable[..., Any], owner: str, hinted: Any) -> Callable[..., Any]:
    signature, hints = inspect.signature(function), functools.cache(lambda: typing.get_type_hints(hinted))

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = None
        if given is None:
            _refuse_unknown(function, signature, kwargs)
            return function(*args, **kwargs)  # Python's own message names the function
        for name, value in given.items():
            several = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            for key, one in value.items() if several else [(name, value)]:
                if name in hints() and one is not signature.parameters[name].default:
                    check_argument(owner + key, one, hints()[name])
        return function(*args, **kwargs)

    return guarded


def _refuse_unknown(function: Callable[..., Any], signature: inspect.Signature, given: Collection[str]) -> None:
    """Raise TypeError for a name that no argument has but one nearly has; others are left to Python."""
    known = list(signature.parameters)
    for name in given:
        near = [MEANT[name]] if MEANT.get(name) in known else get_close_matches(name, known, n=1)
        if name not in known and near:
            said = f"{function.__qualname__}() got an unexpected keyword argument '{name}'"
            raise TypeError(f"{said}; did you mean '{near[0]}'?")


def check_argument(where: str, value: Any, hint: Any) -> None:
    """Raise unless a value is what a type says, and what its name says."""
    name = where.rpartition(".")[2]
    if not _fits(value, hint):
        near = [
            word for part in _options(hint) if typing.get_origin(part) is Literal for word in typing.get_args(part)
        ]
        if near and isinstance(value, str) and ("." not in where or get_close_matches(value, near)):
            raise unknown_name(where, value, near)
        must, cure = _any_of(hint), _model_in(value) if nn.Module in _options(hint) else CURES.get(name, "")
        got = f"{shown(value)}{cure.format(kind=must.removeprefix('a '))}"
        raise ConfigError(f"{where} must be {must}{' in [0, 1)' * (name == 'share')}, got {got}")
    if isinstance(value, Integral) and not -MOST <= int(value) < MOST:
        raise ConfigError(f"{where} must be a whole number below 2**63, got {shown(value)}")
    if name == "seed" and isinstance(value, Integral) and value < 0:
        raise ConfigError(f"{where} must be a whole number >= 0, got {shown(value)}")
    if isinstance(value, nn.Module):
        check_model(value, where)
    if isinstance(value, Tensor) and (value.layout is not torch.strided or value.is_quantized or value.is_meta):
        kind = "meta" if value.is_meta else "quantised" if value.is_quantized else "sparse"
        raise ConfigError(f"{where} must be a dense tensor with values, got a {kind} one; to_dense or dequantize it")
    if name == "device" and value is not None:
        check_device(value, where)
    if value is not None and any(typing.get_origin(part) is os.PathLike for part in _options(hint)):
        check_path(value, where)


def _model_in(value: Any) -> str:
    """The cure for what is given in a model's place."""
    if isinstance(value, Mapping) and any(isinstance(one, Tensor) for one in value.values()):
        return ", a state dict; give the model that it is loaded into: model.load_state_dict(…)"
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"; call it: {value.__name__}(…)"
    return "; give its .model" if isinstance(getattr(value, "model", None), nn.Module) else ""


def check_device(value: Any, where: str = "device") -> None:
    """Raise ConfigError unless torch can work on a device here."""
    try:
        reason = "it holds no numbers" if torch.empty(1, device=value).is_meta else ""
    except Exception as error:  # torch has many classes for this
        reason = printable(" ".join(str(error).splitlines()[:1])[:200])
    if reason:
        raise ConfigError(f"{where} must be a device torch can use here, got {shown(str(value))} ({reason})")


def check_model(model: nn.Module, where: str = "model") -> None:
    """Raise ModelError for weights that do not exist, or not yet."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            cure = "run the model once on a batch"
        elif tensor.is_meta:
            cure = "make it on a device that holds numbers, with model.to_empty and load_state_dict"
        else:
            continue
        raise ModelError(f"{where} must have weights, got {quoted(name)} without values; {cure}")


def check_path(value: Any, where: str = "path") -> None:
    """Raise FileError for what no file can be called."""
    try:
        parts = os.fsencode(os.fspath(value)).split(os.fsencode(os.sep))
    except (TypeError, ValueError) as error:
        raise FileError(f"{where} must be a name that files can have, got {shown(value)}: {error}") from None
    if b"\0" in b"".join(parts) or max(map(len, parts)) > 255 or not any(parts):
        raise FileError(f"{where} must be of names of 1 to 255 bytes without a null byte, got {shown(str(value))}")


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type. Elements are looked at where that uses nothing up."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (Union, types.UnionType):
        return any(_fits(value, part) for part in inner)
    if kind is Literal:
        return any(type(value) is type(word) and value == word for word in inner)
    if kind is Any or kind is inspect.Parameter.empty:
        return True
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Sequence:  # a set of names or an array of numbers is as good
        listed = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping | Tensor)
        return listed and (not inner or all(_fits(one, inner[0]) for one in value))
    if kind is Mapping or kind is dict:
        pairs = value.items() if isinstance(value, kind) else None
        return pairs is not None and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in pairs if inner)
    if kind is tuple and inner:
        each = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is ... else inner
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if kind is Iterable:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes) and getattr(value, "ndim", 1) != 0
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False) and isinstance(value, type):
        return False
    return isinstance(value, kind)


def _any_of(hint: Any) -> str:
    """What a value may be, in words. That it may be None goes without saying."""
    parts = [part for part in _options(hint) if part is not type(None)]
    *most, last = dict.fromkeys(word for part in parts for word in _words(part).split(", "))
    return f"{', '.join(most)} or {last}" if most else last


def _words(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    if kind is Literal:
        return ", ".join(map(repr, typing.get_args(hint)))
    if kind in (Sequence, Mapping) and (inner := typing.get_args(hint)) and inner[-1] is not Any:
        return f"{WORDS[kind]} {'of' if kind is Sequence else 'to'} {_words(inner[-1])}"
    name = getattr(kind, "__name__", str(kind))
    ours = "feta." * (name in sys.modules["feta"].__all__)
    return WORDS.get(kind, f"a{'n' * (name[0] in 'AEIOU' and not ours)} {ours}{name}")
