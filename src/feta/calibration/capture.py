"""Looking into a running network: which layers run in which order, what follows each, and their rows.

Hooks are put on when a context is entered and are always taken off when it is left.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

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

    def tap(self, model: nn.Module) -> "LayerTap":
        """What runs a model up to this layer."""
        return LayerTap(model, self.name, self.calls)


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
        if name not in ("__get__", "size", "dim", "numel", "stride") or isinstance(result, Tensor):
            self.read((args, kwargs), name, result)
        return result

    def read(self, values: Any, name: str, result: Any = None) -> None:
        """A function of this name has read the values; those that are watched note it."""
        for value in _tensors(values):
            if id(value) not in self.watched:
                continue
            trace = self.watched[id(value)][1]
            if name in _TRANSPARENT_NAMES and isinstance(result, Tensor):
                self.watch(result, trace)
                continue
            trace.consumers.append(name)
            if result is value:  # in place: what reads the tensor from now on reads the function's result
                del self.watched[id(value)]


def trace_layers(model: nn.Module, names: Iterable[str], batch: Batch) -> list[LayerTrace]:
    """Those of the named layers that run, in order of execution, with what follows each; one forward pass."""
    traces: dict[str, LayerTrace] = {}
    mode = _Consumers()

    def note(name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        trace = traces.setdefault(name, LayerTrace(name))
        trace.calls += 1
        mode.watch(output, trace)

    with ExitStack() as hooks, evaluating(model), torch.no_grad():
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(partial(note, name)))
        with mode:
            result = call(model, batch)
    mode.read(result, "output")  # by the model's caller
    return list(traces.values())


@dataclass
class LayerTap:
    """Runs a model up to one layer and hands back that layer's inputs and outputs."""

    model: nn.Module
    name: str
    calls: int = 1  # in one forward pass; after the last the pass is cut short

    def run(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """(input, output) of the layer for each time it runs on the batch."""
        return [(x, z) for x, z in self._seen(batch, nn.Module.register_forward_hook)]

    def inputs(self, batch: Batch) -> list[Tensor]:
        """The inputs alone: the layer's last call is not computed."""
        return [x for (x,) in self._seen(batch, nn.Module.register_forward_pre_hook)]

    @torch.no_grad()
    def _seen(self, batch: Batch, register: Callable[..., RemovableHandle]) -> list[tuple[Tensor, ...]]:
        seen: list[tuple[Tensor, ...]] = []

        def note(module: nn.Module, args: Any, kwargs: Any, *output: Tensor) -> None:
            x = next(_tensors((args, kwargs)), None)
            if x is None:
                raise ModelError(f"layer '{self.name}' must be called with a tensor, got none")
            seen.append((x, *output))
            if len(seen) == self.calls:
                raise _Stop
            # The pass goes on to the layer's next call: in-place functions on the way must not reach these.
            seen[-1] = tuple(tensor.clone() for tensor in seen[-1])

        with register(self.model.get_submodule(self.name), note, with_kwargs=True), suppress(_Stop):
            call(self.model, batch)
        return seen


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
