"""The paper's networks as files: what is needed to rebuild, judge and repeat each."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from feta.errors import FileError
from feta.files import network as files
from feta.files.network import encode, save
from feta_lab import networks
from feta_lab.data import Normalisation

__all__ = ["Network", "NetworkInfo", "encode", "from_description", "load", "save"]


@dataclass(frozen=True)
class NetworkInfo:
    """Where a network comes from and what it scores; accuracies are in percent."""

    specification: str
    shape: tuple[int, int, int]
    data: str
    normalisation: Normalisation
    preset: str | None = None
    seed: int = 0
    epochs: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)  # "validation", "test"
    pruning: dict[str, Any] | None = None  # method, options, sparsity, layers: of a pruned network

    def to_metadata(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Network(files.Network):
    """A model in the paper's notation and its description."""

    info: NetworkInfo

    def with_model(self, model: nn.Module, **changes: Any) -> Self:
        """The same network with another model; `changes` are fields of its description."""
        return replace(self, model=model, info=replace(self.info, **changes))


def load(path: str | os.PathLike[str]) -> Network:
    """A network of `feta train` or `feta prune`, in eval mode. Raises FileError where it is not one."""
    found = files.read_network(Path(path), from_description)
    return Network(found.model, found.info)


def from_description(description: Mapping[str, Any], path: Path) -> Network:
    """The network that a file describes, its weights not read yet. Raises FileError where it is incomplete."""
    try:
        channels, height, width = (int(size) for size in description["shape"])
        mean, std = (tuple(map(float, description["normalisation"][key])) for key in ("mean", "std"))
        changes: dict[str, Any] = {"shape": (channels, height, width), "normalisation": Normalisation(mean, std)}
        info = NetworkInfo(**{**description, **changes, "specification": str(description["specification"])})
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the network's description must be complete, got {error!r}") from error
    return Network(networks.build(info.specification, info.shape, seed=0), info)
