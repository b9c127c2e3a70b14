"""Images projected on their first k principal components, and mapped back to images.

    x_k = m + V_k V_k' (x - m)        m the mean, V_k (d, k) the leading eigenvectors of the covariance

Of the normalised training images, x as a row of d = c h w values: k is then an upper bound on the dimension
of what a network sees, and the same network can be trained for every k.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from feta.errors import ConfigError
from feta.files import sparse_file
from feta_lab.data import DataSet, Normalisation

CHUNK = 5000  # images at a time


@dataclass(frozen=True, eq=False)
class PrincipalBasis:
    """Mean, leading components and all variances (largest first) of normalised training images."""

    mean: Tensor  # (d,) float32
    components: Tensor  # (d, r) float32, orthonormal columns
    variances: Tensor  # (d,) float64

    def energy(self, k: int) -> float:
        """Share of the variance that k components hold."""
        return float(self.variances[:k].sum() / self.variances.sum())

    def project(self, images: Tensor, normalisation: Normalisation, k: int, device: str) -> Tensor:
        """uint8 images (n, c, h, w) -> normalised, projected float32 images of that shape on the device."""
        if not 1 <= k <= self.components.shape[1]:
            raise ConfigError(f"k must be between 1 and {self.components.shape[1]} components, got {k}")
        basis, mean = self.components[:, :k].to(device), self.mean.to(device)
        projected = torch.empty(images.shape, dtype=torch.float32, device=device)
        for rows, part in _chunks(images, normalisation, device):
            centred = part - mean
            projected[rows] = (mean + (centred @ basis) @ basis.t()).view(-1, *images.shape[1:])
        return projected


def fit_basis(images: Tensor, normalisation: Normalisation, r: int, device: str) -> PrincipalBasis:
    """The first r components, from a covariance added up chunk by chunk in float64."""
    d = images[0].numel()
    if not 1 <= r <= min(d, len(images) - 1):
        raise ConfigError(f"components must be between 1 and {min(d, len(images) - 1)}, got {r}")
    sums = torch.zeros(d, dtype=torch.float64, device=device)
    products = torch.zeros(d, d, dtype=torch.float64, device=device)
    for _, part in _chunks(images, normalisation, device):
        # Not centred first: normalised pixels have means of their spread's size or less, which float32 can bear.
        products += part.t() @ part
        sums += part.sum(0, dtype=torch.float64)
    mean = sums / len(images)
    covariance = (products - torch.outer(mean, sums)) / (len(images) - 1)
    variances, vectors = torch.linalg.eigh(covariance)  # smallest first
    leading = vectors.flip(1)[:, :r]
    # An eigenvector's sign is arbitrary: the same one on every machine.
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    leading = leading * torch.where(largest < 0, -1.0, 1.0)
    variances = variances.flip(0).clamp_min(0)
    return PrincipalBasis(mean.float().cpu(), leading.float().cpu().contiguous(), variances.cpu())


def cached_basis(data: DataSet, r: int, folder: Path, device: str) -> PrincipalBasis:
    """The basis of a data set's training images, from its file in `folder` or fitted now and kept there."""
    path = folder / f"{data.name}-components.safetensors"
    moments = {name: list(values) for name, values in asdict(data.normalisation).items()}
    described = {"data": data.label, "rows": len(data.train), **moments}
    if path.exists():
        tensors, found = sparse_file.read(path)
        if found == described and tensors["components"].shape[1] >= r:
            return PrincipalBasis(**tensors)
    basis = fit_basis(data.train.images, data.normalisation, r, device)
    sparse_file.write(path, vars(basis), described)
    return basis


def _chunks(images: Tensor, normalisation: Normalisation, device: str) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(images), CHUNK):
        rows = slice(start, min(start + CHUNK, len(images)))
        yield rows, normalisation.apply(images[rows], device).flatten(1)
