"""Networks as files: one safetensors file with what is needed to rebuild, judge and repeat it.

net = load("dense-mnist.safetensors");  net.model(images);  net.info.accuracy
save(net, "pruned.safetensors")         # pruned layers are stored compressed, see export.sparse_file
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feta.errors import FileError
from feta.files import sparse_file
from feta_lab import networks
from feta_lab.data import Normalisation

FORMAT_VERSION = 1


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


@dataclass(frozen=True)
class Network:
    """A model in the paper's notation and its description."""

    model: nn.Module
    info: NetworkInfo

    def with_model(self, model: nn.Module, **changes: Any) -> Network:
        return Network(model, replace(self.info, **changes))


def encode(network: Network) -> bytes:
    """The file as bytes; its length is the file's size."""
    return sparse_file.encode(network.model.state_dict(), _metadata(network.info))


def save(network: Network | nn.Module, path: str | os.PathLike[str]) -> int:
    """Write a network, or the weights of any module, sparse tensors compressed; the file's size in bytes."""
    if isinstance(network, nn.Module):
        return sparse_file.write(Path(path), network.state_dict(), {"version": FORMAT_VERSION})
    return sparse_file.write(Path(path), network.model.state_dict(), _metadata(network.info))


def load(path: str | os.PathLike[str]) -> Network:
    """A network written by `save` or `feta train`, dense or pruned. Nothing is unpickled."""
    tensors, metadata = sparse_file.read(Path(path))
    info = _info(metadata, Path(path))
    model = networks.build(info.specification, info.shape, seed=0)
    _fill(model, tensors, Path(path))
    return Network(model.eval(), info)


def load_into(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """The weights in a file put into a module of the user's own."""
    tensors, _ = sparse_file.read(Path(path))
    _fill(model, tensors, Path(path))
    return model


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())  # one line, as all our messages
        raise FileError(f"{path} must hold the weights of this model: {reason}") from error


def _metadata(info: NetworkInfo) -> dict[str, Any]:
    return {"version": FORMAT_VERSION, "network": asdict(info)}


def _info(metadata: Mapping[str, Any], path: Path) -> NetworkInfo:
    version = metadata.get("version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise FileError(
            f"{path}: format version must be at most {FORMAT_VERSION}, got {version}; update feta"
        )
    fields = metadata.get("network")
    if fields is None:
        raise FileError(
            f"{path} must describe its network, got a safetensors file without feta's description; "
            "put its weights into your own model with feta.load_into(model, path)"
        )
    try:
        channels, height, width = (int(size) for size in fields["shape"])
        mean, std = (tuple(map(float, fields["normalisation"][key])) for key in ("mean", "std"))
        return NetworkInfo(
            **{
                **fields,
                "specification": str(fields["specification"]),
                "shape": (channels, height, width),
                "normalisation": Normalisation(mean, std),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the network's description must be complete, got {error!r}") from error
