"""Packages that only some data or models need: imported when they are, with a cure where they are missing."""

import importlib
from typing import Any

from feta.errors import ConfigError


def needed(module: str, what: str, install: str) -> Any:
    """An optional module. Raises ConfigError that says how to install it where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} must be read by the package {install}, got: {error}; pip install {install}"
        ) from None


def one_line(error: BaseException) -> str:
    """An error of somebody else's code as one line that fits into one of ours."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + ' …'}"


def listed(names: list[str]) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{name}'" for name in names[:5]) + more


def shape_of(sizes: Any) -> str:
    return "×".join(map(str, sizes)) or "one number"
