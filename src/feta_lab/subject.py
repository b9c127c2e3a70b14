"""The paper's networks as feta's commands see them: with their data set, its halves and its normalisation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feta.cli.subject import Part, Subject
from feta.errors import DataError
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.data import DataSet
from feta_lab.records import append, environment, record
from feta_lab.store import Network


def open_network(
    path: Path,
    *,
    data_dir: Path | None = None,
    data: str | None = None,
    with_data: bool = True,
    progress: Callable[..., None] | None = None,
) -> Subject:
    """A network file with the data it names, or with the set of another name, normalised as in training.

    Raises FileError for a file that is no network, and DataError for data that is missing or of another shape.
    """
    network = store.load(path)
    wanted = data or network.info.data
    return subject_of(network, datasets.load(wanted, data_dir, progress=progress) if with_data else None)


def subject_of(network: Network, data: DataSet | None) -> Subject:
    """A network and the data set to prune it on and to judge it by. Raises DataError where they do not fit."""
    info = network.info
    if data is not None and data.shape != info.shape:
        raise DataError(f"data set '{data.name}' must have images of {info.shape}, got {data.shape}")

    def rows(part: Part, device: str) -> tuple[Tensor, Tensor]:
        split = getattr(data, part)
        return info.normalisation.apply(split.images, device), split.labels.to(device)

    def encode(model: nn.Module, pruning: Mapping[str, Any], accuracy: Mapping[str, float], **how: Any) -> bytes:
        about: dict[str, Any] = {"pruning": dict(pruning), "accuracy": dict(accuracy)}
        notation = networks.narrowed(info.specification, model)
        if notation != info.specification:
            about |= {"specification": notation, "preset": None}
        return store.encode(network.with_model(model, **about), **how)

    def note(path: Path, kind: str, config: Mapping[str, Any], seed: int, metrics: Any) -> None:
        append(path, record(kind, config, seed, metrics))

    return Subject(
        model=network.model,
        specification=info.specification,
        data=data.label if data else None,
        preparation=(info.shape, info.normalisation),
        deviations=info.normalisation.std,
        rows=rows,
        encode=encode,
        record=note,
        pruning=info.pruning,
        environment=environment(),
    )
