"""What a pruning run reports: per layer and in total, as data and as a readable table."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from feta.problem import Activation, Status


@dataclass(frozen=True)
class LayerReport:
    """One pruned layer."""

    name: str
    shape: tuple[int, ...]  # of the layer's weight, as PyTorch stores it
    nonzeros: int
    sparsity: float
    relative_error: float | None  # ||rho(A U) - B|| / ||B|| over the calibration rows; None without data
    seconds: float
    status: str = Status.OK.value
    message: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    activation: str = Activation.RELU.value  # what the layer was fitted for


class RefinePoint(NamedTuple):
    """The loss on held-out rows after some passes."""

    seconds: float
    passes: float
    loss: float


@dataclass(frozen=True)
class RefineReport:
    """Refinement without labels: how near the outputs came to the original's, on rows it did not fit."""

    seconds: float
    passes: float  # over the rows that were fitted
    loss_before: float
    loss_after: float  # of the weights that were kept
    history: tuple[RefinePoint, ...]
    stopped: Literal["passes", "held-out", "seconds"]
    loss: str
    device: str
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history": [list(point) for point in self.history]}

    def __repr__(self) -> str:
        fell = f"{self.loss} of the outputs {self.loss_before:.3g} → {self.loss_after:.3g}"
        return f"refined: {fell}, {self.passes:.2g} passes, {self.seconds:.2f} s ({self.stopped})"


class RetrainPoint(NamedTuple):
    """A look at the validation data."""

    seconds: float
    epoch: float
    accuracy: float | None  # percent; None without validation data


@dataclass(frozen=True)
class RetrainReport:
    """Retraining: what it cost and how far it came."""

    seconds: float  # everything that was waited for
    evaluation_seconds: float  # the part of it spent on validation data
    epochs: float
    recovered: bool | None  # None without a goal
    goal: float | None
    tolerance: float
    start: float | None  # validation accuracy before the first step
    accuracy: float | None  # of the weights that were kept
    history: tuple[RetrainPoint, ...]
    stopped: Literal["recovered", "saturated", "epochs", "seconds"]
    device: str
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history": [list(point) for point in self.history]}

    def __repr__(self) -> str:
        score = "" if self.accuracy is None else f"{self.start:.2f} → {self.accuracy:.2f}, "
        goal = "" if self.goal is None else f"goal {self.goal:.2f}, "
        return f"retrained: {score}{goal}{self.epochs:.2f} epochs, {self.seconds:.2f} s ({self.stopped})"


@dataclass(frozen=True)
class AllocationReport:
    """How the budget was spread over the layers."""

    name: str  # "per-layer" where the caller gave a share for each
    seconds: float
    kept: dict[str, float]  # the share of each layer's weights that may stay


@dataclass(frozen=True)
class PruneReport:
    """A whole run; `to_json` gives every field, `repr` the table."""

    method: str
    target_sparsity: float | dict[str, float]
    sparsity: float  # over the pruned layers
    seconds: float  # pruning and compensation; measuring the relative errors is not counted
    device: str
    seed: int
    options: dict[str, Any]
    layers: tuple[LayerReport, ...]
    compensated: dict[str, str] = field(default_factory=dict)  # refitted layer -> status
    allocation: AllocationReport | None = None  # its seconds are its own
    refinement: RefineReport | None = None  # its seconds are its own

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def __repr__(self) -> str:
        rows = [HEADER, *(layer_row(asdict(layer)) for layer in self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        share = f"{100 * self.sparsity:.2f} % of the weights of {len(self.layers)} layers zero"
        title = f"{self.method}: {share}, {self.seconds:.2f} s"
        notes = [f"{layer.name}: {layer.message}" for layer in self.layers if layer.message]
        notes += [f"{name}: its refit ended as {end}" for name, end in self.compensated.items() if end != "ok"]
        if self.refinement is not None:
            notes.append(repr(self.refinement))
        return "\n".join([title, *lines, *notes])


HEADER = ("layer", "shape", "non-zeros", "sparsity", "rel. error", "seconds", "status")


def layer_row(layer: Mapping[str, Any]) -> tuple[str, ...]:
    """A layer's fields as text, under HEADER."""
    error = "–" if layer["relative_error"] is None else f"{layer['relative_error']:.4f}"
    shape, share = "×".join(map(str, layer["shape"])), f"{100 * layer['sparsity']:.2f} %"
    numbers = (str(layer["nonzeros"]), share, error, f"{layer['seconds']:.3f}")
    return (layer["name"], shape, *numbers, layer["status"])
