"""feta certify: what a pruned network does on inputs nobody has tried, as far as that can be proven."""

from collections.abc import Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from feta.cli.console import out, print_json, print_table, progress_bar, resolve_device
from feta.cli.options import DataDir, DataName, Device, Force, Json, Seed, Whole
from feta.cli.places import check_files, check_output, check_places
from feta.errors import ConfigError, ModelError
from feta.pages.words import at_least, at_most
from feta.plugins import added

if TYPE_CHECKING:
    from feta.cli.subject import Subject

CURE = "certify takes files of `feta train`, and what was made of them; in Python feta.certify(model, pruned, data)"
FILES = ("certificate.json", "certificate.html")


def certify(
    dense: Path,
    pruned: Path,
    /,
    *,
    data: DataName = None,
    confidence: float = 0.99,
    samples: Whole = 100,
    radii: str = "0.01,0.03,0.1,0.3,1,3",
    norm: Literal["l2", "linf"] = "l2",
    refined: Whole = 256,
    attack: bool = True,
    seed: Seed = 0,
    device: Device = None,
    data_dir: DataDir = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Certify that a pruned network agrees with the original, on the test half of the data.

    Args:
        dense: A file made by `feta train`.
        pruned: The file that `feta prune` made of it.
        confidence: Confidence of the statistical bounds, in (0, 1).
        samples: How many held-out samples get a radius; all of them count for the agreement.
        radii: Radii to report, in normalised inputs, separated by commas.
        norm: How distance is measured: l2, the Euclidean norm, or linf, the largest change of a pixel.
        refined: Hidden units per layer and sample that the local form tightens.
        attack: Test the certificates by random and gradient search.
        seed: Seed for the attack.
        output: Folder for certificate.json and certificate.html; by default nothing is saved.
    """
    check_files(dense, pruned, cure=CURE)
    if output is not None:
        for name in FILES:
            check_output(output / name, force, option=f"--output {output}")
            check_places(output / name)
    from feta.certificates.attack import Attack
    from feta.cli.subject import open_pair

    try:
        wanted = tuple(float(part) for part in radii.split(","))
    except ValueError:
        raise ConfigError(f"--radii must be numbers > 0 separated by commas, got '{radii}'") from None
    options: dict[str, Any] = {"confidence": confidence, "samples": samples, "radii": wanted, "norm": norm}
    options |= {"refined": refined, "attack": Attack(seed=seed) if attack else None, "device": resolve_device(device)}
    pair = open_pair(dense, pruned, data_dir, data, CURE)
    with progress_bar("certifying") as update:
        options["callback"] = lambda text, done, total: update(description=text, completed=done, total=total)
        found = certify_subjects(*pair, **options)
    paths = [] if output is None else write_certificate(output, found)
    if json:
        print_json(found, output=output)
    else:
        _show(found)
        for path in paths:
            out().print(f"written: {path}")
    refuted = {name: form["certified_but_changed"] for name, form in found["forms"].items()}
    if any(refuted.values()):
        raise ModelError(
            f"no certified ball may hold another class, got {refuted} found by the attack; these samples count as "
            "not certified, and the others are in doubt: please report the network"
        )


def certify_subjects(dense: "Subject", pruned: "Subject", *, device: str = "cpu", **options: Any) -> dict[str, Any]:
    """feta.certify on the test half of the data, which was used neither in training nor in pruning.

    `options` are those of feta.certify. Returns one JSON object, with radii in grey levels too.
    """
    from feta.certificates.certificate import certify as certify_models

    x, y = dense.rows("test", device)
    found = certify_models(dense.model, pruned.model, x, y, device=device, **options)
    grey = 255 * min(dense.deviations)  # a ball of radius r holds the ball of r * grey grey levels
    said = found.to_dict()
    for name, form in said["forms"].items():
        for row in form["certified"]:
            row["grey_levels"] = row["radius"] * grey
        form["median_grey_levels"] = form["median_radius"] * grey
        # A smaller ball around an 8-bit image holds no other 8-bit image: it says nothing of pictures.
        form["one_grey_level"] = found.forms[name].certified(1 / grey)
    return {
        "network": dense.specification,
        "pruning": pruned.pruning,
        "data": dense.data,
        "split": "test half: no row of it is used in training, calibration or choice of epoch",
        **said,
        "grey_levels_per_unit": grey,
        "attack": None if found.attack is None else asdict(found.attack),
        "device": str(device),
        "environment": dense.environment,
    }


def write_certificate(folder: Path, found: Mapping[str, Any]) -> list[Path]:
    """Write the JSON file and, if an installed package can draw it, the page. Returns their paths."""
    from feta.files.atomic import write_atomic

    paths = [folder / FILES[0]]
    write_atomic(paths[0], (dumps(found, indent=1, allow_nan=False) + "\n").encode())
    drawn = added("feta.pages").get("certificate")
    if drawn is not None:
        paths.append(folder / FILES[1])
        write_atomic(paths[1], drawn.load()(found).encode())
    return paths


def _show(found: Mapping[str, Any]) -> None:
    sure, forms = f"{100 * found['confidence']:g} % sure", found["forms"]
    agreed, least = found["agree"], at_least(100 * found["agreement_lower_bound"])
    out().print(f"same class on {agreed} of {found['samples']} held-out samples")
    out().print(f"same class on at least {least} % of all inputs ({sure})")
    if found["accuracy_lost"] is not None:
        most = at_most(100 * found["accuracy_lost_upper_bound"])
        out().print(f"accuracy lost {100 * found['accuracy_lost']:.2f} points; at most {most} ({sure})")
    rows = [
        (f"{cells[0]['radius']:g}", f"{cells[0]['grey_levels']:.3g}", *map(share, cells))
        for cells in zip(*(form["certified"] for form in forms.values()), strict=True)
    ]
    title = f"Certified within a radius ({found['norm']}), {next(iter(forms.values()))['samples']} samples"
    print_table(title, ("radius", "grey levels", *forms), rows)
    for name, form in forms.items():
        tested = "not attacked"
        if form["certified_but_changed"] is not None:
            beyond = ", ".join(f"{row['samples']} at {row['times']:g}×" for row in form["changed_beyond"])
            inside = f"{form['certified_but_changed']} of {form['certified_any']} changed"
            tested = f"attack inside: {inside}, beyond: {beyond}"
        out().print(f"{name}: {verdict(form)}; {tested}")


def verdict(form: Mapping[str, Any]) -> str:
    """One line on a form of the certificate."""
    if form["vacuous"]:
        return "vacuous: no sample is certified at any of the radii asked for"
    grey = form["one_grey_level"] / form["samples"]
    return f"median radius {form['median_radius']:.3g}; {100 * grey:.0f} % of the samples have a grey level or more"


def share(row: Mapping[str, Any]) -> str:
    """The share certified at a radius, or plainly that there is none."""
    return f"{100 * row['share']:.1f} %" if row["samples"] else "vacuous"
