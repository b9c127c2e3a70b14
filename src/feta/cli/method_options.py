"""--METHOD.OPTION VALUE: the options of every method on the command line."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

import feta
from feta.errors import ConfigError

_GROUP = Group("Method options", help="For example --feta.quality best; `feta methods --verbose` lists them all.")
_Options = Annotated[
    dict[str, str] | None, Parameter(group=_GROUP, help="Followed by .OPTION VALUE.", show_default=False)
]
# Each method is a file that carries its name, so that they can be listed without importing torch.
_FILES = sorted((Path(feta.__file__).parent / "pruners").glob("[a-z]*.py"))

_FIELDS = [(path.stem, _Options, None) for path in _FILES]
MethodOptions: Any = make_dataclass("MethodOptions", _FIELDS, namespace={"__module__": __name__}, frozen=True)
MethodOptions = Parameter(name="*")(MethodOptions)


def method_options(method: str, options: Any) -> dict[str, str]:
    """The options given for the method in use.

    Raises ConfigError for options of another method, which would be ignored.
    """
    chosen: dict[str, str] = {}
    for field in fields(options) if options is not None else ():
        name, values = field.name.replace("_", "-"), getattr(options, field.name) or {}
        if values and name != method:
            raise ConfigError(f"--{name}.{next(iter(values))} must go with --method {name}, got --method {method}")
        chosen |= values
    return chosen
