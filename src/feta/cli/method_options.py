"""--METHOD.OPTION VALUE: the options of every method on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Group, Parameter

from feta.errors import ConfigError, unknown_name

_METHOD_OPTIONS = Group(
    "Method options", help="For example --feta.quality best; `feta methods --verbose` lists them all."
)
_Options = Annotated[
    dict[str, str] | None,
    Parameter(group=_METHOD_OPTIONS, help="Followed by .OPTION VALUE.", show_default=False),
]


@Parameter(name="*")
@dataclass(frozen=True)
class MethodOptions:
    """Options of the methods, as text: --METHOD.OPTION VALUE."""

    feta: _Options = None
    feta_svrg: _Options = None
    threshold: _Options = None
    net_trim: _Options = None
    lobs: _Options = None
    corenet: _Options = None
    alps: _Options = None
    exact_obs: _Options = None
    sparsegpt: _Options = None
    wanda: _Options = None


def method_options(method: str, options: MethodOptions | None) -> dict[str, str]:
    """The options of the method in use; options of another method are a mistake, not a no-op."""
    from feta.pruners import METHODS

    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    given: Mapping[str, dict[str, str] | None] = (
        {}
        if options is None
        else {f.name.replace("_", "-"): getattr(options, f.name) for f in fields(options)}
    )
    for name, values in given.items():
        if values and name != method:
            raise ConfigError(
                f"--{name}.{next(iter(values))} must go with --method {name}, got --method {method}"
            )
    return dict(given.get(method) or {})
