"""Rows of a stage as the operator it is: their norms, and single ones written out."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.certificates.stages import Affine, AvgPool
from feta.layers import padding_of


def row_norms(stage: Affine | AvgPool) -> Tensor:
    """The Euclidean norm of each row, in the shape of an output."""
    if isinstance(stage, AvgPool):
        down, across = (torch.linalg.vector_norm(side, dim=1) for side in (stage.rows, stage.columns))
        return torch.outer(down, across)
    if isinstance(stage.layer, nn.Conv2d) and stage.layer.padding_mode != "zeros":
        # Padding repeats pixels, whose weights then add up; no row is longer than the operator's norm.
        return stage.weight.new_full(stage.out_shape, stage.lipschitz)
    squared = replace(stage, weight=stage.weight.square())
    return squared.linear(stage.weight.new_ones(1, *stage.in_shape))[0].sqrt()


def unit_rows(stage: Affine, units: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (n, R, ...) and biases (n, R) of units (n, R), numbers into the flat output."""
    positions = math.prod(stage.out_shape[1:])
    channel = units // positions
    bias = stage.bias[channel]
    if isinstance(stage.layer, nn.Linear):
        if len(stage.in_shape) == 1:
            return stage.weight[units], bias
    elif stage.layer.groups == 1 and stage.layer.padding_mode == "zeros":
        return _placed_kernels(stage, stage.layer, channel, units % positions), bias
    ones = stage.weight.new_zeros(*units.shape, math.prod(stage.out_shape))
    ones = ones.scatter(2, units[..., None], 1).reshape(-1, *stage.out_shape)
    return stage.transpose(ones).unflatten(0, units.shape), bias


def _placed_kernels(stage: Affine, conv: nn.Conv2d, channel: Tensor, position: Tensor) -> Tensor:
    """Each channel's kernel at its position: what the transposed convolution of one unit gives, without its cost."""
    inputs, height, width = stage.in_shape
    # Pixels count from 1, so that padding, which is 0, lands in a place of its own.
    pixels = torch.arange(1, height * width + 1, dtype=torch.float64, device=position.device)
    image = F.pad(pixels.view(1, 1, height, width), padding_of(conv))
    taps = F.unfold(image, conv.kernel_size, dilation=conv.dilation, stride=conv.stride)[0].long().t()
    places = taps[position][:, :, None].expand(-1, -1, inputs, -1)  # (n, R, c_in, taps)
    rows = stage.weight.new_zeros(*position.shape, inputs, height * width + 1)
    rows.scatter_(3, places, stage.weight[channel].flatten(3))
    return rows[..., 1:].reshape(*position.shape, *stage.in_shape)
