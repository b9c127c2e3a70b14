"""What reaches a layer, as points to measure a dimension on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from feta.calibration.capture import LayerTap
from feta.calibration.model import evaluating
from feta.layers import LayerView
from feta.theory.dimension import nearest, sample_rows, two_nn

PART = 50  # images unfolded at a time
FEWEST = 10  # points to say anything about


def layer_inputs(model: nn.Module, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """One row of the layer per image (n, d_in), at a random place of a convolution; whole inputs (n, d)."""
    view = LayerView(model.get_submodule(layer), layer)
    tap = LayerTap(model, layer)
    generator = torch.Generator().manual_seed(0)
    rows, maps = [], []
    with evaluating(model):
        for part in images.split(PART):
            (x,) = tap.inputs(part)
            maps.append(x.flatten(1))
            patches = torch.cat(list(view.input_chunks(x, 0, 2**23))).unflatten(0, (len(part), -1))
            places = torch.randint(patches.shape[1], (len(part),), generator=generator)
            rows.append(patches[torch.arange(len(part)), places])  # patches of one image overlap: one of each
    return torch.cat(rows), torch.cat(maps)


def dimension_of(points: Tensor) -> float | None:
    """TwoNN over all different points (n, d); None where they are too few or too much alike to tell."""
    distinct = sample_rows(points, len(points), seed=0)
    if len(distinct) < FEWEST:
        return None
    value = two_nn(nearest(distinct, 2))
    return value if math.isfinite(value) else None
