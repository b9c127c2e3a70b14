"""Two networks and samples in, every quantity and every bound out.

report = feta.generalisation_bounds(model, pruned, images)
report.bound("5.2", "sound").exponent          # the bound is 10^exponent
report.layers[0].change.upper                  # ‖U − W‖, proven
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Inputs
from feta.certificates.chain import Chain, chain_of
from feta.certificates.stages import Affine
from feta.errors import ConfigError
from feta.solvers.norms import NormEstimate
from feta.theory.covering import Regularity, regularity
from feta.theory.dimension import Dimension, intrinsic_dimension
from feta.theory.margins import Form
from feta.theory.perturbation import LayerChange, Perturbation, measure
from feta.theory.procedure import Procedure, three_steps
from feta.theory.robustness import Manifold, Setting
from feta.theory.theorems import Bound, Theorem, all_layers, by_itself, lemma_applies, one_layer

FORMS: tuple[Form, ...] = ("paper", "sound")


@dataclass(frozen=True)
class LayerBounds:
    """One layer's numbers; norms are of the operator, `matrix` ones of the reshaped kernel."""

    name: str
    norm: NormEstimate
    pruned_norm: NormEstimate
    change: NormEstimate
    bias_change: float
    matrix_norm: float
    matrix_change: float
    largest_error: float  # C1
    log_gain: float
    log_matrix_gain: float
    dimension: Dimension | None  # of the layer's inputs in the dense network


@dataclass(frozen=True)
class BoundsReport:
    """Everything the theorems say of one pruned network, natural logarithms where a name says log."""

    layers: tuple[LayerBounds, ...]
    bounds: tuple[Bound, ...]
    samples: int
    agree: int
    classes: int
    delta: float
    largest_input: float  # D
    smallest_gap: float
    largest_shift: float  # ‖f_dense(x) − f_pruned(x)‖ over the samples, measured
    log_largest_shift: float  # and what the layers' errors prove of it
    lemma_applies: bool
    manifold: Manifold
    log_A: float
    log_B: float
    dimension: Dimension | None
    regularity: Regularity | None
    procedure: Procedure | None

    def bound(
        self, theorem: Theorem, form: Form, layer: str | None = None, manifold: str | None = None
    ) -> Bound:
        """The bound of a theorem ("5.1" with its layer, "5.2") or of a network by itself ("dense", "pruned")."""
        wanted = (theorem, form, layer, manifold or self.manifold.source)
        for bound in self.bounds:
            if (bound.theorem, bound.form, bound.layer, bound.manifold) == wanted:
                return bound
        raise ConfigError(f"bound must be one of those computed, got {wanted}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite is None."""
        plain = asdict(self)
        plain["bounds"] = [{**asdict(b), "vacuous": b.vacuous, "exponent": b.exponent} for b in self.bounds]
        plain["vacuous"] = all(bound.vacuous for bound in self.bounds)
        result: dict[str, Any] = _plain(plain)
        return result


def generalisation_bounds(
    dense: nn.Module,
    pruned: nn.Module,
    data: Any,
    *,
    labels: Tensor | None = None,
    manifold: Manifold | None = None,
    input_width: float | None = None,
    delta: float = 0.05,
    batch_size: int = 500,
    dimension_rows: int = 1000,
    max_starts: int = 3,
    seed: int = 0,
) -> BoundsReport:
    """Theorems 5.1 and 5.2 for a network and what pruning made of it, on samples of the training set.

    `manifold` gives k and C_M; without it both are estimated from the samples. `input_width`, the range of every
    input coordinate, adds `sound` bounds on the box of all inputs, which assume nothing of the data. `labels` of
    the samples, in order, add accuracies to the three-step procedure; `max_starts=0` leaves it out, and
    `dimension_rows=0` the estimates of dimension (a `manifold` must be given then).
    """
    inputs = Inputs(data, batch_size=batch_size)
    example = _tensor(next(iter(inputs)))
    before, after = chain_of(dense, example), chain_of(pruned, example)
    seen = measure(before, after, map(_tensor, inputs))
    if labels is not None and len(labels) != seen.samples:
        raise ConfigError(f"labels must be one per sample, {seen.samples}, got {len(labels)}")
    rows = _rows(inputs, seen.samples, dimension_rows)
    dimension = None if rows is None else intrinsic_dimension(rows, n_rows=dimension_rows, seed=seed)
    found = None
    if manifold is None:
        if rows is None or dimension is None:
            raise ConfigError("manifold must be given where dimension_rows is 0, got neither")
        found = regularity(rows, dimension.two_nn, n_rows=dimension_rows, seed=seed)
        manifold = found.manifold
    setting = Setting(manifold, seen.classes, seen.samples, delta)
    bounds = _bounds(seen, setting, FORMS)
    if input_width is not None:
        box = Manifold.box(math.prod(before.in_shape), input_width)
        bounds += _bounds(seen, Setting(box, seen.classes, seen.samples, delta), ("sound",))
    procedure = None
    if max_starts:
        procedure = three_steps(
            before, after, lambda: map(_tensor, inputs), setting, labels=labels, max_starts=max_starts
        )
    dimensions = _layer_dimensions(before, rows, seed)
    return BoundsReport(
        layers=tuple(_layer(layer, dimensions.get(layer.name)) for layer in seen.layers),
        bounds=tuple(bounds),
        samples=seen.samples,
        agree=seen.agree,
        classes=seen.classes,
        delta=delta,
        largest_input=seen.largest_input,
        smallest_gap=float(seen.gaps.min()),
        largest_shift=float(seen.shifts.max()),
        log_largest_shift=float(seen.log_shifts.max()),
        lemma_applies=lemma_applies(seen.layers),
        manifold=manifold,
        log_A=setting.log_A,
        log_B=setting.log_B,
        dimension=dimension,
        regularity=found,
        procedure=procedure,
    )


def _bounds(seen: Perturbation, setting: Setting, forms: tuple[Form, ...]) -> list[Bound]:
    return [
        bound
        for form in forms
        for bound in (
            *(one_layer(seen, layer, setting, form) for layer in seen.layers),
            all_layers(seen, setting, form),
            by_itself(seen, setting, form, "pruned"),
            by_itself(seen, setting, form, "dense"),
        )
    ]


def _layer(layer: LayerChange, dimension: Dimension | None) -> LayerBounds:
    return LayerBounds(
        name=layer.name,
        norm=layer.dense.norm,
        pruned_norm=layer.pruned.norm,
        change=layer.difference.norm,
        bias_change=layer.difference.bias_norm,
        matrix_norm=layer.dense.matrix_norm,
        matrix_change=layer.difference.matrix_norm,
        largest_error=layer.largest_error,
        log_gain=layer.log_gain,
        log_matrix_gain=layer.log_matrix_gain,
        dimension=dimension,
    )


@torch.no_grad()
def _layer_dimensions(chain: Chain, rows: Tensor | None, seed: int) -> dict[str, Dimension]:
    """Estimates for the inputs of each layer; a layer that sees too few different rows has none."""
    found: dict[str, Dimension] = {}
    if rows is None:
        return found
    x = rows.to(chain.device, chain.dtype)
    for stage in chain.stages:
        if isinstance(stage, Affine):
            with suppress(ConfigError):
                found[stage.name] = intrinsic_dimension(x, n_rows=len(rows), seed=seed)
        x = stage.apply(x)
    return found


def _rows(inputs: Inputs, samples: int, count: int) -> Tensor | None:
    """About `count` samples spread over all of them."""
    if count == 0:
        return None
    thinned = inputs.thinned(max(1, samples // count))
    return torch.cat([_tensor(batch) for batch in thinned])[:count]


def _tensor(batch: Any) -> Tensor:
    if not isinstance(batch, Tensor):
        raise ConfigError(f"data must yield tensors for bounds, got {type(batch).__name__}")
    return batch


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
