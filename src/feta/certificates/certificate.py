"""feta.certify: what is proven of a pruned network on inputs nobody has tried.

    agreement       with confidence 1 - delta, both networks agree on at least this share of all inputs
    global, local   per sample, a radius within which both networks give one and the same class to every input

A sample on which the networks already disagree is counted, with radius 0.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from feta.calibration.copies import placed, shell
from feta.calibration.inputs import Inputs
from feta.calibration.model import device_of, evaluating, float_dtype
from feta.certificates.agreement import Agreement, LabelledBatch, agreement
from feta.certificates.attack import Attack, Norm
from feta.certificates.chain import chain_of
from feta.certificates.radius import Pair
from feta.certificates.rounding import Rounding, check_precision
from feta.errors import ConfigError, DataError, ModelError, check_range
from feta.gates import gated
from feta.pages import notebook
from feta.progress import Progress

RADII = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FormName = Literal["global", "local"]
FORMS: tuple[FormName, ...] = get_args(FormName)
CHECKED = 16  # samples on which a network is compared with the chain that is certified for it
Tell = Callable[[str, int, int], None]  # what is being done, samples done, samples in all


@dataclass(frozen=True)
class Form:
    """The radii one form certifies, sample by sample, and what the attack found in those balls."""

    radius: tuple[float, ...] = field(repr=False)  # 0: not certified, or refuted by the attack
    certified_but_changed: int | None = None  # None: not attacked
    changed_beyond: tuple[tuple[float, int], ...] = ()  # (multiple of the radius, samples changed there)
    exact: tuple[float, ...] | None = field(default=None, repr=False)  # global form: if nothing was ever rounded

    def certified(self, radius: float) -> int:
        """Samples whose ball of this radius is certified."""
        return sum(found >= radius for found in self.radius)

    @property
    def any_certified(self) -> int:
        """Samples with a certified ball, however small."""
        return sum(found > 0 for found in self.radius)

    def __str__(self) -> str:
        tried = "not attacked"
        if self.certified_but_changed is not None:
            tried = f"the attack changed {self.certified_but_changed} of them"
        known = f"{self.any_certified} of {len(self.radius)} samples certified"
        return f"{known}, median radius {median_low(self.radius):.3g}, {tried}"

    def to_dict(self, radii: Sequence[float]) -> dict[str, Any]:
        """Ready for JSON, with counts at the given radii."""
        n, counts = len(self.radius), [self.certified(r) for r in radii]
        return {
            "samples": n,
            "certified": [{"radius": r, "samples": k, "share": k / n} for r, k in zip(radii, counts, strict=True)],
            "certified_any": self.any_certified,
            "vacuous": not any(counts),
            "median_radius": median_low(self.radius),
            "certified_but_changed": self.certified_but_changed,
            "changed_beyond": [{"times": times, "samples": count} for times, count in self.changed_beyond],
            "radius": list(self.radius),
            "certified_any_in_exact_arithmetic": self.exact and sum(r > 0 for r in self.exact),
        }


@dataclass(frozen=True)
class Certificate:
    """The result of feta.certify; `radii` and the forms' radii are in the networks' input space."""

    agreement: Agreement  # counts over the samples, lower_bound, accuracy_lost_upper_bound, confidence
    norm: Norm  # of the balls
    radii: tuple[float, ...]  # at which `to_dict` counts
    forms: dict[str, Form]  # by "global" and "local": radius per sample, certified(radius), what the attack found
    attack: Attack | None = None  # None: not tested
    classes: tuple[tuple[int, int], ...] = field(default=(), repr=False)  # of the samples: dense, pruned

    def __repr__(self) -> str:
        forms = [f"{name} ({self.norm}): {form}" for name, form in self.forms.items()]
        return "\n".join([str(self.agreement), *forms])

    def _repr_html_(self) -> str:
        return notebook.lines(repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; shares are in [0, 1]."""
        said = ("samples", "agree", "confidence", "accuracy_lost", "accuracy_lost_upper_bound")
        return {
            **{name: getattr(self.agreement, name) for name in (*said, "only_dense_right", "only_pruned_right")},
            "agreement_lower_bound": self.agreement.lower_bound,
            "norm": self.norm,
            "forms": {name: form.to_dict(self.radii) for name, form in self.forms.items()},
        }


@gated
@torch.inference_mode(False)  # in that mode no attack has slopes
def certify(
    dense: nn.Module,
    pruned: nn.Module,
    data: Tensor | Iterable[Any],
    labels: Tensor | Sequence[int] | None = None,
    *,
    confidence: float = 0.99,
    radii: Sequence[float] = RADII,
    samples: int = 100,
    norm: Norm = "l2",
    forms: Sequence[FormName] = FORMS,
    refined: int = 256,
    attack: Attack | None = Attack(),  # noqa: B008 - frozen
    device: str | torch.device | None = None,
    callback: Tell | None = None,
    progress: bool = False,
) -> Certificate:
    """Certify a pruned network against the original on held-out data.

    dense, pruned: the networks, chains of the layers that `chain_of` knows. They are not changed.
    data: inputs, or batches of inputs or of (inputs, labels). Neither network may have seen them in training or in
        calibration, nor have been chosen by them. All of them count for the agreement.
    labels: a class for each input, where `data` is a tensor. Without labels nothing is said of accuracy.
    confidence: of the bounds on agreement and on accuracy, each by itself.
    radii: the radii at which `to_dict` counts the certified samples.
    samples: how many inputs, the first ones, get a radius.
    norm: how distance is measured: "l2", or "linf" for the largest change of a coordinate.
    forms: "global", "local" or both.
    refined: hidden units per layer and sample whose bounds the local form tightens. More take more time.
    attack: the search that tests each certified ball; None leaves the certificates untested.
    device: where to compute; by default where the dense network is.
    callback: told what is being done, how many samples are done, and how many there are.
    progress: whether a bar is shown, as by `feta.prune`.

    Returns a Certificate. Raises ConfigError for an option out of its range, DataError for data without samples,
    with wrong labels or with values that are not finite, and ModelError for networks that cannot be certified.

    >>> feta.certify(model, pruned, images, labels).agreement.lower_bound
    """
    check_range("certify", ">= 1", samples=samples)
    check_range("certify", ">= 0", refined=refined)
    for name, value, must, fits in (
        ("radii", tuple(radii), "numbers > 0", radii and all(0 < r < float("inf") for r in radii)),
        ("forms", tuple(forms), f"some of {', '.join(FORMS)}", forms),
    ):
        if not fits:
            raise ConfigError(f"certify.{name} must be {must}, got {value!r}")
    bar = Progress("certifying", progress)

    def tell(text: str, done: int, total: int) -> None:
        bar.update(done, total, description=text)
        if callback is not None:
            callback(text, done, total)

    place = device_of(dense) if device is None else torch.empty(0, device=device).device
    dense, pruned = (shell(placed(model, place)) for model in (dense, pruned))  # the callers' stay where they are
    dtype = float_dtype(dense)
    if dtype != float_dtype(pruned):
        raise ModelError(f"both networks must be of one type, got {dtype} and {float_dtype(pruned)}")
    kept: list[Tensor] = []
    batches = _held_out(data, labels, kept, samples)
    # The networks are certified as they are: what a caller's autocast would make of them is another matter.
    with bar, evaluating(dense, pruned), torch.autocast(place.type, enabled=False):
        tell("agreement", 0, samples)
        counted = agreement(dense, pruned, ((x.to(place, dtype), y) for x, y in batches), confidence)
        inputs = torch.cat(kept).to(place, dtype)
        for model in (dense, pruned):
            check_precision(model, inputs[:2])
        chains = chain_of(dense, inputs[:CHECKED]), chain_of(pruned, inputs[:CHECKED])
        if chains[0].out_shape != chains[1].out_shape:
            shapes = " and ".join(str(chain.out_shape) for chain in chains)
            raise ModelError(f"both networks must give the same number of scores, got {shapes}")
        pair = Pair((dense, pruned), chains, (Rounding.of(dense), Rounding.of(pruned)), inputs, norm, refined)
        found: dict[str, Form] = {name: _form(pair, name, attack, tell) for name in FORMS if name in forms}
    answers = tuple(zip(*(classes.tolist() for classes in pair.answers), strict=True))
    return Certificate(counted, norm, tuple(radii), found, attack, answers)


def _form(pair: Pair, name: str, attack: Attack | None, tell: Tell) -> Form:
    total, exact = len(pair.inputs), None
    if name == "local":
        radius = pair.local_radii(lambda done: tell("local radius", done, total))
    else:
        radius, exact = pair.global_radii(), tuple(pair.global_radii(exact=True).tolist())
    tell(f"{name} radius", total, total)
    if attack is None:
        return Form(tuple(radius.tolist()), exact=exact)
    tell(f"attack on {name}", 0, total)
    # The ball itself is the test; the larger ones show that the same search does find changes.
    refuted = pair.attacked(attack, radius)
    beyond = tuple((times, int(pair.attacked(attack, times * radius).sum())) for times in attack.beyond)
    return Form(tuple(radius.masked_fill(refuted, 0).tolist()), int(refuted.sum()), beyond, exact)


def _held_out(data: Tensor | Iterable[Any], labels: Any, kept: list[Tensor], count: int) -> Iterator[LabelledBatch]:
    """(inputs, labels or None), batch by batch; only the first `count` inputs are stored, in `kept`."""
    if labels is not None and not isinstance(data, Tensor):
        raise ConfigError("labels must come with the batches, got them beside an iterable")
    if isinstance(labels, Set):
        raise ConfigError("labels must be in the order of the data, got a set")
    for batch in [(data, labels)] if isinstance(data, Tensor) else data:
        inputs = next(iter(Inputs([batch])))
        if not isinstance(inputs, Tensor):
            raise ConfigError(f"data must be batches of inputs or of (inputs, labels), got {type(batch).__name__}")
        paired = isinstance(batch, tuple | list) and len(batch) > 1 and batch[1] is not None
        truth = torch.as_tensor(batch[1]) if paired else None
        if truth is not None and (truth.shape != inputs.shape[:1] or truth.is_floating_point()):
            got = f"{tuple(truth.shape)} {truth.dtype}"
            raise DataError(f"labels must be a class for each of {len(inputs)} inputs, got {got}")
        kept.append(inputs[: count - sum(map(len, kept))])
        for start in range(0, len(inputs), 1000):
            rows = slice(start, start + 1000)
            yield inputs[rows], None if truth is None else truth[rows]
