"""How often two networks agree on inputs nobody has tried, with exact confidence, from a sample of inputs.

    k of n samples agree:   P(agree) >= the p at which k or more out of n has probability delta  (Clopper-Pearson)
    accuracy lost         = P(only the first is right) - P(only the second is right)
                         <= upper(n10, n; delta / 2) - lower(n01, n; delta / 2)                  (union bound)

Exact binomial limits hold for every n and every p. They ask one thing of the samples: that they were drawn
independently of both networks (no calibration, training or selection row) from the inputs in question.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from scipy.stats import beta
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta.calibration.recording import running
from feta.errors import ConfigError, DataError, ModelError, check_range
from feta.pages.words import at_least, at_most

LabelledBatch = tuple[Tensor, Tensor | None]  # inputs, and their classes where these are known


def lower_limit(successes: int, trials: int, delta: float) -> float:
    """At most the probability of success, with confidence 1 - delta; exact, one-sided."""
    if not (trials >= 1 and 0 <= successes <= trials):
        raise ConfigError(f"successes must be in [0, trials >= 1], got {successes} of {trials}")
    check_range("", "in (0, 1)", delta=delta)
    return 0.0 if successes == 0 else float(beta.ppf(delta, successes, trials - successes + 1))


def upper_limit(successes: int, trials: int, delta: float) -> float:
    """At least the probability of success, with confidence 1 - delta; exact, one-sided."""
    return 1.0 - lower_limit(trials - successes, trials, delta)


@dataclass(frozen=True)
class Agreement:
    """Counts over held-out samples, and what they say of all inputs; each bound holds with `confidence`."""

    samples: int
    agree: int
    confidence: float
    only_dense_right: int | None = None  # None without labels
    only_pruned_right: int | None = None
    both_right: int | None = None

    def __str__(self) -> str:
        sure, least = f"{100 * self.confidence:g} % sure", at_least(100 * self.lower_bound)
        said = f"same class on {self.agree} of {self.samples} held-out samples, on at least {least} % of all inputs"
        if self.accuracy_lost is None or self.accuracy_lost_upper_bound is None:
            return f"{said} ({sure})"
        lost, most = 100 * self.accuracy_lost, at_most(100 * self.accuracy_lost_upper_bound)
        return f"{said}; accuracy lost {lost:.2f} points, at most {most} ({sure})"

    @property
    def lower_bound(self) -> float:
        """The share of all inputs on which the networks agree is at least this."""
        return lower_limit(self.agree, self.samples, 1 - self.confidence)

    @property
    def accuracy_lost(self) -> float | None:
        """On the samples, as a share; negative where the pruned network is the better one."""
        if self.only_dense_right is None or self.only_pruned_right is None:
            return None
        return (self.only_dense_right - self.only_pruned_right) / self.samples

    @property
    def accuracy_lost_upper_bound(self) -> float | None:
        """On all inputs the accuracy lost is at most this: half of delta on each of the two counts."""
        if self.only_dense_right is None or self.only_pruned_right is None:
            return None
        half = (1 - self.confidence) / 2
        worse = upper_limit(self.only_dense_right, self.samples, half)
        return worse - lower_limit(self.only_pruned_right, self.samples, half)


@torch.no_grad()
def agreement(
    dense: nn.Module, pruned: nn.Module, batches: Iterable[LabelledBatch], confidence: float = 0.99
) -> Agreement:
    """Run both networks over held-out batches of (inputs, labels or None), and count."""
    check_range("certify", "in (0, 1)", confidence=confidence)
    samples = agree = 0
    # Samples on which neither, only the pruned, only the dense or both are right; None without labels.
    right: Tensor | None = torch.zeros(4, dtype=torch.int64)
    with evaluating(dense, pruned):
        for inputs, labels in batches:
            first, second = (answers_of(model, inputs, samples) for model in (dense, pruned))
            samples += len(inputs)
            agree += int((first == second).sum())
            if labels is None:
                right = None
            elif right is not None:
                truth = labels.to(first.device)
                right += torch.bincount(2 * (first == truth) + (second == truth), minlength=4).cpu()
    if samples == 0:
        raise DataError("certify must get at least one held-out sample, got none")
    _, only_pruned, only_dense, both = [None] * 4 if right is None else right.tolist()
    return Agreement(samples, agree, confidence, only_dense, only_pruned, both)


@torch.no_grad()
def answers_of(model: nn.Module, inputs: Tensor, before: int = 0) -> Tensor:
    """The class of each input; raises where the scores are not finite, for those have no class.

    before: how many samples were before these.
    """
    with running(inputs):
        scores = model(inputs.clone())  # a model may change its input in place
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] < 2:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ModelError(f"certify must get networks with two or more scores for each sample, got {got}")
    bad = ~torch.isfinite(scores).all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        kind, cure = "inputs", "; leave such samples out, or torch.nan_to_num(data)"
        if bool(torch.isfinite(inputs[first]).all()):
            kind, cure = "scores", ""
        raise DataError(f"certify must get finite {kind}, got inf or NaN in held-out sample {before + first}{cure}")
    return scores.argmax(1)
