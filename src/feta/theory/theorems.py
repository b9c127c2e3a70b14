"""Theorems 5.1 (one layer pruned) and 5.2 (all layers), as printed and repaired, in logarithms.

What is left of the margin γ gives a bound on the generalisation error by `robustness`:

    paper   γ − lost,   γ = o / prod ‖W_i‖,   o = sqrt(2) · the smallest gap
            5.1: lost = C1 · prod over i > i* of ‖W_i‖ / prod ‖W_i‖      5.2: lost = e D² sum ‖H_i‖ / ‖W_i‖

    sound   γ₂ >= min over samples j of (o_j − lost_j) / L₂,   o_j = gap_j / sqrt(2),   L₂ of the pruned network
            5.1: lost_j = gain_i e_ij                                    5.2: lost_j = sum over i of gain_i e_ij

The gap of a sample is its largest output minus the second largest. The printed score o is v·f(x) with
v = sqrt(2) (δ_g − δ_j), a vector of norm 2, so that "score <= Lipschitz constant · distance to the boundary" fails
by a factor of two; with v of norm 1 it is gap / sqrt(2).

Proof of the sound margin. Let x be a point to which the pruned network g2 does not give sample j's class c: some unit
v = (δ_c − δ_k)/sqrt(2) has v·f2(x) <= 0. Then o_j <= v·f1(x_j) − v·f2(x) <= ‖f1(x_j) − f2(x_j)‖ + ‖f2(x_j) − f2(x)‖
<= lost_j + L₂ ‖x_j − x‖. Errors are met at sample j alone, so C1 is never needed at an unknown point; with x = x_j it
follows that a positive margin means an unchanged class. lost_j: change the layers one by one from the last to the
first; each change meets the input the layer has in the dense network and passes through pruned layers behind it (for
5.1: through unchanged ones). No condition on ‖H_i‖, biases included, no D.

`three_steps` is the paper's procedure for a margin that pruning takes to zero: go from dense to pruned until γ − lost
is zero, at a share γ / lost of the way left, compute everything anew there, start again. Margins of real networks are
many orders of magnitude under that loss: as many restarts are needed (`log_needed`), and only the last one counts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from feta.certificates.chain import Chain
from feta.errors import check_range
from feta.theory.perturbation import LayerChange, Perturbation, blend, log_product, measure
from feta.theory.robustness import Form, Setting, log, log_sum

Theorem = Literal["5.1", "5.2", "dense", "pruned"]  # the last two: a network by itself
SCORE_FACTOR: dict[Form, float] = {"paper": math.sqrt(2), "sound": 1 / math.sqrt(2)}


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
    gain = log_product(layer.behind, form)
    if form == "paper":
        product = log_product(seen.dense.stages, form)
        bound = _bound(setting, "5.1", form, seen.gaps, log(layer.largest_error) + gain, product)
    else:
        product = log_product((*seen.dense.stages[: layer.place], layer.pruned), form) + gain
        bound = _bound(setting, "5.1", form, seen.gaps, layer.errors.log() + gain, product)
    return replace(bound, layer=layer.dense.name)


def all_layers(seen: Perturbation, setting: Setting, form: Form) -> Bound:
    """Theorem 5.2: all layers are pruned."""
    if form == "sound":
        return _bound(setting, "5.2", form, seen.gaps, seen.log_shifts, log_product(seen.pruned.stages, form))
    # The printed loss times the product of norms, to be in units of the output.
    product = log_product(seen.dense.stages, form)
    changes = ((layer.difference.matrix_norm, layer.dense.matrix_norm) for layer in seen.layers)
    terms = [log(change) - log(norm) for change, norm in changes if change]
    lost = 1 + 2 * log(seen.largest_input) + log_sum(*terms) + product
    # A layer of zeros both divides and multiplies: all is lost.
    return _bound(setting, "5.2", form, seen.gaps, math.inf if math.isnan(lost) else lost, product)


def by_itself(seen: Perturbation, setting: Setting, form: Form, which: Theorem = "pruned") -> Bound:
    """The bound of one network by its own scores and norms: nothing is lost."""
    gaps, chain = (seen.pruned_gaps, seen.pruned) if which == "pruned" else (seen.gaps, seen.dense)
    return _bound(setting, which, form, gaps, -math.inf, log_product(chain.stages, form))


def every_bound(seen: Perturbation, setting: Setting, form: Form) -> list[Bound]:
    """5.1 for each layer, 5.2, and both networks by themselves."""
    own = all_layers(seen, setting, form), by_itself(seen, setting, form), by_itself(seen, setting, form, "dense")
    return [*(one_layer(seen, layer, setting, form) for layer in seen.layers), *own]


def lemma_applies(layers: Sequence[LayerChange]) -> bool:
    """Whether ‖H_i‖ <= ‖W_i‖ / L in every layer: the lemma behind the printed 5.2 asks for it."""
    return all(x.difference.matrix_norm <= x.dense.matrix_norm / len(layers) for x in layers)


def _bound(setting: Setting, theorem: Theorem, form: Form, gaps: Tensor, lost: Tensor | float, norms: float) -> Bound:
    """What is left of the scores after a loss, one for all samples or one for each, over a product of norms."""
    scores = gaps.double().log() + math.log(SCORE_FACTOR[form])  # minus infinity at a tie
    share = torch.where(scores == -math.inf, math.inf, lost - scores)  # ln of the share that is lost
    left = torch.where(share < 0, scores + torch.log1p(-share.clamp(max=0).exp()), -math.inf)
    smallest, least = float(scores.min()), float(left.min())
    # No score, no margin, whatever the norms; a constant network, with norms 0, keeps every margin it has.
    gamma = -math.inf if smallest == -math.inf else smallest - norms
    margin = None if least == -math.inf else least - norms
    bound = None if margin is None else getattr(setting, form)(margin)
    kept = float((left > -math.inf).double().mean())
    return Bound(theorem, form, setting.manifold.source, None, gamma, float(share.max()), margin, bound, kept)


@dataclass(frozen=True)
class Start:
    """One start: where on the way, how far the margin carries from there, and the accuracy there."""

    at: float  # share of the way from dense to pruned
    log_gamma: float
    log_reach: float  # ln of the share of the rest of the way at which the margin is gone
    accuracy: float | None  # percent on the samples; None without labels


@dataclass(frozen=True)
class Procedure:
    """The starts made, and the bound of the pruned network if the last one carries all the way."""

    starts: tuple[Start, ...]
    bound: Bound | None
    log_needed: float  # ln of the number of starts, at the pace of the last one; 0: the first one arrived

    @property
    def arrived(self) -> bool:
        return self.bound is not None


def three_steps(
    dense: Chain,
    pruned: Chain,
    batches: Iterable[Any],
    setting: Setting,
    *,
    labels: Tensor | None = None,
    max_starts: int = 5,
) -> Procedure:
    """Walk from dense to pruned by Theorem 5.2 as printed; every start makes a pass over `batches`."""
    check_range("three_steps", ">= 1", max_starts=max_starts)
    starts, at, log_needed = list[Start](), 0.0, math.inf
    while len(starts) < max_starts:
        seen = measure(blend(dense, pruned, at), pruned, batches)
        bound = all_layers(seen, setting, "paper")
        accuracy = None if labels is None else 100 * int((seen.answers == labels.cpu()).sum()) / seen.samples
        starts.append(Start(at, bound.log_gamma, -bound.log_lost, accuracy))
        if bound.log_bound is not None:
            return Procedure(tuple(starts), bound, math.log(len(starts)))
        log_needed = bound.log_lost  # steps of this size in the rest of the way
        step = math.exp(-bound.log_lost) * (1 - at)
        if at + step == at:  # below the resolution of floats: the next start would be this one
            break
        at = min(at + step, 1.0)
    return Procedure(tuple(starts), None, log_needed)
