"""One update of a model's weights by one batch, as fast as the device allows.

Update        forward, loss, backward, step of the optimiser
GraphedStep   the same recorded once as a CUDA graph: small networks wait for launches, not for kernels
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.model import run_on
from feta.errors import ModelError

Loss = Callable[[Any, Any], Tensor]
NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Update:
    """A step of the optimiser on the mean loss of a batch."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    loss: Loss

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Change the weights; the batch's mean loss before that."""

        def closure() -> Tensor:  # a function, for optimisers that look more than once at a batch
            self.optimiser.zero_grad(set_to_none=True)
            value = self.loss(run_on(self.model, x), y)
            value.backward()
            return value

        loss: Any = self.optimiser.step(closure)  # type: ignore[arg-type]
        return torch.as_tensor(loss).detach()


class GraphedStep:
    """A step recorded as a CUDA graph for batches of the first one's shape; others are run as they are.

    What is a plain number while it is recorded stays that number: after a change call `forget`.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.step = step
        self.held: tuple[Tensor, Tensor] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss: Tensor | None = None

    def forget(self) -> None:
        """Record anew on the next batch."""
        self.graph = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.held is None:
            # A process's first step makes buffers and wakes the libraries up, which may not happen while a
            # graph is recorded.
            self.held = (torch.empty_like(x), torch.empty_like(y))
            return self.step(x, y)
        if x.shape != self.held[0].shape:
            return self.step(x, y)
        for buffer, value in zip(self.held, (x, y), strict=True):
            buffer.copy_(value)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.step(*self.held)
        self.graph.replay()
        if self.loss is None:  # pragma: no cover - set with the graph
            raise ModelError("a recorded step must have a loss")
        return self.loss


def recordable(model: nn.Module) -> bool:
    """Whether a graph of the model is sure to do what the model does.

    Only torch's own modules are: code of users may look at values or draw in Python, which a graph freezes.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return all(
        type(module).__module__.startswith("torch.nn.modules.")
        and not any(getattr(module, kind) for kind in hooks)
        and getattr(module, "momentum", 0) is not None  # such a batch-norm reads its counter
        for module in model.modules()
    )


def set_rate(optimiser: torch.optim.Optimizer, rates: list[float]) -> None:
    """The learning rate of each group; where it is a tensor, so that recorded steps follow it too."""
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


def snapshot(model: nn.Module) -> dict[str, Any]:
    """A copy of the model's state, of whatever kinds its entries are."""
    state = model.state_dict()
    return {
        name: value.clone() if isinstance(value, Tensor) else deepcopy(value) for name, value in state.items()
    }


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Another model of the same kind gets the state, in its own types; buffers that are never saved too."""
    target.load_state_dict(source.state_dict())
    with torch.no_grad():
        for name, buffer in source.named_buffers():
            target.get_buffer(name).copy_(buffer)


@functools.cache
def wake_up() -> None:
    """Torch loads its compiler with a process's first optimiser, for a second: that is no part of a budget."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """One thread for small dense networks, where handing out the work costs more than doing it."""
    threads = torch.get_num_threads()
    weights = sum(parameter.numel() for parameter in model.parameters())
    small = weights < 1_000_000 and not any(parameter.ndim > 2 for parameter in model.parameters())
    torch.set_num_threads(1 if small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
