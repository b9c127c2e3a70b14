"""feta bounds: what the paper's theorems say of a pruned network, as printed and repaired."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from feta.cli.console import out, print_json, print_table, resolve_device
from feta.cli.options import DataDir, DataName, Device, Json, Whole
from feta.errors import ConfigError

if TYPE_CHECKING:
    from feta.theory.bounds import BoundsReport
    from feta.theory.theorems import Bound

LN10 = math.log(10)
NETWORK_ROWS = (
    ("5.2", "paper", None),
    ("5.2", "sound", None),
    ("pruned", "paper", None),
    ("pruned", "sound", None),
    ("pruned", "sound", "box"),
    ("dense", "paper", None),
    ("dense", "sound", None),
)
TITLES = {"5.2": "Theorem 5.2", "pruned": "pruned by itself", "dense": "dense by itself"}


def bounds(
    dense: Path,
    pruned: Path,
    /,
    *,
    data: DataName = None,
    samples: Annotated[Whole, Parameter(help="Training samples to measure on; they are the m of the bounds.")] = 5000,
    dimension: Annotated[
        float | None, Parameter(help="Dimension k of the data; estimated where it is not given.")
    ] = None,
    regularity: Annotated[
        float | None, Parameter(help="Regularity constant C_M of the data; goes with --dimension.")
    ] = None,
    delta: Annotated[float, Parameter(help="The bounds hold with probability 1 - delta.")] = 0.05,
    starts: Annotated[Whole, Parameter(help="Starts of the three-step procedure; 0 leaves it out.")] = 3,
    seed: Whole = 0,
    device: Device = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Bound the generalisation error of a pruned network by the theorems of the paper.

    Parameters
    ----------
    dense
        A file made by `feta train`.
    pruned
        What `feta prune` made of it.
    seed
        For the choice of samples.
    """
    import torch

    from feta.cli.subject import open_pair
    from feta.theory.bounds import generalisation_bounds
    from feta.theory.robustness import Manifold

    for name, value, least in (("samples", samples, 100), ("starts", starts, 0)):
        if value < least:
            raise ConfigError(f"--{name} must be >= {least}, got {value}")
    if not 0 < delta < 1:
        raise ConfigError(f"--delta must be in (0, 1), got {delta}")
    if (dimension is None) != (regularity is None):
        raise ConfigError("--dimension and --regularity must be given together, got one of them")
    manifold = None
    if dimension is not None and regularity is not None:
        manifold = Manifold(dimension, regularity)
    where = resolve_device(device)
    subject, other = open_pair(dense, pruned, data_dir, data)
    x, y = subject.rows("train", where)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:samples].to(x.device)
    report = generalisation_bounds(
        subject.model.to(where),
        other.model.to(where),
        x[chosen],
        labels=y[chosen],
        manifold=manifold,
        input_width=1 / min(subject.deviations),  # pixels lie in a box, whatever the data
        delta=delta,
        max_starts=starts,
        seed=seed,
    )
    if json:
        print_json({"data": subject.data, **report.to_dict()})
    else:
        _show(report, str(subject.data))


def _show(report: BoundsReport, label: str) -> None:
    # Two tables: one would be too wide for a terminal.
    print_table(
        "The layers",
        ("layer", "‖W‖₂", "‖U − W‖₂", "C₁", "gain to output", "k of inputs"),
        [
            (
                layer.name,
                f"{layer.norm.value:.3f}",
                f"{layer.change.value:.3f}",
                f"{layer.largest_error:.3g}",
                power(layer.log_gain),
                "–" if layer.dimension is None else f"{layer.dimension.two_nn:.1f}",
            )
            for layer in report.layers
        ],
    )
    alone = [
        (layer.name, report.bound("5.1", "paper", layer.name), report.bound("5.1", "sound", layer.name))
        for layer in report.layers
    ]
    print_table(
        "Each layer pruned alone: margin lost, and bound by Theorem 5.1",
        ("layer", "lost (paper)", "bound (paper)", "lost (sound)", "bound (sound)"),
        [(name, lost(paper), short(paper), lost(sound), short(sound)) for name, paper, sound in alone],
    )
    whole = [
        (
            TITLES[theorem],
            form + (", any image" if manifold else ""),
            power(bound.log_gamma),
            lost(bound),
            f"{100 * bound.kept:.2f} %",
            verdict(bound),
        )
        for theorem, form, manifold in NETWORK_ROWS
        for bound in (report.bound(theorem, form, manifold=manifold),)  # type: ignore[arg-type]
    ]
    print_table(
        "The whole network",
        ("bound", "form", "margin γ", "margin lost", "samples left", "error bound"),
        whole,
    )
    for line in _notes(report, label):
        out().print(line)


def _notes(report: BoundsReport, label: str) -> list[str]:
    manifold = report.manifold
    found = "given"
    if report.regularity is not None and report.dimension is not None:
        d, r = report.dimension, report.regularity
        found = (
            f"estimates from {d.rows} rows, not proven; maximum likelihood k = {d.maximum_likelihood:.1f}, "
            f"95 % of the variance in {d.pca[0.95]} components; C_M is at least {r.lower:.3g} for this k"
        )
    lines = [
        f"{label}, m = {report.samples} training samples, δ = {report.delta:g}, D = {report.largest_input:.4g}",
        f"k = {manifold.dimension:.2f}, C_M = {manifold.regularity:.4g} ({found})",
        f"A = {power(report.log_A)}, B = {math.exp(report.log_B):.4f}",
        f"both networks agree on {report.agree} of {report.samples} samples; largest change of the outputs "
        f"{report.largest_shift:.4g}, proven from the layers' errors: {power(report.log_largest_shift)}",
    ]
    if not report.lemma_applies:
        lines.append("5.2 as printed does not apply: its lemma needs ‖H_i‖ ≤ ‖W_i‖ / L in every layer")
    if (walk := report.procedure) is not None:
        if walk.bound is not None:
            end = f"arrives with {len(walk.starts)} starts: {verdict(walk.bound)}"
        else:
            end = (
                f"{len(walk.starts)} starts reach {walk.starts[-1].at:.2g} of the way, "
                f"about {power(walk.log_needed)} are needed"
            )
        lines.append(f"three-step procedure: {end}")
    if all(bound.vacuous for bound in report.bounds):
        lines.append("every bound is vacuous, 1 or more or gone with the margin: no error is above 1 anyway")
    return lines


def power(logarithm: float) -> str:
    """exp(logarithm), as a plain number where that is readable and as a power of ten elsewhere."""
    if not math.isfinite(logarithm):
        return "0" if logarithm < 0 else "∞"
    exponent = logarithm / LN10
    return f"{math.exp(logarithm):.3g}" if abs(exponent) < 4 else f"10^{exponent:.1f}"


def lost(bound: Bound) -> str:
    """The share of the margin that is lost; from 1 on, all of it."""
    return "none" if bound.log_lost == -math.inf else f"{power(bound.log_lost)} γ"


def short(bound: Bound) -> str:
    return "gone" if bound.log_bound is None else power(bound.log_bound)


def verdict(bound: Bound) -> str:
    if bound.log_bound is None:
        return "none: margin gone"
    if bound.vacuous:
        return f"{power(bound.log_bound)}: vacuous"
    return f"{math.exp(bound.log_bound):.3f}"
