"""A certificate for two network files: on the test half of a data set, with radii in grey levels too.

python -m feta_lab.certifying DENSE PRUNED --output certificate --device cuda
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from feta.certificates.attack import Attack
from feta.certificates.certificate import Certificate, Tell, certify
from feta.errors import ConfigError, DataError
from feta.files.atomic import write_atomic
from feta_lab import data as datasets
from feta_lab import page, store
from feta_lab.certificate_page import certificate_page
from feta_lab.data import DataSet
from feta_lab.devices import default_device
from feta_lab.records import environment
from feta_lab.store import Network

JSON_NAME, PAGE_NAME = "certificate.json", "certificate.html"


def certify_networks(
    dense: Network,
    pruned: Network,
    data: DataSet,
    *,
    device: str = "cpu",
    callback: Tell | None = None,
    **options: Any,
) -> dict[str, Any]:
    """feta.certify on the test half, as one JSON object; `options` are those of feta.certify.

    Neither `feta train` nor `feta prune` has read a row of that half.
    """
    first, second = dense.info, pruned.info
    if first.shape != second.shape or first.normalisation != second.normalisation:
        raise ConfigError(
            "both networks must take the same inputs, got images of "
            f"{first.shape} and {second.shape}, normalised by {first.normalisation} and {second.normalisation}"
        )
    if data.shape != first.shape:
        raise DataError(f"data set '{data.name}' must have images of {first.shape}, got {data.shape}")
    images = first.normalisation.apply(data.test.images, device)
    models = dense.model, pruned.model
    found = certify(*models, images, data.test.labels, device=device, callback=callback, **options)
    grey = 255 * min(first.normalisation.std)  # a ball of radius r holds the ball of r * grey grey levels
    return {
        "network": first.specification,
        "pruning": second.pruning,
        "data": data.label,
        "split": "test half: no row of it is used in training, calibration or choice of epoch",
        **_in_grey_levels(found, grey),
        "attack": None if found.attack is None else asdict(found.attack),
        "device": str(device),
        "environment": environment(),
    }


def write_certificate(folder: Path, found: dict[str, Any]) -> tuple[Path, Path]:
    """The JSON and the page; where they are."""
    write_atomic(folder / JSON_NAME, (json.dumps(found, indent=1, allow_nan=False) + "\n").encode())
    page.write(folder / PAGE_NAME, certificate_page(found))
    return folder / JSON_NAME, folder / PAGE_NAME


def _in_grey_levels(certificate: Certificate, grey: float) -> dict[str, Any]:
    said = certificate.to_dict()
    for name, form in said["forms"].items():
        for row in form["certified"]:
            row["grey_levels"] = row["radius"] * grey
        form["median_grey_levels"] = form["median_radius"] * grey
        # A smaller ball around an 8-bit image holds no other 8-bit image: it says nothing of pictures.
        form["one_grey_level"] = certificate.forms[name].certified(1 / grey)
    return {**said, "grey_levels_per_unit": grey}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dense", type=Path)
    parser.add_argument("pruned", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--refined", type=int, default=256)
    parser.add_argument("--norm", default="l2", choices=("l2", "linf"))
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--output", type=Path, default=Path("certificate"))
    given = parser.parse_args()
    networks = store.load(given.dense), store.load(given.pruned)
    loaded = datasets.load(given.data or networks[0].info.data, given.data_dir)
    loaded = replace(loaded, normalisation=networks[0].info.normalisation)
    found = certify_networks(
        *networks,
        loaded,
        samples=given.samples,
        refined=given.refined,
        norm=given.norm,
        attack=Attack(),
        device=given.device,
    )
    for path in write_certificate(given.output, found):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
