"""Two networks and samples in, every quantity and every bound out."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Inputs, size_of
from feta.certificates.chain import chain_of
from feta.errors import ConfigError, shown
from feta.gates import gated
from feta.solvers.norms import NormEstimate
from feta.theory.dimension import Dimension, Regularity, intrinsic_dimension, regularity
from feta.theory.perturbation import Perturbation, log_product, measure
from feta.theory.robustness import Form, Manifold, Setting
from feta.theory.theorems import Bound, Procedure, Theorem, every_bound, lemma_applies, three_steps

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


@dataclass(frozen=True, kw_only=True)
class BoundsReport(Setting):
    """Everything the theorems say of one pruned network in a setting; natural logarithms where a name says log."""

    layers: tuple[LayerBounds, ...]  # one for each pruned layer
    bounds: tuple[Bound, ...]  # of every theorem, form and manifold
    agree: int  # samples with the same class in both networks
    largest_input: float  # D
    smallest_gap: float  # between the two largest scores of a sample
    largest_shift: float  # ‖f_dense(x) − f_pruned(x)‖ over the samples, measured
    log_largest_shift: float  # and what the layers' errors prove of it
    lemma_applies: bool  # whether the layers changed by little enough for it
    dimension: Dimension | None  # of the samples, where it was estimated
    regularity: Regularity | None  # of the samples, where it was estimated
    procedure: Procedure | None  # of many starts, where it was asked for

    def bound(self, theorem: Theorem, form: Form, layer: str | None = None, manifold: str | None = None) -> Bound:
        """The bound of a theorem ("5.1" with its layer, "5.2") or of a network by itself ("dense", "pruned")."""
        wanted = (theorem, form, layer, manifold or self.manifold.source)
        known = {(bound.theorem, bound.form, bound.layer, bound.manifold): bound for bound in self.bounds}
        if wanted not in known:
            raise ConfigError(f"bound must be one of those computed, got {wanted}")
        return known[wanted]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite is None."""
        plain = asdict(self)
        plain["bounds"] = [{**asdict(b), "vacuous": b.vacuous, "exponent": b.exponent} for b in self.bounds]
        plain |= {"vacuous": all(b.vacuous for b in self.bounds), "log_A": self.log_A, "log_B": self.log_B}
        return json.loads(json.dumps(plain), parse_constant=lambda number: None)  # type: ignore[no-any-return]


@gated
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
    """Theorems 5.1 and 5.2 for a network and what pruning made of it.

    dense, pruned: the networks, chains of the layers that `chain_of` knows. They are not changed.
    data: samples of the training set: a tensor, or any iterable of batches, labels beside them ignored.
    labels: of the samples, in order. They add accuracies to the three-step procedure.
    manifold: the dimension k and regularity C_M of the data; by default both are estimated from the samples.
    input_width: the range of every input coordinate. It adds `sound` bounds on the box of all inputs, which
        assume nothing of the data.
    delta: the bounds hold with probability 1 - delta.
    batch_size: samples at a time, where `data` is a tensor.
    dimension_rows: samples for the estimates of dimension; 0 leaves these out and asks for a `manifold`.
    max_starts: starts of the three-step procedure; 0 leaves it out.
    seed: for the choice of rows.

    Returns a BoundsReport. Raises ConfigError for data or options that do not fit, and ModelError for networks
    that are not chains or are not alike.

    >>> report = generalisation_bounds(model, pruned, images)
    >>> report.bound("5.2", "sound").exponent  # the bound is 10^exponent
    >>> report.layers[0].change.upper  # ‖U − W‖, proven
    """
    inputs = Inputs(data, batch_size=batch_size)
    example = next(batch for batch in inputs if size_of(batch))
    if not isinstance(example, Tensor):
        raise ConfigError(f"data must yield tensors for bounds, got {type(example).__name__}")
    before, after = chain_of(dense, example), chain_of(pruned, example)
    seen = measure(before, after, inputs)
    if labels is not None and labels.shape[:1] != (seen.samples,):
        raise ConfigError(f"labels must be one per sample, {seen.samples}, got {shown(labels)}")
    rows = dimension = found = procedure = None
    if dimension_rows:
        rows = torch.cat(list(inputs.drawn(max(1, seen.samples // dimension_rows))))[:dimension_rows]  # type: ignore[arg-type]
        dimension = intrinsic_dimension(rows, n_rows=dimension_rows, seed=seed)
    if manifold is None:
        if rows is None or dimension is None:
            raise ConfigError("manifold must be given where dimension_rows is 0, got neither")
        found = regularity(rows, dimension.two_nn, n_rows=dimension_rows, seed=seed)
        manifold = found.manifold
    setting = Setting(manifold, before.out_shape[0], seen.samples, delta)
    bounds = [bound for form in FORMS for bound in every_bound(seen, setting, form)]
    if input_width is not None:
        box = Manifold.box(math.prod(before.in_shape), input_width)
        bounds += every_bound(seen, replace(setting, manifold=box), "sound")
    if max_starts:
        procedure = three_steps(before, after, inputs, setting, labels=labels, max_starts=max_starts)
    return BoundsReport(
        layers=_layers(seen, rows, seed),
        bounds=tuple(bounds),
        **vars(setting),
        agree=seen.agree,
        largest_input=seen.largest_input,
        smallest_gap=float(seen.gaps.min()),
        largest_shift=float(seen.shifts.max()),
        log_largest_shift=float(seen.log_shifts.max()),
        lemma_applies=lemma_applies(seen.layers),
        dimension=dimension,
        regularity=found,
        procedure=procedure,
    )


@torch.no_grad()
def _layers(seen: Perturbation, rows: Tensor | None, seed: int) -> tuple[LayerBounds, ...]:
    """The layers' numbers; a layer that gets too few different rows has no dimension."""
    dimensions: dict[int, Dimension] = {}
    for place, value in enumerate(() if rows is None else seen.dense.values(rows)):
        if place in (layer.place for layer in seen.layers):
            with suppress(ConfigError):
                dimensions[place] = intrinsic_dimension(value, n_rows=len(value), seed=seed)
    found = []
    for layer in seen.layers:
        dense, change = layer.dense, layer.difference
        norms, sizes = (dense.norm, layer.pruned.norm, change.norm), (dense.matrix_norm, change.matrix_norm)
        gains = log_product(layer.behind, "sound"), log_product(layer.behind, "paper")
        k = dimensions.get(layer.place)
        found.append(LayerBounds(dense.name, *norms, change.bias_norm, *sizes, layer.largest_error, *gains, k))
    return tuple(found)
