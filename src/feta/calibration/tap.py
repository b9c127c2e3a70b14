"""Rows of some layers out of a running network: a forward pass that is cut short once they have been seen."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from feta.calibration.notes import TRANSPARENT
from feta.calibration.operators import attention, name_of, reading_of
from feta.calibration.trace import ADD, LayerTrace
from feta.layers import weight_of


class Stop(Exception):
    """Ends a forward pass early."""


@dataclass
class Caught:
    """One call of a layer: its input, its output, and what is added to the output behind it."""

    x: Tensor
    z: Tensor | None = None
    shortcut: Tensor | None = None


@dataclass(frozen=True)
class Tap:
    """Layers to look at in a model."""

    model: nn.Module
    layers: Sequence[LayerTrace]

    @torch.no_grad()
    def run(self, forward: Callable[[], Any], *, outputs: bool, shortcuts: bool) -> dict[str, list[Caught]]:
        """Every call of each layer while `forward` runs.

        outputs: whether the layers' own outputs are asked for; without them their last call is not computed.
        shortcuts: whether what is added behind them is.
        """
        mode = _Catch({id(weight_of(self.model, layer.name)): layer for layer in self.layers}, outputs, shortcuts)
        with suppress(Stop), mode:
            forward()
        return mode.caught


class _Catch(TorchFunctionMode):
    def __init__(self, layers: Mapping[int, LayerTrace], outputs: bool, shortcuts: bool) -> None:
        super().__init__()
        self.layers, self.outputs = layers, outputs
        self.added = {layer.name for layer in layers.values() if shortcuts and layer.follow.shortcut}
        self.calls = sum(layer.calls for layer in layers.values())
        self.caught: dict[str, list[Caught]] = defaultdict(list)
        self.copies: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.tagged: dict[int, tuple[Tensor, str]] = {}  # tensors that lead to a sum that is waited for

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return attention(self, args, kwargs)
        reading = reading_of(func, args, kwargs)
        layer = None if reading is None else self.layers.get(id(reading.weight))
        if reading is None or layer is None:
            return self._follow(func, args, kwargs) if self.tagged else func(*args, **kwargs)
        self.calls -= 1
        last = self.calls == 0 and not self.added
        seen = Caught(reading.input if last else self._copy(reading.input))
        self.caught[layer.name].append(seen)
        if last and not self.outputs:
            raise Stop
        result = func(*args, **kwargs)
        if self.outputs and not layer.operator.biased and reading.bias is not None:
            seen.z = result - reading.bias.reshape(-1, *[1] * layer.operator.spatial)
        elif self.outputs:
            seen.z = result if last else result.clone()  # functions in place must not reach it
        if last:
            raise Stop
        if layer.name in self.added:
            self.tagged[id(result)] = result, layer.name
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What is done to a layer's output, up to the sum that its shortcut comes in by."""
        name, operands = name_of(func), [value for value in args if isinstance(value, Tensor)]
        tags = [self.tagged[id(value)][1] for value in operands if id(value) in self.tagged]
        if tags and name in ADD:
            for value, other in zip(operands, reversed(operands), strict=True):
                if id(value) in self.tagged and (layer := self.tagged.pop(id(value))[1]) in self.added:
                    self.caught[layer][-1].shortcut = other.clone()
                    self.added.discard(layer)
            if self.calls == 0 and not self.added:
                raise Stop
        result = func(*args, **kwargs)
        if tags and name in TRANSPARENT | {"batch_norm"}:
            self.tagged[id(result)] = result, tags[0]
        return result

    def _copy(self, tensor: Tensor) -> Tensor:
        """A copy that functions in place further on do not reach; one for all layers that read the same values."""
        # A tensor of torch.inference_mode does not count how often it was written to.
        written = len(self.copies) if tensor.is_inference() else tensor._version
        if (id(tensor), written) not in self.copies:
            self.copies[id(tensor), written] = tensor, tensor.clone()
        return self.copies[id(tensor), written][1]
