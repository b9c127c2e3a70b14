"""Theorems 5.1 (one layer pruned) and 5.2 (all layers), as printed and repaired, in logarithms.

    paper   GE <= A · (γ − lost)^(−k/2) + B,   γ = o / prod ‖W_i‖,   o = sqrt(2) · the smallest gap
            5.1: lost = C1 · prod over i > i* of ‖W_i‖ / prod ‖W_i‖      5.2: lost = e D² sum ‖H_i‖ / ‖W_i‖
            A² = ln 2 · N_y · 2^(k+1) · C_M^k / m,   B² = 2 ln(1/δ) / m

    sound   γ₂ >= min over samples j of (o_j − lost_j) / L₂,   o_j = gap_j / sqrt(2),   L₂ of the pruned network
            5.1: lost_j = gain_i e_ij                                    5.2: lost_j = sum over i of gain_i e_ij
            GE <= sqrt((2 K ln 2 + 2 ln(1/δ_γ)) / m),   K = N_y · max(1, (2 C_M / γ₂)^k)

Proof of the sound margin. Let x be a point to which the pruned network g2 does not give sample j's class c: some
unit v = (δ_c − δ_k)/sqrt(2) has v·f2(x) <= 0. Then o_j <= v·f1(x_j) − v·f2(x)
<= ‖f1(x_j) − f2(x_j)‖ + ‖f2(x_j) − f2(x)‖ <= lost_j + L₂ ‖x_j − x‖. Errors are met at sample j alone, so C1 is
never needed at an unknown point; with x = x_j it follows that a positive margin means an unchanged class.
lost_j: change the layers one by one from the last to the first; each change meets the input the layer has in the
dense network and passes through pruned layers behind it (for 5.1: through unchanged ones). No condition on ‖H_i‖,
biases included, no D.

γ₂ is seen after the samples, so it is rounded down to a power of two 2^z and δ shared over all z:
δ_γ = δ / (2 (|z| + 1) (|z| + 2)), a series that adds up to less than δ. The bound stays conditional on k and C_M.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feta.bounds.margins import Form, log_left, log_scores
from feta.bounds.perturbation import LayerChange, Perturbation, log, log_lipschitz, log_matrix_product
from feta.errors import ConfigError

LN2 = math.log(2)
Theorem = Literal["5.1", "5.2", "dense", "pruned"]  # the last two: a network by itself


@dataclass(frozen=True)
class Manifold:
    """Inputs that balls of radius r cover with at most (regularity / r)^dimension of them."""

    dimension: float  # k
    regularity: float  # C_M
    source: str = "given"

    def __post_init__(self) -> None:
        for name in ("dimension", "regularity"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"Manifold.{name} must be > 0, got {value}")

    @classmethod
    def box(cls, size: int, width: float) -> Manifold:
        """All points of a box of `size` coordinates, each in a range of `width`: nothing is assumed of the data.

        Cubes of side 2r / sqrt(size) lie in balls of radius r; ceil(u)^size of them suffice, ceil(u) <= 2u.
        """
        return cls(float(size), width * math.sqrt(size), "box")


@dataclass(frozen=True)
class Bound:
    """A bound on the generalisation error of the pruned network; natural logarithms throughout."""

    theorem: Theorem
    form: Form
    manifold: str
    layer: str | None  # the one pruned layer of 5.1
    log_gamma: float  # ln of the margin before pruning
    log_lost: float  # ln of the share of it that is lost; >= 0: all of it
    log_margin: float | None  # ln of what is left of it; None: nothing
    log_bound: float | None  # ln of the bound; None: no margin, no bound
    kept: float  # share of samples whose own margin is not lost

    @property
    def vacuous(self) -> bool:
        """An error is at most 1, so a bound of 1 or more says nothing."""
        return self.log_bound is None or self.log_bound >= 0

    @property
    def exponent(self) -> float | None:
        """The bound is 10^exponent."""
        return None if self.log_bound is None else self.log_bound / math.log(10)


@dataclass(frozen=True)
class Setting:
    """What all bounds of one comparison share."""

    manifold: Manifold
    classes: int
    samples: int  # m
    delta: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must be in (0, 1), got {self.delta}")
        for name, least in (("classes", 2), ("samples", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"Setting.{name} must be >= {least}, got {getattr(self, name)}")

    @property
    def log_A(self) -> float:
        k, regularity = self.manifold.dimension, self.manifold.regularity
        inside = log(LN2) + log(self.classes) + (k + 1) * LN2 + k * log(regularity) - log(self.samples)
        return inside / 2

    @property
    def log_B(self) -> float:
        return (LN2 + log(-math.log(self.delta)) - log(self.samples)) / 2

    def paper(self, log_margin: float) -> float:
        """ln(A · margin^(−k/2) + B)."""
        return log_sum(self.log_A - self.manifold.dimension / 2 * log_margin, self.log_B)

    def sound(self, log_margin: float) -> float:
        """ln of the robustness bound at a margin that was seen after the samples."""
        widest = LN2 + log(self.manifold.regularity)  # beyond it one ball is enough
        z = math.ceil(min(log_margin, widest + LN2) / LN2) - 1
        log_balls = self.manifold.dimension * max(0.0, widest - z * LN2)
        log_confidence = -math.log(self.delta) + LN2 + log(abs(z) + 1) + log(abs(z) + 2)  # ln(1 / δ_γ)
        cells = LN2 + log(LN2) + log(self.classes) + log_balls  # ln(2 K ln 2)
        return (log_sum(cells, LN2 + log(log_confidence)) - log(self.samples)) / 2


def one_layer(seen: Perturbation, layer: LayerChange, setting: Setting, form: Form) -> Bound:
    """Theorem 5.1: only `layer` is pruned."""
    if form == "paper":
        log_lost = torch.tensor([log(layer.largest_error) + layer.log_matrix_gain], dtype=torch.float64)
        return _paper(seen, setting, "5.1", log_lost, layer.name)
    product = layer.log_reach + log(layer.pruned.norm.upper) + layer.log_gain
    return _sound(seen, setting, "5.1", layer.errors.log() + layer.log_gain, product, layer.name)


def all_layers(seen: Perturbation, setting: Setting, form: Form) -> Bound:
    """Theorem 5.2: all layers are pruned."""
    if form == "paper":
        ratios = [(layer.difference.matrix_norm, layer.dense.matrix_norm) for layer in seen.layers]
        terms = [log(change) - log(norm) for change, norm in ratios if change]
        # The printed loss is in units of the input; scores are in units of the output.
        product = log_matrix_product(seen.dense.stages)
        log_lost = 1 + 2 * log(seen.largest_input) + log_sum(*terms) + product
        if math.isnan(log_lost):  # a layer of zeros divides and multiplies: take the loss to be everything
            log_lost = math.inf
        lost = torch.tensor([log_lost], dtype=torch.float64)
        return _paper(seen, setting, "5.2", lost)
    return _sound(seen, setting, "5.2", seen.log_shifts, log_lipschitz(seen.pruned.stages))


def by_itself(seen: Perturbation, setting: Setting, form: Form, which: Theorem = "pruned") -> Bound:
    """The bound of one network by its own scores and norms: nothing is lost."""
    gap, chain = (seen.pruned_gaps, seen.pruned) if which == "pruned" else (seen.gaps, seen.dense)
    product = log_matrix_product if form == "paper" else log_lipschitz
    scores, nothing = log_scores(gap, form), torch.tensor([-math.inf], dtype=torch.float64)
    return _bound(setting, which, form, scores, nothing, product(chain.stages), scores, None)


def lemma_applies(layers: Sequence[LayerChange]) -> bool:
    """Whether ‖H_i‖ <= ‖W_i‖ / L in every layer: the lemma behind the printed 5.2 asks for it."""
    return all(x.difference.matrix_norm <= x.dense.matrix_norm / len(layers) for x in layers)


def _paper(
    seen: Perturbation, setting: Setting, theorem: Theorem, log_lost: Tensor, layer: str | None = None
) -> Bound:
    """One loss for all samples, set against the smallest score."""
    scores = log_scores(seen.gaps, "paper")
    product = log_matrix_product(seen.dense.stages)
    return _bound(setting, theorem, "paper", scores.min()[None], log_lost, product, scores, layer)


def _sound(
    seen: Perturbation,
    setting: Setting,
    theorem: Theorem,
    log_lost: Tensor,
    log_product: float,
    layer: str | None = None,
) -> Bound:
    """Every sample with its own score and its own loss; the least that is left counts."""
    scores = log_scores(seen.gaps, "sound")
    return _bound(setting, theorem, "sound", scores, log_lost, log_product, scores, layer)


def _bound(
    setting: Setting,
    theorem: Theorem,
    form: Form,
    log_score: Tensor,
    log_lost: Tensor,
    log_product: float,
    scores: Tensor,
    layer: str | None,
) -> Bound:
    left = float(log_left(log_score, log_lost).min())
    shares = torch.where(log_score == -math.inf, math.inf, log_lost - log_score)
    gone = left == -math.inf
    margin = math.nan if gone else _quotient(left, log_product)
    return Bound(
        theorem,
        form,
        setting.manifold.source,
        layer,
        _quotient(float(scores.min()), log_product),
        float(shares.max()),
        None if gone else margin,
        None if gone else getattr(setting, form)(margin),
        float((log_left(scores, log_lost) > -math.inf).double().mean()),
    )


def _quotient(log_score: float, log_product: float) -> float:
    """ln(score / product); a constant network, product 0, keeps every margin it has."""
    if log_score == -math.inf:
        return -math.inf
    return math.inf if log_product == -math.inf else log_score - log_product


def log_sum(*terms: float) -> float:
    """ln of a sum from the logarithms of its terms; minus infinity of none."""
    return float(torch.tensor([-math.inf, *terms], dtype=torch.float64).logsumexp(0))
