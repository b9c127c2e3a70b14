"""Small things that every training run needs: orders, learning rates, copies of a state, threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from feta.errors import ModelError

Loss = Callable[[Any, Any], Tensor]
NARROW = (torch.float16, torch.bfloat16)  # too coarse for small steps


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


def learning(model: nn.Module) -> list[nn.Parameter]:
    """The parameters to train; ModelError if there are none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ModelError("model must have parameters with requires_grad, got none")
    return parameters


def rate_on(device: torch.device, rate: float) -> float | Tensor:
    """A learning rate for an optimiser: on a GPU a tensor, which recorded steps read anew."""
    return torch.tensor(rate, device=device) if device.type == "cuda" else rate


def set_rate(optimiser: torch.optim.Optimizer, rates: list[float]) -> None:
    """Set the learning rate of each group; a rate that is a tensor is changed in place."""
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def order_of(count: int, seed: int, number: int) -> Tensor:
    """The order of the rows in a pass, drawn from (seed, number of the pass)."""
    return torch.randperm(count, generator=generator_of(seed, number))


def generator_of(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + number)


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Copy the state to a model of the same kind, in its own types, with the buffers that are never saved."""
    target.load_state_dict(source.state_dict())
    with torch.no_grad():
        for name, buffer in source.named_buffers():
            target.get_buffer(name).copy_(buffer)


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
