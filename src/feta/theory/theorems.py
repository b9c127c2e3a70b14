"""Theorems 5.1 (one layer pruned) and 5.2 (all layers), as printed and repaired, in logarithms.

What is left of the margin γ gives a bound on the generalisation error by `robustness`:

    paper   γ − lost,   γ = o / prod ‖W_i‖,   o = sqrt(2) · the smallest gap
            5.1: lost = C1 · prod over i > i* of ‖W_i‖ / prod ‖W_i‖      5.2: lost = e D² sum ‖H_i‖ / ‖W_i‖

    sound   γ₂ >= min over samples j of (o_j − lost_j) / L₂,   o_j = gap_j / sqrt(2),   L₂ of the pruned network
            5.1: lost_j = gain_i e_ij                                    5.2: lost_j = sum over i of gain_i e_ij

Proof of the sound margin. Let x be a point to which the pruned network g2 does not give sample j's class c: some
unit v = (δ_c − δ_k)/sqrt(2) has v·f2(x) <= 0. Then o_j <= v·f1(x_j) − v·f2(x)
<= ‖f1(x_j) − f2(x_j)‖ + ‖f2(x_j) − f2(x)‖ <= lost_j + L₂ ‖x_j − x‖. Errors are met at sample j alone, so C1 is
never needed at an unknown point; with x = x_j it follows that a positive margin means an unchanged class.
lost_j: change the layers one by one from the last to the first; each change meets the input the layer has in the
dense network and passes through pruned layers behind it (for 5.1: through unchanged ones). No condition on ‖H_i‖,
biases included, no D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feta.certificates.chain import Chain
from feta.theory.margins import Form, log_left, log_scores
from feta.theory.perturbation import LayerChange, Perturbation, log_lipschitz, log_matrix_product
from feta.theory.robustness import Setting, log, log_sum

Theorem = Literal["5.1", "5.2", "dense", "pruned"]  # the last two: a network by itself


@dataclass(frozen=True)
class Bound:
    """A bound on the generalisation error of the pruned network; natural logarithms throughout."""

    theorem: Theorem
    form: Form
    manifold: str
    layer: str | None  # the one pruned layer of 5.1
    log_gamma: float  # ln of the margin before the loss: smallest score over the norms divided by
    log_lost: float  # ln of the share of a score that is lost, at the worst sample; >= 0: all of it
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


def one_layer(seen: Perturbation, layer: LayerChange, setting: Setting, form: Form) -> Bound:
    """Theorem 5.1: only `layer` is pruned."""
    if form == "paper":
        log_lost = log(layer.largest_error) + layer.log_matrix_gain
        return from_loss(seen.dense, seen.gaps, log_lost, setting, "5.1", layer.name)
    product = layer.log_reach + log(layer.pruned.norm.upper) + layer.log_gain
    return _sound(seen, setting, "5.1", layer.errors.log() + layer.log_gain, product, layer.name)


def all_layers(seen: Perturbation, setting: Setting, form: Form) -> Bound:
    """Theorem 5.2: all layers are pruned."""
    if form == "paper":
        log_lost = printed_loss(seen.dense, seen.pruned, seen.largest_input)
        return from_loss(seen.dense, seen.gaps, log_lost, setting)
    return _sound(seen, setting, "5.2", seen.log_shifts, log_lipschitz(seen.pruned.stages))


def printed_loss(dense: Chain, pruned: Chain, largest_input: float) -> float:
    """ln of the loss of 5.2 as printed, e D² sum ‖H_i‖/‖W_i‖, times the product of norms: in units of the output."""
    pairs = [
        (w.minus(u).matrix_norm, w.matrix_norm) for w, u in zip(dense.affines, pruned.affines, strict=True)
    ]
    terms = [log(change) - log(norm) for change, norm in pairs if change]
    lost = 1 + 2 * log(largest_input) + log_sum(*terms) + log_matrix_product(dense.stages)
    return math.inf if math.isnan(lost) else lost  # a layer of zeros both divides and multiplies: all is lost


def from_loss(
    dense: Chain,
    gap: Tensor,
    log_lost: float,
    setting: Setting,
    theorem: Theorem = "5.2",
    layer: str | None = None,
) -> Bound:
    """The printed bound: one loss for all samples, set against the smallest score."""
    scores, lost = log_scores(gap, "paper"), torch.tensor([log_lost], dtype=torch.float64)
    product = log_matrix_product(dense.stages)
    return _bound(setting, theorem, "paper", scores.min()[None], lost, product, scores, layer)


def by_itself(seen: Perturbation, setting: Setting, form: Form, which: Theorem = "pruned") -> Bound:
    """The bound of one network by its own scores and norms: nothing is lost."""
    gap, chain = (seen.pruned_gaps, seen.pruned) if which == "pruned" else (seen.gaps, seen.dense)
    product = log_matrix_product if form == "paper" else log_lipschitz
    scores, nothing = log_scores(gap, form), torch.tensor([-math.inf], dtype=torch.float64)
    return _bound(setting, which, form, scores, nothing, product(chain.stages), scores, None)


def lemma_applies(layers: Sequence[LayerChange]) -> bool:
    """Whether ‖H_i‖ <= ‖W_i‖ / L in every layer: the lemma behind the printed 5.2 asks for it."""
    return all(x.difference.matrix_norm <= x.dense.matrix_norm / len(layers) for x in layers)


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
