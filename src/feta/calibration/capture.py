"""Looking into a running network: which layers run in which order, what follows each, and their rows.

Hooks are put on when a context is entered and are always taken off when it is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from feta.calibration.inputs import Batch
from feta.calibration.model import call, evaluating
from feta.errors import ModelError
from feta.problem import Activation

_RELU_NAMES = frozenset({"relu", "relu_"})
# These hand on the values they are given, so that what follows them follows the layer.
_TRANSPARENT_NAMES = frozenset({"dropout", "dropout_", "flatten", "reshape", "view", "contiguous", "identity"})


class _Stop(Exception):
    """Ends a forward pass early, once the layer that was asked for has run."""


@dataclass
class LayerTrace:
    """One layer as seen in one forward pass."""

    name: str
    calls: int = 0
    consumers: list[str] = field(default_factory=list)  # functions that read the layer's output

    @property
    def activation(self) -> Activation:
        """ReLU when everything that reads the output is a ReLU; linear targets are right for all else."""
        only_relu = bool(self.consumers) and all(name in _RELU_NAMES for name in self.consumers)
        return Activation.RELU if only_relu else Activation.LINEAR


class _Consumers(TorchFunctionMode):
    """Notes every torch function that reads a watched tensor, functional calls included."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, tuple[Tensor, LayerTrace]] = {}  # by id; the tensor is held so that ids stay unique

    def watch(self, tensor: Tensor, trace: LayerTrace) -> None:
        self.watched[id(tensor)] = (tensor, trace)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "size", "dim", "numel", "stride") and not isinstance(result, Tensor):
            return result
        for value in _flat(args, (kwargs or {}).values()):
            if isinstance(value, Tensor) and id(value) in self.watched:
                trace = self.watched[id(value)][1]
                if name in _TRANSPARENT_NAMES and isinstance(result, Tensor):
                    self.watch(result, trace)
                    continue
                trace.consumers.append(name)
                if result is value:  # in place: what reads the tensor from now on reads the function's result
                    del self.watched[id(value)]
        return result

    def watch_end(self, result: Any) -> None:
        """What the model returns is read by its caller."""
        for value in _flat((result,)):
            if isinstance(value, Tensor) and id(value) in self.watched:
                self.watched[id(value)][1].consumers.append("output")


def trace_layers(
    model: nn.Module, names: Iterable[str], batch: Batch, device: torch.device, dtype: torch.dtype
) -> list[LayerTrace]:
    """Those of the named layers that run, in order of execution, with what follows each; one forward pass."""
    traces = {name: LayerTrace(name) for name in names}
    order: list[LayerTrace] = []
    mode = _Consumers()

    def hook(trace: LayerTrace) -> Any:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            if trace.calls == 0:
                order.append(trace)
            trace.calls += 1
            mode.watch(output, trace)

        return note

    handles = [model.get_submodule(name).register_forward_hook(hook(trace)) for name, trace in traces.items()]
    try:
        with evaluating(model), torch.no_grad(), mode:
            result = call(model, batch, device, dtype)
        mode.watch_end(result)
    finally:
        for handle in handles:
            handle.remove()
    return order


@dataclass
class LayerTap:
    """Runs a model up to one layer and hands back that layer's inputs and outputs."""

    model: nn.Module
    name: str
    calls: int  # in one forward pass; after the last the pass is cut short
    device: torch.device
    dtype: torch.dtype

    @torch.no_grad()
    def run(self, batch: Batch, *, outputs: bool = True) -> list[tuple[Tensor, Tensor | None]]:
        """(input, output) of the layer for each time it runs on the batch."""
        seen: list[tuple[Tensor, Tensor | None]] = []

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not outputs:
                seen.append((_first_tensor(args, kwargs), None))
                if len(seen) == self.calls:
                    raise _Stop
                seen[-1] = (seen[-1][0].clone(), None)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            seen.append((_first_tensor(args, kwargs), output))
            if len(seen) == self.calls:
                raise _Stop
            # The pass goes on to the layer's next call: in-place functions on the way must not reach these.
            seen[-1] = (seen[-1][0].clone(), output.clone())

        layer = self.model.get_submodule(self.name)
        if outputs:
            handle = layer.register_forward_hook(after, with_kwargs=True)
        else:
            handle = layer.register_forward_pre_hook(before, with_kwargs=True)
        try:
            call(self.model, batch, self.device, self.dtype)
        except _Stop:
            pass
        finally:
            handle.remove()
        return seen


def _first_tensor(args: Any, kwargs: Any) -> Tensor:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
    raise ModelError("a layer was called without a tensor")


def _flat(*groups: Any) -> Iterator[Any]:
    for group in groups:
        for value in group:
            if isinstance(value, tuple | list):
                yield from _flat(value)
            elif isinstance(value, Mapping):
                yield from _flat(value.values())
            else:
                yield value
