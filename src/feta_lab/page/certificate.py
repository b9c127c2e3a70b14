"""The page of a certificate: a function of its JSON alone."""

from collections.abc import Mapping
from typing import Any

from feta.cli.certify import share, verdict
from feta.pages.words import at_least, at_most
from feta_lab.page.blocks import Block, Facts, Section, Table, Text
from feta_lab.page.document import render
from feta_lab.page.figure import Figure, LineChart, Point

Found = Mapping[str, Any]
NORMS = {"l2": "Euclidean (L2)", "linf": "largest change of a pixel (L∞)"}
CURVE = 60  # points of a curve


def certificate_page(found: Found) -> str:
    """The HTML page of a certificate; `found` is the object of `feta.cli.certify.certify_subjects`."""
    pruning = found["pruning"] or {}
    how = "compared"  # a network of other origin does not say what was done to it
    if {"method", "sparsity"} <= pruning.keys():
        how = f"pruned by {pruning['method']} to {100 * pruning['sparsity']:.4g} % zeros"
    caption = "At 1, inside the certified ball, the attack must change no sample."
    figure = Figure("certificate", _charts(found), caption, order=("local", "global"))
    blocks: list[Block] = [
        Facts(tuple(_headlines(found))),
        Section("Inputs nobody has tried", (Text(*_agreement(found)),)),
        Section("Around each sample", (Text(*_radii(found)), figure, _radius_table(found))),
        Section("What is covered, and what is not", (Text(*_coverage(found)),)),
    ]
    subtitle = f"{found['network']} on {found['data']}, {how}, against the original"
    return render("feta certificate", subtitle, blocks, found["environment"])


def _headlines(found: Found) -> list[tuple[str, str]]:
    sure = f"with {100 * found['confidence']:g} % confidence"
    agreed = f"{at_least(100 * found['agreement_lower_bound'])} %"
    items = [(f"of all inputs, at least, get the same class from both, {sure}", agreed)]
    if (lost := found["accuracy_lost_upper_bound"]) is not None:
        items.append((f"points of accuracy lost at most, {sure}", at_most(100 * lost)))
    best = found["forms"].get("local") or next(iter(found["forms"].values()))
    items.append(("median certified radius, in grey levels of 255", f"{best['median_grey_levels']:.3g}"))
    attacked = [form["certified_but_changed"] for form in found["forms"].values()]
    if None not in attacked:
        items.append(("certified balls in which the attack changed a class", str(sum(attacked))))
    return items


def _agreement(found: Found) -> list[str]:
    n = found["samples"]
    said = [
        f"Both networks give the same class on {100 * found['agree'] / n:.2f} % of {n:,} held-out samples. These "
        "are the test half of the data set: feta used no row of it to train, to calibrate, or to choose an epoch. "
        "Whoever chose among pruned networks by their accuracy on it must certify on other data. The limits are "
        "exact binomial ones (Clopper–Pearson), one-sided; each holds with the confidence given, by itself. They "
        "speak of inputs that come as the samples came."
    ]
    if found["accuracy_lost"] is not None:
        said.append(
            f"The accuracy lost on the samples is {100 * found['accuracy_lost']:.2f} points: only the original was "
            f"right on {found['only_dense_right']:,} samples, only the pruned network on "
            f"{found['only_pruned_right']:,}. The loss is the difference of these two shares; it is bounded by the "
            "upper limit of the first minus the lower limit of the second, each at half the risk."
        )
    return said


def _radii(found: Found) -> list[str]:
    per_unit = found["grey_levels_per_unit"]
    return [
        "Within its radius, a sample's class is the same for every input, from both networks: proven, not sampled. "
        f"Distances are {NORMS[found['norm']]}, in the networks' normalised inputs; 1 there is {per_unit:.1f} grey "
        "levels of 255. A sample on which the networks disagree has radius 0 and is counted.",
        "global: margins divided by Lipschitz constants, which hold everywhere. local: bounds propagated layer by "
        "layer that hold in the ball alone (linear relaxation).",
        *(f"{name}: {verdict(form)}." for name, form in found["forms"].items()),
    ]


def _charts(found: Found) -> tuple[LineChart, ...]:
    forms = found["forms"]
    x_label = f"radius ({'L2' if found['norm'] == 'l2' else 'L∞'}, normalised inputs)"
    title = f"Samples certified, of {next(iter(forms.values()))['samples']}"
    curves = {name: _curve(form) for name, form in forms.items()}
    charts = [LineChart(title, x_label, "share of samples (%)", curves, log_x=True)]
    attacked = {n: _beyond(form) for n, form in forms.items() if form["changed_beyond"] and form["certified_any"]}
    if attacked:
        title, y_label = "Samples the attack changes", "share of certified samples (%)"
        charts.append(LineChart(title, "times the certified radius", y_label, attacked, log_x=True))
    return tuple(charts)


def _curve(form: Found) -> list[Point]:
    """The share of samples with at least a radius, over the range of radii found."""
    radii = sorted(radius for radius in form["radius"] if radius > 0)
    if not radii:
        return []
    low, high = radii[0] / 1.5, radii[-1] * 1.05
    grid = [low * (high / low) ** (step / (CURVE - 1)) for step in range(CURVE)]
    return [Point(at, 100 * sum(radius >= at for radius in radii) / form["samples"]) for at in grid]


def _beyond(form: Found) -> list[Point]:
    tried = [(1.0, form["certified_but_changed"])]
    tried += [(row["times"], row["samples"]) for row in form["changed_beyond"]]
    return [Point(times, 100 * count / form["certified_any"]) for times, count in tried]


def _radius_table(found: Found) -> Table:
    forms = found["forms"]
    rows = [
        (f"{cells[0]['radius']:g}", f"{cells[0]['grey_levels']:.3g}", *map(share, cells))
        for cells in zip(*(form["certified"] for form in forms.values()), strict=True)
    ]
    changed = (form["certified_but_changed"] for form in forms.values())
    tried = ("not attacked" if count is None else str(count) for count in changed)
    title = "Share of samples certified, and certified samples whose class the attack changed"
    return Table(title, ("radius", "in grey levels", *forms), (*rows, ("changed by the attack", "", *tried)))


def _coverage(found: Found) -> list[str]:
    lines = [
        "Rounding is covered: the bounds hold for the networks as run in float32 by sums of products in any order, "
        "and for the float64 arithmetic of the certificate itself. TF32 and Winograd or FFT convolutions are not.",
        "A radius says that the class stays the same, not that it is right. Nothing is said of inputs outside the "
        "balls, but for the share above.",
    ]
    everywhere = found["forms"].get("global", {})
    exact, run = everywhere.get("certified_any_in_exact_arithmetic"), everywhere.get("certified_any")
    if exact is not None and exact > run:
        lines.append(
            f"In the global form {run} of the samples have a radius. In exact arithmetic it would be {exact}: the "
            "difference is what the worst case of rounding takes."
        )
    attack = found["attack"]
    if attack is not None:
        lines.append(
            f"The attack: {attack['points']} random points per ball, and {attack['restarts']} runs of "
            f"{attack['steps']} gradient steps on each network, every point on the way looked at. It tests the "
            "certificate; the proof does not rest on it."
        )
    return lines
