"""feta bounds: what the paper's theorems say of a pruned network, as printed and repaired."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from feta.cli.console import out, print_json, print_table, resolve_device
from feta.cli.options import DataDir, DataName, Device, Json, Seed, Whole
from feta.cli.places import check_files
from feta.errors import ConfigError, check_range

if TYPE_CHECKING:
    from feta.theory.bounds import BoundsReport
    from feta.theory.theorems import Bound

CURE = (
    "bounds takes files of `feta train`, and what was made of them; in Python "
    "feta.theory.bounds.generalisation_bounds(model, pruned, data)"
)
TITLES = {"5.2": "Theorem 5.2", "pruned": "pruned by itself", "dense": "dense by itself"}


def bounds(
    dense: Path,
    pruned: Path,
    /,
    *,
    data: DataName = None,
    samples: Whole = 5000,
    dimension: float | None = None,
    regularity: float | None = None,
    delta: float = 0.05,
    starts: Whole = 3,
    seed: Seed = 0,
    device: Device = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Bound the generalisation error of a pruned network by the theorems of the paper.

    Args:
        dense: A file made by `feta train`.
        pruned: The file that `feta prune` made of it.
        samples: How many training samples to measure on; the m of the bounds.
        dimension: Dimension k of the data; by default it is estimated.
        regularity: Regularity constant C_M of the data; goes with --dimension.
        delta: The bounds hold with probability 1 - delta.
        starts: Starts of the three-step procedure; 0 leaves it out.
        seed: Seed for the choice of samples.
    """
    check_files(dense, pruned, cure=CURE)
    import torch

    from feta.cli.subject import open_pair
    from feta.theory.bounds import generalisation_bounds
    from feta.theory.robustness import Manifold

    check_range("", ">= 100", **{"--samples": samples})
    check_range("", ">= 0", **{"--starts": starts})
    check_range("", "in (0, 1)", **{"--delta": delta})
    if (dimension is None) != (regularity is None):
        raise ConfigError("--dimension and --regularity must be given together, got one of them")
    manifold = None if dimension is None or regularity is None else Manifold(dimension, regularity)
    where = resolve_device(device)
    subject, other = open_pair(dense, pruned, data_dir, data, CURE)
    x, y = subject.rows("train", where)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:samples].to(x.device)
    models, x, y = (subject.model.to(where), other.model.to(where)), x[chosen], y[chosen]
    width = 1 / min(subject.deviations)  # pixels lie in a box, whatever the data
    report = generalisation_bounds(
        *models, x, labels=y, manifold=manifold, input_width=width, delta=delta, max_starts=starts, seed=seed
    )
    if json:
        print_json({"data": subject.data, **report.to_dict()})
    else:
        _show(report)
        out().print("\n".join(_notes(report, str(subject.data))))


def _show(report: "BoundsReport") -> None:
    layers, alone, whole = [], [], []
    for layer in report.layers:
        norms = f"{layer.norm.value:.3f}", f"{layer.change.value:.3f}", f"{layer.largest_error:.3g}"
        dimension = "–" if layer.dimension is None else f"{layer.dimension.two_nn:.1f}"
        layers.append((layer.name, *norms, power(layer.log_gain), dimension))
        paper, sound = report.bound("5.1", "paper", layer.name), report.bound("5.1", "sound", layer.name)
        alone.append((layer.name, lost(paper), short(paper), lost(sound), short(sound)))
    for theorem, title in TITLES.items():
        for bound in report.bounds:
            box = bound.manifold == "box"  # it assumes nothing of the data
            if bound.theorem == theorem and (theorem == "pruned" or not box):
                form, kept = bound.form + ", any image" * box, f"{100 * bound.kept:.2f} %"
                whole.append((title, form, power(bound.log_gamma), lost(bound), kept, verdict(bound)))
    # Two tables for the layers: one would be too wide for a terminal.
    print_table("The layers", ("layer", "‖W‖₂", "‖U − W‖₂", "C₁", "gain to output", "k of inputs"), layers)
    columns = ("layer", "lost (paper)", "bound (paper)", "lost (sound)", "bound (sound)")
    print_table("Each layer pruned alone: margin lost, and bound by Theorem 5.1", columns, alone)
    print_table("Whole network", ("bound", "form", "margin γ", "margin lost", "samples left", "error bound"), whole)


def _notes(report: "BoundsReport", data: str) -> Iterator[str]:
    found = "given"
    if (d := report.dimension) is not None and (r := report.regularity) is not None:
        found = (
            f"estimates from {d.rows} rows, not proven; maximum likelihood k = {d.maximum_likelihood:.1f}, "
            f"95 % of the variance in {d.pca[0.95]} components; C_M is at least {r.lower:.3g} for this k"
        )
    yield f"{data}, m = {report.samples} training samples, δ = {report.delta:g}, D = {report.largest_input:.4g}"
    yield f"k = {report.manifold.dimension:.2f}, C_M = {report.manifold.regularity:.4g} ({found})"
    yield f"A = {power(report.log_A)}, B = {math.exp(report.log_B):.4f}"
    yield (
        f"both networks agree on {report.agree} of {report.samples} samples; their outputs differ by at most "
        f"{report.largest_shift:.4g}, proven from the layers' errors: {power(report.log_largest_shift)}"
    )
    if not report.lemma_applies:
        yield "5.2 as printed does not apply: its lemma needs ‖H_i‖ ≤ ‖W_i‖ / L in every layer"
    if (walk := report.procedure) is not None:
        starts, reached, needed = len(walk.starts), walk.starts[-1].at, power(walk.log_needed)
        end = f"{starts} starts reach {reached:.2g} of the way, about {needed} are needed"
        if walk.bound is not None:
            end = f"arrives with {starts} starts: {verdict(walk.bound)}"
        yield f"three-step procedure: {end}"
    if all(bound.vacuous for bound in report.bounds):
        yield "every bound is vacuous: it is 1 or more, or there is no margin left to bound; no error is above 1"


def power(logarithm: float) -> str:
    """exp(logarithm), as a plain number where that is readable and as a power of ten elsewhere."""
    if not math.isfinite(logarithm):
        return "0" if logarithm < 0 else "∞"
    exponent = logarithm / math.log(10)
    return f"{math.exp(logarithm):.3g}" if abs(exponent) < 4 else f"10^{exponent:.1f}"


def lost(bound: "Bound") -> str:
    """The share of the margin that is lost; from 1 on, all of it."""
    return "none" if bound.log_lost == -math.inf else f"{power(bound.log_lost)} γ"


def short(bound: "Bound") -> str:
    return "gone" if bound.log_bound is None else power(bound.log_bound)


def verdict(bound: "Bound") -> str:
    if bound.log_bound is None:
        return "none: margin gone"
    return f"{power(bound.log_bound)}: vacuous" if bound.vacuous else f"{math.exp(bound.log_bound):.3f}"
