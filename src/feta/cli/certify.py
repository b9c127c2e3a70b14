"""feta certify: what a pruned network does on inputs nobody has tried, as far as that can be proven."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from feta.cli.console import out, print_json, print_table, progress_bar, resolve_device
from feta.cli.options import DataDir, DataName, Device, Json, Whole, data_of
from feta.errors import ConfigError, ModelError


def certify(
    dense: Path,
    pruned: Path,
    /,
    *,
    data: DataName = None,
    confidence: Annotated[float, Parameter(help="Of the statistical bounds, in (0, 1).")] = 0.99,
    samples: Annotated[
        Whole, Parameter(help="Held-out samples that get a radius; all of them count for the agreement.")
    ] = 100,
    radii: Annotated[
        str, Parameter(help="Radii to report, in normalised inputs, separated by commas.")
    ] = "0.01,0.03,0.1,0.3,1,3",
    norm: Literal["l2", "linf"] = "l2",
    refined: Annotated[
        Whole, Parameter(help="Hidden units per layer and sample that the local form tightens.")
    ] = 256,
    attack: Annotated[bool, Parameter(help="Test the certificates by random and gradient search.")] = True,
    seed: Annotated[Whole, Parameter(help="Of the attack.")] = 0,
    device: Device = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path, Parameter(name=("--output", "-o"), help="Folder for certificate.json and certificate.html.")
    ] = Path("certificate"),
    json: Json = False,
) -> None:
    """Certify that a pruned network agrees with the original, on the test half of the data.

    Parameters
    ----------
    dense
        A file made by `feta train`.
    pruned
        What `feta prune` made of it.
    norm
        How distance is measured: l2, the Euclidean norm, or linf, the largest change of a pixel.
    """
    from feta.certificates.attack import Attack
    from feta.files.atomic import check_writable
    from feta_lab import store
    from feta_lab.certifying import JSON_NAME, certify_networks, write_certificate

    wanted = _radii(radii)
    where = resolve_device(device)
    networks = store.load(dense), store.load(pruned)
    check_writable(output / JSON_NAME)
    loaded = data_of(networks[0], data_dir, data)
    with progress_bar() as bar:
        task = bar.add_task("certifying", total=None, note="")

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        found = certify_networks(
            *networks,
            loaded,
            confidence=confidence,
            samples=samples,
            radii=wanted,
            norm=norm,
            refined=refined,
            attack=Attack(seed=seed) if attack else None,
            device=where,
            callback=show,
        )
    paths = write_certificate(output, found)
    if json:
        print_json(found)
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


def _radii(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--radii must be numbers > 0 separated by commas, got '{text}'") from None


def _show(found: Mapping[str, Any]) -> None:
    from feta_lab.certificate_page import at_least, at_most, share, verdict

    sure = f"{100 * found['confidence']:g} % sure"
    n = found["samples"]
    out().print(
        f"same class on {found['agree']} of {n} held-out samples; on at least "
        f"{at_least(100 * found['agreement_lower_bound'])} % of all inputs ({sure})"
    )
    if found["accuracy_lost"] is not None:
        out().print(
            f"accuracy lost {100 * found['accuracy_lost']:.2f} points; at most "
            f"{at_most(100 * found['accuracy_lost_upper_bound'])} ({sure})"
        )
    forms = found["forms"]
    rows = [
        (f"{cells[0]['radius']:g}", f"{cells[0]['grey_levels']:.3g}", *map(share, cells))
        for cells in zip(*(form["certified"] for form in forms.values()), strict=True)
    ]
    total = next(iter(forms.values()))["samples"]
    title = f"Certified within a radius ({found['norm']}), {total} samples"
    print_table(title, ("radius", "grey levels", *forms), rows)
    for name, form in forms.items():
        out().print(f"{name}: {verdict(form)}{_tested(form)}")


def _tested(form: Mapping[str, Any]) -> str:
    if form["certified_but_changed"] is None:
        return "; not attacked"
    inside = f"; attack inside: {form['certified_but_changed']} of {form['certified_any']} changed"
    beyond = ", ".join(f"{row['samples']} at {row['times']:g}×" for row in form["changed_beyond"])
    return f"{inside}, beyond: {beyond}"
