"""feta.certify: what can be said of a pruned network on inputs nobody has tried, and be relied on.

(a) agreement      with confidence 1 - delta, on at least this share of inputs both networks agree
(b) global, local  per sample, a radius within which both networks give one and the same class to every input

A sample on which the networks already disagree is counted, with radius 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.model import device_of, evaluating, float_dtype
from feta.certificates.agreement import Agreement, agreement
from feta.certificates.attack import Attack, Norm
from feta.certificates.chain import chain_of
from feta.certificates.precision import check_precision
from feta.certificates.radius import check_norm
from feta.certificates.rounding import Rounding
from feta.errors import ConfigError, DataError, ModelError
from feta.theory.geometry import Pair

RADII = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FORMS = ("global", "local")
CHECKED = 16  # samples on which a network is compared with the chain that is certified for it
Tell = Callable[[str, int, int], None]  # what is being done, samples done, samples in all


@dataclass(frozen=True)
class Form:
    """The radii one form certifies, sample by sample, and what the attack found in those balls."""

    radius: tuple[float, ...]  # 0: not certified, or refuted by the attack
    certified_but_changed: int | None = None  # None: not attacked
    changed_beyond: tuple[tuple[float, int], ...] = ()  # (multiple of the radius, samples changed there)
    exact: tuple[float, ...] | None = None  # global form: the radii if nothing was ever rounded

    def certified(self, radius: float) -> int:
        """Samples whose ball of this radius is certified."""
        return sum(found >= radius for found in self.radius)

    @property
    def any_certified(self) -> int:
        return sum(found > 0 for found in self.radius)

    @property
    def median(self) -> float:
        return float(torch.tensor(self.radius, dtype=torch.float64).median())


@dataclass(frozen=True)
class Certificate:
    """The result of feta.certify; `radii` and the forms' radii are in the networks' input space."""

    agreement: Agreement
    norm: Norm
    radii: tuple[float, ...]
    forms: dict[str, Form]
    attack: Attack | None = None
    classes: tuple[tuple[int, int], ...] = field(default=(), repr=False)  # of the samples: dense, pruned

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; shares are in [0, 1]."""
        held = self.agreement
        return {
            "samples": held.samples,
            "agree": held.agree,
            "agreement_lower_bound": held.lower_bound,
            "confidence": held.confidence,
            "accuracy_lost": held.accuracy_lost,
            "accuracy_lost_upper_bound": held.accuracy_lost_upper_bound,
            "only_dense_right": held.only_dense_right,
            "only_pruned_right": held.only_pruned_right,
            "norm": self.norm,
            "forms": {name: self._form(form) for name, form in self.forms.items()},
        }

    def _form(self, form: Form) -> dict[str, Any]:
        n = len(form.radius)
        rows = [
            {"radius": r, "samples": form.certified(r), "share": form.certified(r) / n} for r in self.radii
        ]
        return {
            "samples": n,
            "certified": rows,
            "certified_any": form.any_certified,
            "vacuous": all(row["samples"] == 0 for row in rows),
            "median_radius": form.median,
            "certified_but_changed": form.certified_but_changed,
            "changed_beyond": [{"times": times, "samples": count} for times, count in form.changed_beyond],
            "radius": list(form.radius),
            "certified_any_in_exact_arithmetic": form.exact and sum(r > 0 for r in form.exact),
        }


def certify(
    dense: nn.Module,
    pruned: nn.Module,
    data: Tensor | Iterable[Any],
    labels: Tensor | None = None,
    *,
    confidence: float = 0.99,
    radii: Sequence[float] = RADII,
    samples: int = 100,
    norm: Norm = "l2",
    forms: Sequence[str] = FORMS,
    refined: int = 256,
    attack: Attack | None = Attack(),  # noqa: B008 - frozen
    device: str | torch.device | None = None,
    callback: Tell | None = None,
) -> Certificate:
    """Certify a pruned network against the original on held-out data.

    `data` are inputs, or batches of inputs or of (inputs, labels); neither network may have seen them, in
    training or in calibration, nor have been chosen by them. All rows count for the agreement, the first
    `samples` get a radius. `refined` is how many hidden units per layer and sample the local form tightens;
    None of `attack` leaves the certificates untested.
    """
    _check(confidence, radii, samples, norm, forms, refined)
    tell = callback or (lambda text, done, total: None)
    place = device_of(dense) if device is None else torch.empty(0, device=device).device
    dense, pruned = _on(dense, place), _on(pruned, place)
    if float_dtype(dense) != float_dtype(pruned):
        raise ModelError(
            f"both networks must be of one type, got {float_dtype(dense)} and {float_dtype(pruned)}"
        )
    kept: list[Tensor] = []
    tell("agreement", 0, samples)
    # The networks are certified as they are: what a caller's autocast would make of them is another matter.
    with evaluating(dense, pruned), torch.autocast(place.type, enabled=False):
        counted = agreement(dense, pruned, _keeping(_batches(data, labels, dense), kept, samples), confidence)
        inputs = torch.cat(kept)
        for model in (dense, pruned):
            Rounding.of(model)  # names a parameter of another type
            check_precision(model, inputs[:2])
        first, second = (chain_of(model, inputs[:CHECKED]) for model in (dense, pruned))
        pair = Pair(dense, pruned, first, second, norm, refined)
        if pair.chains[0].out_shape != pair.chains[1].out_shape:
            shapes = " and ".join(str(chain.out_shape) for chain in pair.chains)
            raise ModelError(f"both networks must give the same number of scores, got {shapes}")
        found = {name: _form(pair, name, inputs, attack, tell) for name in FORMS if name in forms}
        answers = tuple(zip(*(classes.tolist() for classes in pair.answers(inputs)), strict=True))
    return Certificate(counted, norm, tuple(radii), found, attack, answers)


def _form(pair: Pair, name: str, inputs: Tensor, attack: Attack | None, tell: Tell) -> Form:
    radius = pair.radius(name, inputs, lambda done: tell(f"{name} radius", done, len(inputs)))
    exact = tuple(pair.exact_radius(inputs).tolist()) if name == "global" else None
    if attack is None:
        return Form(tuple(radius.tolist()), exact=exact)
    tell(f"attack on {name}", 0, len(inputs))
    # The ball itself is the test; the larger ones show that the same search does find changes.
    refuted = pair.attacked(attack, inputs, radius)
    beyond = tuple(
        (times, int(pair.attacked(attack, inputs, times * radius).sum())) for times in attack.beyond
    )
    return Form(tuple(radius.masked_fill(refuted, 0).tolist()), int(refuted.sum()), beyond, exact)


def _check(
    confidence: float, radii: Sequence[float], samples: int, norm: str, forms: Sequence[str], refined: int
) -> None:
    if not 0 < confidence < 1:
        raise ConfigError(f"certify.confidence must be in (0, 1), got {confidence}")
    if not radii or not all(0 < r < float("inf") for r in radii):
        raise ConfigError(f"certify.radii must be numbers > 0, got {tuple(radii)}")
    if samples < 1:
        raise ConfigError(f"certify.samples must be >= 1, got {samples}")
    if refined < 0:
        raise ConfigError(f"certify.refined must be >= 0, got {refined}")
    check_norm(norm)
    if not forms or not set(forms) <= set(FORMS):
        raise ConfigError(f"certify.forms must be some of {', '.join(FORMS)}, got {tuple(forms)}")


def _on(model: nn.Module, device: torch.device) -> nn.Module:
    """The model where it is wanted; the caller's own stays where it is."""
    return model if device_of(model) == device else copy.deepcopy(model).to(device)


def _batches(
    data: Tensor | Iterable[Any], labels: Tensor | None, model: nn.Module
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """(inputs, labels or None), the inputs where and as precise as the model is."""
    like = next(model.parameters(), torch.empty(0))
    if isinstance(data, Tensor):
        truth = _checked(labels, len(data))
        for start in range(0, len(data), 1000):
            rows = slice(start, start + 1000)
            yield data[rows].to(like), None if truth is None else truth[rows]
        return
    if labels is not None:
        raise ConfigError("labels must come with the batches, got them beside an iterable")
    for batch in data:
        inputs, truth, *_ = (*batch, None, None) if isinstance(batch, tuple | list) else (batch, None)
        if not isinstance(inputs, Tensor):
            raise ConfigError(
                f"data must be batches of inputs or of (inputs, labels), got {type(batch).__name__}"
            )
        yield inputs.to(like), _checked(truth, len(inputs))


def _checked(labels: Any, count: int) -> Tensor | None:
    """A class for each input."""
    if labels is None:
        return None
    truth = torch.as_tensor(labels)
    if truth.shape != (count,) or truth.is_floating_point():
        raise DataError(
            f"labels must be a class for each of {count} inputs, got {tuple(truth.shape)} {truth.dtype}"
        )
    return truth


def _keeping(
    batches: Iterable[tuple[Tensor, Tensor | None]], kept: list[Tensor], count: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The batches as they come; the first `count` inputs are put aside."""
    for inputs, labels in batches:
        missing = count - sum(map(len, kept))
        if missing > 0:
            kept.append(inputs[:missing])
        yield inputs, labels
