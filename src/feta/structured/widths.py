"""How many units each group keeps, so that the multiply-adds of the whole network come down to a target.

    multiply-adds = sum over layers of  rows * outputs * inputs of each output * kernel

A layer is narrowed from both sides, so that what a unit saves depends on the widths around it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from feta.calibration.trace import LayerTrace
from feta.errors import ConfigError
from feta.layers import owner_of
from feta.structured.groups import Group

LEAST = 1 / 16  # of a group's units that stay, whatever is asked for


@dataclass(frozen=True)
class Layer:
    """What a layer's multiply-adds depend on."""

    name: str
    rows: float  # for one sample
    outputs: int
    inputs: int  # of the whole layer
    groups: int
    kernel: int

    @classmethod
    def of(cls, model: nn.Module, trace: LayerTrace) -> "Layer":
        module, weight_name, _ = owner_of(model, trace.name)
        outputs, inputs, *kernel = getattr(module, weight_name).shape
        if trace.operator.transposed:
            outputs, inputs = inputs, outputs
        groups = trace.operator.groups
        return cls(trace.name, trace.rows, outputs, inputs * groups, groups, math.prod(kernel))

    def multiply_adds(self, lost_outputs: int, lost_inputs: int) -> float:
        outputs = self.outputs - lost_outputs
        depthwise = self.groups == self.inputs  # each output has one input, and goes with it
        inputs = 1 if depthwise else (self.inputs - lost_inputs) / self.groups
        return self.rows * outputs * inputs * self.kernel


@dataclass(frozen=True)
class Widths:
    """The groups of a network, and what it costs with some of their units gone."""

    layers: Sequence[Layer]
    groups: Sequence[Group]

    def multiply_adds(self, gone: Mapping[str, int]) -> float:
        """gone: root -> how many of its units."""
        total = 0.0
        for layer in self.layers:
            lost = [0, 0]
            for group in self.groups:
                for side, index in enumerate((group.outputs, group.inputs)):
                    if layer.name in index:
                        lost[side] += gone[group.root] * index[layer.name].shape[1]
            total += layer.multiply_adds(*lost)
        return total

    def most(self, group: Group) -> int:
        """How many units of a group may go."""
        return group.units - max(1, math.ceil(LEAST * group.units))

    def target(self, share: float) -> float:
        """Multiply-adds that are left without this share. Raises ConfigError where so many cannot go."""
        whole = self.multiply_adds({group.root: 0 for group in self.groups})
        least = self.multiply_adds({group.root: self.most(group) for group in self.groups})
        most = math.floor(1000 * (1 - least / whole)) / 1000  # what can be given
        if (1 - share) * whole < least and share > most:
            raise ConfigError(
                f"share must be at most {most:g}, what can be removed from this model, got {share:g}; give {most:g}"
            )
        return max((1 - share) * whole, least)

    def uniform(self, share: float) -> dict[str, int]:
        """The same share of every group, but for single units: the smallest that reaches the target."""
        target = self.target(share)

        def gone(ratio: float) -> dict[str, int]:
            return {group.root: min(round(ratio * group.units), self.most(group)) for group in self.groups}

        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (low, middle) if self.multiply_adds(gone(middle)) <= target else (middle, high)
        found = gone(high)
        for group in self.groups:  # narrow layers take large steps: what is too much is given back
            more = {**found, group.root: max(found[group.root] - 1, 0)}
            found = more if self.multiply_adds(more) <= target else found
        return found

    def by_error(self, share: float, errors: Mapping[str, Sequence[float]]) -> dict[str, int]:
        """One unit after the other from where an error of the network's outputs saves most; errors: of each group."""
        target, gone = self.target(share), {group.root: 0 for group in self.groups}
        now = self.multiply_adds(gone)
        while now > target:
            offers = []
            for group in self.groups:
                count = gone[group.root]
                if count < self.most(group):
                    before = errors[group.root][count - 1] if count else 0.0
                    saved = now - self.multiply_adds({**gone, group.root: count + 1})
                    offers.append(((errors[group.root][count] - before) / max(saved, 1e-9), group.root))
            root = min(offers)[1]
            gone[root] += 1
            now = self.multiply_adds(gone)
        return gone
