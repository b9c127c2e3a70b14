"""The paper's networks as feta's commands see them: with their data set, its halves and its normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from feta_lab import data as datasets
from feta_lab import store
from feta_lab.data import DataSet
from feta_lab.records import append, environment, record
from feta_lab.store import Network


@dataclass(frozen=True)
class NetworkSubject:
    """A network and the data set to prune it on and to judge it by."""

    network: Network
    loaded: DataSet | None

    @property
    def model(self) -> nn.Module:
        return self.network.model

    @property
    def specification(self) -> str:
        return self.network.info.specification

    @property
    def data(self) -> str | None:
        return None if self.loaded is None else self.loaded.label

    @property
    def pruning(self) -> Mapping[str, Any] | None:
        return self.network.info.pruning

    @property
    def deviations(self) -> tuple[float, ...]:
        return self.network.info.normalisation.std

    @property
    def environment(self) -> Mapping[str, str]:
        return environment()

    def rows(self, part: Literal["train", "validation", "test"], device: str) -> tuple[Tensor, Tensor]:
        split = getattr(self.loaded, part)
        return self.network.info.normalisation.apply(split.images, device), split.labels.to(device)

    def takes_inputs_of(self, other: Any) -> bool:
        mine, theirs = self.network.info, other.network.info
        return bool(mine.shape == theirs.shape and mine.normalisation == theirs.normalisation)

    def encode(self, model: nn.Module, pruning: Mapping[str, Any], accuracy: Mapping[str, float]) -> bytes:
        changed = self.network.with_model(model, pruning=dict(pruning), accuracy=dict(accuracy))
        return store.encode(changed)

    def record(self, path: Path, kind: str, config: Mapping[str, Any], seed: int, metrics: Any) -> None:
        append(path, record(kind, config, seed, metrics))


def open_network(
    path: Path,
    *,
    data_dir: Path | None = None,
    data: str | None = None,
    with_data: bool = True,
    progress: Callable[..., None] | None = None,
) -> NetworkSubject:
    """A network file with the data it names, or with the set of another name, normalised as in training.

    Raises FileError for a file that is no network, and DataError for data that is missing or of another shape.
    """
    network = store.load(path)
    if not with_data:
        return NetworkSubject(network, None)
    loaded = datasets.load(data or network.info.data, data_dir, progress=progress)
    return NetworkSubject(network, replace(loaded, normalisation=network.info.normalisation))
