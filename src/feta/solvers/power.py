"""The largest eigenvalue of a Gram matrix, by power iteration."""

from __future__ import annotations

import torch
from torch import Tensor


def largest_eigenvalue(H: Tensor, seed: int = 0, iterations: int = 100) -> float:
    """An estimate from below, good to a fraction of a percent after 100 steps on real data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(H), dtype=torch.float64, generator=generator).to(H.device)
    value = 0.0
    for _ in range(iterations):
        y = H.double() @ x
        norm = float(torch.linalg.vector_norm(y))
        if norm == 0:
            return torch.finfo(torch.float64).tiny
        value, x = norm / float(torch.linalg.vector_norm(x)), y / norm
    return value
