"""The fastest form of a layer, by measuring: dense, unless another wins clearly.

A form is taken if over the batch sizes it is at least MARGIN times as fast as dense in the geometric mean, and at no
size slower than dense beyond noise. Layers that look alike are measured once.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from feta.inference.candidates import CANDIDATES, Builder
from feta.inference.timing import Timer
from feta.inference.two_four import is_two_four
from feta.sparsity import measured

MARGIN = 1.1
NOISE = 1.05
DENSE = "dense"

Times = dict[int, float]  # batch size -> milliseconds


@dataclass(frozen=True)
class Choice:
    """What was measured of one layer, and the form that won."""

    kind: str
    times: Mapping[str, Times]  # by kind, dense included


def best_of(times: Mapping[str, Times]) -> str:
    """The kind to take, by the rule above."""
    dense = times[DENSE]
    gains = {
        kind: statistics.geometric_mean(dense[batch] / found[batch] for batch in dense)
        for kind, found in times.items()
        if kind != DENSE and all(found[batch] <= NOISE * dense[batch] for batch in dense)
    }
    best = max(gains, key=lambda kind: gains[kind], default=DENSE)
    return best if gains.get(best, 0) >= MARGIN else DENSE


@dataclass
class Chooser:
    """Chooses among the candidates, and remembers what it has measured for layers that look alike."""

    timer: Timer
    cold: bool = False  # whether the model is too large for its weights to stay in the caches
    candidates: Mapping[str, Builder] = field(default_factory=lambda: CANDIDATES)
    known: dict[tuple[object, ...], Choice] = field(default_factory=dict)

    def choose(self, layer: nn.Module, inputs: Mapping[int, Tensor]) -> tuple[Choice, nn.Module]:
        """The choice for a layer, given an input of it for each batch size, and the module to put in its place."""
        weight: Tensor = layer.weight  # type: ignore[assignment]
        device, dtype = weight.device, weight.dtype
        look = self._look(layer, weight, inputs)
        if look in self.known:
            kind = self.known[look].kind
            module = None if kind == DENSE else self.candidates[kind](layer, device, dtype)
            return self.known[look], layer if module is None else module
        built = {kind: build(layer, device, dtype) for kind, build in self.candidates.items()}
        forms = {DENSE: layer, **{kind: module for kind, module in built.items() if module is not None}}
        times: dict[str, Times] = {kind: {} for kind in forms}
        with torch.inference_mode():
            for batch, x in inputs.items() if len(forms) > 1 else ():
                for kind, ms in self.timer({kind: _call(form, x) for kind, form in forms.items()}, self.cold).items():
                    times[kind][batch] = ms
        choice = self.known[look] = Choice(best_of(times) if len(forms) > 1 else DENSE, times)
        return choice, forms[choice.kind]

    def _look(self, layer: nn.Module, weight: Tensor, inputs: Mapping[int, Tensor]) -> tuple[object, ...]:
        used = weight.detach().flatten(1) != 0
        alive = round(float(used.any(0).float().mean()), 2), round(float(used.any(1).float().mean()), 2)
        shapes = tuple(tuple(x.shape) for x in inputs.values())
        zeros = round(measured(weight), 2), is_two_four(weight)
        return (repr(layer), str(weight.device), str(weight.dtype), zeros, alive, shapes)


def _call(form: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: form(x)
