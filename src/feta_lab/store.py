"""The paper's networks as files: what is needed to rebuild, judge and repeat each."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from feta.errors import ConfigError, FileError, one_line
from feta.files import network as files
from feta.files.network import encode, save
from feta.files.plain import shortened, tamed
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


TYPES: dict[str, Any] = {
    "specification": str,
    "data": str,
    "preset": str | None,
    "accuracy": dict,
    "pruning": dict | None,
}


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
        channels, height, width = (_whole(size, 1) for size in description["shape"])
        mean, std = (tuple(map(_number, description["normalisation"][key])) for key in ("mean", "std"))
        if not (len(mean) == len(std) == channels and min(std) > 0):
            raise ValueError(f"a normalisation of {len(mean)} and {len(std)} numbers, or not above 0")
        changes: dict[str, Any] = {"shape": (channels, height, width), "normalisation": Normalisation(mean, std)}
        info = NetworkInfo(**{**description, **changes})
        for name, kind in TYPES.items():
            if not isinstance(value := getattr(info, name), kind):
                raise TypeError(f"{name} {shortened(value)}")
        for count in (info.seed, info.epochs):
            _whole(count, 0)
        for score in info.accuracy.values():
            _number(score)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileError(f"{path}: the network's description must be complete, got {one_line(error)}") from error
    try:
        return Network(networks.build(info.specification, info.shape, seed=0), info)
    except ConfigError as error:
        raise FileError(f"{path}: {tamed(error)}") from error


def _whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ValueError(f"{shortened(value)} where a whole number of at least {least} belongs")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shortened(value)} where a number belongs")
    return float(value)
