"""The methods, one file each, and the one table that names them."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from configparser import RawConfigParser
from typing import Any

from feta.errors import ConfigError, quoted, unknown_name, warn
from feta.gates import gated
from feta.problem import Pruner
from feta.pruners.alps import Alps
from feta.pruners.corenet import Corenet
from feta.pruners.exact_obs import ExactObs
from feta.pruners.feta import Feta
from feta.pruners.feta_svrg import FetaSvrg
from feta.pruners.lobs import Lobs
from feta.pruners.net_trim import NetTrim
from feta.pruners.sparsegpt import SparseGpt
from feta.pruners.threshold import Threshold
from feta.pruners.wanda import Wanda

DEFAULT_METHOD = "feta"
METHODS: dict[str, type[Any]] = {
    method.name: gated(method)
    for method in (Feta, FetaSvrg, Threshold, NetTrim, Lobs, Corenet, Alps, ExactObs, SparseGpt, Wanda)
}

# What others call a method, and what is none.
OTHER_NAMES = dict.fromkeys(("magnitude", "l1", "hard"), "which is called 'threshold' here")
OTHER_NAMES |= dict.fromkeys(("fast", "default", "best"), "which is an effort: give it as effort")


@gated
def make(method: str | Pruner, options: Mapping[str, Any] | None = None) -> Pruner:
    """A pruner by name with its options, or the pruner itself when one is given.

    method: a name in METHODS, or a Pruner object.
    options: the method's fields by name; text is converted to the field's type. Only with a name.

    Raises a ConfigError for an unknown name or option, or a value that the method refuses.

    Example: make("alps", {"ridge": "0.02"}) is Alps(ridge=0.02).
    """
    if not isinstance(method, str):
        if options:
            kind = type(method).__name__
            raise ConfigError(f"options must be empty when method is a {kind} object, got {dict(options)}")
        return method
    options = dict(options or {})
    if method == "feta" and options.get("solver") in ("gram", "svrg"):  # the spelling of 0.1
        solver = options.pop("solver")
        method = "feta-svrg" if solver == "svrg" else "feta"
        cure = f"method 'feta' with option solver={solver} is deprecated; use method=\"{method}\" without it"
        warn(cure, FutureWarning)
    if method in OTHER_NAMES:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, got '{method}', {OTHER_NAMES[method]}")
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    kinds = {field.name: field.type for field in dataclasses.fields(METHODS[method])}
    typed = {}
    for given, value in options.items():
        name = given.replace("-", "_")
        if name not in kinds:
            raise unknown_name(f"option of {method}", given, kinds or {"(none)"})
        typed[name] = _convert(value, kinds[name], f"{method}.{name}") if isinstance(value, str) else value
    return METHODS[method](**typed)  # type: ignore[no-any-return]


def options_of(pruner: Pruner) -> dict[str, Any]:
    """The hyper-parameters of a pruner, for records and reports; an object among them as it is written."""
    if not dataclasses.is_dataclass(pruner):
        return {}
    values = {field.name: getattr(pruner, field.name) for field in dataclasses.fields(pruner)}
    return {name: repr(v) if dataclasses.is_dataclass(v) else v for name, v in values.items()}


def _convert(text: str, hint: Any, where: str) -> Any:
    """Text as the field's type: bool, int, float, str, a Literal, or one of these or None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if text.lower() in ("none", "auto") and type(None) in typing.get_args(hint):
            return None
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        if text not in typing.get_args(hint):
            raise unknown_name(f"value of {where}", text, typing.get_args(hint))
        return text
    if hint is bool:
        if text.lower() not in RawConfigParser.BOOLEAN_STATES:
            raise ConfigError(f"{where} must be true or false, got '{text}'")
        return RawConfigParser.BOOLEAN_STATES[text.lower()]
    try:
        return hint(text)
    except ValueError:
        raise ConfigError(f"{where} must be of type {hint.__name__}, got {quoted(text)}") from None
