"""Which device to use."""

from __future__ import annotations

import torch

from feta.errors import ConfigError


def default_device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_device(name: str | None, where: str = "device") -> str:
    """The device asked for, if torch can use it here; by default the GPU if there is one."""
    if name is None:
        return default_device()
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{where} must be a device torch can use here, got '{name}' ({reason})") from None
    return name
