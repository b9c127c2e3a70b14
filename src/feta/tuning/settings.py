"""What the settings objects of refining, retraining and training have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from feta.errors import ConfigError

Settings = TypeVar("Settings")


def check_positive(settings: object, names: Iterable[str], prefix: str = "") -> None:
    """Raise ConfigError unless each named field is positive and finite, or None."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{prefix}{name} must be > 0 and finite, got {value}")


def overridden(kind: type[Settings], settings: Settings | None, **given: float | None) -> Settings:
    """The settings, or the defaults of their kind, with the arguments that were given in their place."""
    if not isinstance(settings, kind | None):
        raise ConfigError(f"settings must be a feta.{kind.__name__}, got {type(settings).__name__}")
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(settings or kind(), **changes)  # type: ignore[type-var]
