"""feta bounds without a terminal: two network files and their data set in, a report ready for JSON out."""

from __future__ import annotations

from dataclasses import replace

import torch

from feta.errors import ConfigError
from feta.theory.bounds import BoundsReport, generalisation_bounds
from feta.theory.robustness import Manifold
from feta_lab.data import DataSet
from feta_lab.store import Network


def bound_network(
    dense: Network,
    pruned: Network,
    data: DataSet,
    *,
    samples: int | None = 5000,
    manifold: Manifold | None = None,
    delta: float = 0.05,
    max_starts: int = 3,
    seed: int = 0,
    device: str = "cpu",
) -> BoundsReport:
    """Bounds from a seeded choice of training samples; pixels are known to lie in a box, whatever the data."""
    if dense.info.specification != pruned.info.specification:
        raise ConfigError(
            f"the pruned network must come from the dense one, got {pruned.info.specification} "
            f"and {dense.info.specification}"
        )
    if dense.info.normalisation != pruned.info.normalisation:
        raise ConfigError("both networks must have the same normalisation of their inputs, got two")
    data = replace(data, normalisation=dense.info.normalisation)
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:samples]
    part = data.train.take(chosen)
    return generalisation_bounds(
        dense.model.to(device),
        pruned.model.to(device),
        data.normalisation.apply(part.images, device),
        labels=part.labels,
        manifold=manifold,
        input_width=1 / min(data.normalisation.std),  # of pixel / 255, in units of the deviation
        delta=delta,
        max_starts=max_starts,
        seed=seed,
    )
