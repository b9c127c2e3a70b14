"""Small things that every training run needs: settings, optimisers, orders of rows, threads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from feta.errors import ConfigError, ModelError

Loss = Callable[[Any, Any], Tensor]
Settings = TypeVar("Settings")
NARROW = (torch.float16, torch.bfloat16)  # too coarse for small steps


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


def learning(model: nn.Module) -> list[nn.Parameter]:
    """The parameters to train; ModelError if there are none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ModelError("model must have parameters with requires_grad, got none")
    return parameters


def rate_on(device: torch.device, rate: float) -> float | Tensor:
    """A learning rate for an optimiser: on a GPU a tensor, which recorded steps read anew."""
    return torch.tensor(rate, device=device) if device.type == "cuda" else rate


def sgd(
    model: nn.Module, device: torch.device, rate: float, momentum: float, weight_decay: float = 0.0
) -> torch.optim.SGD:
    """SGD on the parameters that learn."""
    # A fused step wants a gradient for all parameters or none; code of users may leave some out at first.
    fused = device.type in ("cpu", "cuda") and recordable(model)
    first = rate_on(device, rate)
    return torch.optim.SGD(learning(model), first, momentum, weight_decay=weight_decay, fused=fused)


def recordable(model: nn.Module) -> bool:
    """Whether a CUDA graph of the model surely does what the model does.

    That holds for torch's own modules. Code of users may read values or draw numbers in Python, which a graph
    freezes.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return all(
        type(module).__module__.startswith("torch.nn.modules.")
        and not any(getattr(module, kind) for kind in hooks)
        and getattr(module, "momentum", 0) is not None  # such a batch-norm reads its counter
        for module in model.modules()
    )


def order_of(count: int, seed: int, number: int) -> Tensor:
    """The order of the rows in a pass, drawn from (seed, number of the pass)."""
    return torch.randperm(count, generator=generator_of(seed, number))


def generator_of(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + number)


@functools.cache
def wake_up() -> None:
    """Make torch load its compiler, a second's work at a process's first optimiser, before time is taken."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """One thread for small dense networks, where sharing out the work costs more than doing it."""
    threads = torch.get_num_threads()
    weights = sum(parameter.numel() for parameter in model.parameters())
    small = weights < 1_000_000 and not any(parameter.ndim > 2 for parameter in model.parameters())
    torch.set_num_threads(1 if small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
