"""Figure 3c: CIFAR-10 projected on its first k principal components, and how well networks trained on that
stand the thresholding of their first layer.

The networks of one k are trained together by the short recipe of feta_lab.ensemble, and judged on test images
under the same projection; their records are written before the next k begins. k is an upper bound on the
dimension of the data: `intrinsic_dimension`, by TwoNN over `samples` projected images, says what it really is, and
`energy` how much of the variance is left.

    x_k = m + V_k V_k' (x - m)        m the mean, V_k (d, k) the leading eigenvectors of the covariance

Of the normalised training images, x as a row of d = c h w values, mapped back to images: the same network can be
trained for every k.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from feta.engine.prune import prune
from feta.errors import ConfigError, ModelError
from feta.files import sparse_file
from feta_lab import networks
from feta_lab.data import DataSet, Normalisation
from feta_lab.ensemble import Sprint, SprintEvent, train_together
from feta_lab.experiments.fig3_layers import SPARSITIES, dimension_of, hidden_layers
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.plan import Plan
from feta_lab.experiments.subject import load_data
from feta_lab.judge import accuracy

CHUNK = 5000  # images at a time
RECIPE = ("epochs", "batch_size", "learning_rate", "rows")


@dataclass(frozen=True)
class Fig3c(Plan):
    """The projections, the networks and their training. `jobs` is not used: the networks of a k share a process."""

    nets: tuple[str, ...] = ("conv-cifar",)
    seeds: int = 10  # networks per k
    components: tuple[int, ...] = (50, 100, 150, 200, 250, 300, 350)
    sparsity: tuple[float, ...] = SPARSITIES
    epochs: int = Sprint.epochs
    batch_size: int = Sprint.batch_size
    learning_rate: float = Sprint.learning_rate
    rows: int | None = None  # training images; by default all
    samples: int = 2000  # of which the intrinsic dimension is measured

    name: ClassVar[str] = "fig3c"
    lines: ClassVar[tuple[str, ...]] = ("net", "k")
    columns: ClassVar[tuple[str, ...]] = ("dense_accuracy", "intrinsic_dimension")
    across: ClassVar[str] = "sparsity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.nets) != 1:
            raise ConfigError(f"nets must name one network, got {list(self.nets)}")
        if min(self.components) < 1 or len(set(self.components)) < len(self.components):
            raise ConfigError(f"components must be different numbers >= 1, got {list(self.components)}")
        if self.rows is not None and self.rows < 2:
            raise ConfigError(f"rows must be >= 2, got {self.rows}")
        self.recipe()

    def recipe(self) -> Sprint:
        return Sprint(self.epochs, self.batch_size, self.learning_rate)

    def cells(self) -> list[Cell]:
        """k changes slowest: the networks of one are trained for its first cell, and let go after its last."""
        (net,) = self.nets
        settings = {"layer": hidden_layers(net)[0], **{name: getattr(self, name) for name in RECIPE}}
        return self.grid(net, settings, k=self.components, network=range(self.seeds), sparsity=self.sparsity)

    def train(self, tell: Callable[[str], None]) -> None:
        """Fit the projection, once for all k; the networks of a k are trained for its first cell."""
        tell(f"principal components of {self.data_of(self.nets[0])}")
        _basis(self)

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        """Train the networks of the cell's k, where the cell before was of another."""
        crew = _crew(self, cell["k"])
        common = {"data": _data(self).label, "energy": crew.energy, "intrinsic_dimension": crew.dimension}
        return common if crew.failure else {**common, **crew.dense[cell["network"]]}

    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Threshold the first layer, judge the network."""
        crew = _crew(self, cell["k"])
        if crew.failure:
            raise ModelError(crew.failure)
        model, layers = crew.models[cell["network"]], [cell["layer"]]
        result = prune(model, None, cell["sparsity"], "threshold", layers=layers, device=self.where)
        return {"accuracy": accuracy(result.model, crew.test, _data(self).test.labels)}


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


@dataclass(frozen=True, eq=False)
class _Crew:
    """The networks of one k, what they score, and what they saw."""

    models: list[nn.Sequential]
    dense: list[dict[str, float]]
    test: Tensor
    energy: float
    dimension: float | None
    failure: str


@functools.lru_cache(maxsize=1)
def _crew(plan: Fig3c, k: int) -> _Crew:
    data, basis = _data(plan), _basis(plan)
    train, labels = data.train.images[: plan.rows], data.train.labels[: plan.rows]
    parts = (train, data.validation.images, data.test.images)
    images, validation, test = (basis.project(part, data.normalisation, k, plan.where) for part in parts)
    seen = dimension_of(images[: plan.samples].flatten(1))
    notation, tell = networks.preset(plan.nets[0]).specification, functools.partial(_tell, k)
    models, failure = list[nn.Sequential](), ""
    try:
        models = train_together(notation, images, labels, range(plan.seeds), plan.recipe(), callback=tell)
    except ModelError as error:
        failure = str(error)
    halves = {"dense_accuracy": (test, data.test.labels), "dense_validation": (validation, data.validation.labels)}
    dense = [{name: accuracy(model, *half) for name, half in halves.items()} for model in models]
    return _Crew(models, dense, test, basis.energy(k), seen, failure)


def _tell(k: int, event: SprintEvent) -> None:
    """Straight to stderr: the cell that trains may run in a process of its own."""
    left = (event.epochs - event.epoch) * event.seconds
    steps = ", ".join(filter(None, ("CUDA graph" if event.graph else "", event.note))) or "no CUDA graph"
    sys.stderr.write(
        f"k = {k}: epoch {event.epoch}/{event.epochs}, loss {statistics.mean(event.losses):.3f} "
        f"(worst {max(event.losses):.3f}), {event.seconds:.2f} s, {event.images_per_second:,.0f} images/s, "
        f"{left:.0f} s left, {steps}\n"
    )


def _data(plan: Fig3c) -> DataSet:
    return load_data(plan.data_of(plan.nets[0]), plan.data_dir)


@functools.lru_cache(maxsize=1)
def _basis(plan: Fig3c) -> PrincipalBasis:
    return cached_basis(_data(plan), max(plan.components), plan.networks, plan.where)
