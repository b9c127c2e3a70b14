"""The two networks of a run, the data, and where they live."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feta.calibration.capture import LayerTrace, trace_layers
from feta.calibration.importance import output_importance
from feta.calibration.inputs import Inputs
from feta.calibration.model import clock, device_of
from feta.errors import ModelError
from feta.layers import prunable_names


@dataclass(frozen=True)
class Run:
    """The original, the copy that is pruned, and the data both are run on."""

    original: nn.Module
    pruned: nn.Module
    inputs: Inputs | None
    device: torch.device

    @classmethod
    def start(cls, model: nn.Module, inputs: Inputs | None, device: str | torch.device | None) -> "Run":
        """A run on the model's own device, or on the one that is asked for."""
        home = device_of(model)
        where = torch.device(device) if device is not None else home
        original = model if where == home else _copy(model).to(where)
        return cls(original, _copy(original), inputs, where)

    def trace(self) -> list[LayerTrace]:
        """Every prunable layer in order of execution; without data, in the order of definition."""
        names = prunable_names(self.original)
        if self.inputs is None:
            return [LayerTrace(name) for name in names]
        return trace_layers(self.original, names, next(iter(self.inputs)))

    def importance(self, names: Sequence[str], seed: int) -> tuple[dict[str, Tensor], float]:
        """Weights for the outputs of the layers, and the seconds they took; {} without layers or data."""
        if not names or self.inputs is None:
            return {}, 0.0
        started = self.clock()
        found = output_importance(self.original, names, next(iter(self.inputs)), seed=seed)
        # The square root: full weights starve the outputs that matter little, none spoil those that matter.
        weights = {name: (s / s.mean()).clamp_min(1e-4).sqrt() for name, s in found.items()}
        return weights, self.clock() - started

    def clock(self) -> float:
        """Seconds, read after the device has finished its work."""
        return clock(self.device)


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise ModelError(
            f"model must be one that copy.deepcopy can copy, got: {error}; weights under torch.nn.utils.prune "
            "or an old weight_norm must be made plain first (prune.remove, remove_weight_norm)"
        ) from error
