"""What is asked of an allocation, and the contract that each of them keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from feta.allocation.measure import Probe
from feta.errors import ConfigError
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Budget:
    """One share of zeros for all of these layers together."""

    weights: Mapping[str, Tensor]  # by layer name
    share: float
    probe: Probe | None = None  # to measure the layers with, for allocations that need data

    @property
    def sizes(self) -> dict[str, int]:
        return {name: weight.numel() for name, weight in self.weights.items()}

    @property
    def total(self) -> int:
        """How many weights may stay over all layers."""
        return Sparsity(self.share).count(sum(self.sizes.values()))

    @property
    def measured(self) -> Probe:
        """The probe, for allocations that cannot do without one."""
        if self.probe is None:
            raise ConfigError("data must be given for an allocation that measures layers, got None")
        return self.probe


@runtime_checkable
class Allocation(Protocol):
    """A way to turn a budget into the number of weights that each layer keeps.

    needs_data: whether it measures layers on the user's data; the budget then has a probe.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool]

    def allocate(self, budget: Budget) -> dict[str, int]: ...
