"""save, load, load_into: models as safetensors files, sparse layers compressed (files.sparse_file).

    feta.save(result.model, "pruned.safetensors")
    feta.load_into(MyModel(), "pruned.safetensors")

A file may describe its network, so that `load` can rebuild it: its metadata then holds `network`, a JSON
object that a builder understands (feta.plugins). Nothing is ever unpickled.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feta.errors import FileError
from feta.files import sparse_file
from feta.files.atomic import write_atomic
from feta.plugins import required

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Network:
    """A model and what its file says about it.

    info: an object of the package that describes the network; its `to_metadata()` gives the JSON object.
    """

    model: nn.Module
    info: Any


def encode(network: Network | nn.Module) -> bytes:
    """The file of a network as bytes; their number is the file's size."""
    if isinstance(network, nn.Module):
        return sparse_file.encode(network.state_dict(), {"version": FORMAT_VERSION})
    metadata = {"version": FORMAT_VERSION, "network": network.info.to_metadata()}
    return sparse_file.encode(network.model.state_dict(), metadata)


def save(network: Network | nn.Module, path: str | os.PathLike[str]) -> int:
    """Write the weights of a model, or a network with its description, to one safetensors file.

        feta.save(result.model, "pruned.safetensors")

    network: any nn.Module, or a Network.
    path: the file; it appears whole or not at all.

    Returns the file's size in bytes.
    Raises FileError where the file cannot be written or the state holds something else than tensors.
    """
    if not isinstance(network, Network | nn.Module):
        raise FileError(f"save must be given a model or a Network, got a {type(network).__name__}; save result.model")
    content = encode(network)
    write_atomic(Path(path), content)
    return len(content)


def load(path: str | os.PathLike[str]) -> Network:
    """A network from a file that describes it, such as those of `feta train` and `feta prune`.

        network = feta.load("dense-mnist.safetensors")
        network.model(images)

    path: a file written by `save`.

    Returns a Network: the model in eval mode and its description.
    Raises FileError where the file is damaged or says nothing about its network, and ConfigError where the
    package that knows such networks is not installed.
    """
    return read_network(Path(path), None)


def read_network(path: Path, build: Callable[[Mapping[str, Any], Path], Network] | None) -> Network:
    """`load` with the function that makes the empty network; None: the one that an installed package adds."""
    tensors, metadata = sparse_file.read(path)
    description = described(metadata, path)
    if build is None:
        build = required("feta.networks", "paper", f"{path}: a network in the paper's notation")
    network = build(description, path)
    fill(network.model, tensors, path)
    network.model.eval()
    return network


def load_into(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Put the weights in a file into a model.

        model = feta.load_into(MyModel(), "pruned.safetensors")

    model: a model of the same structure; it is changed in place.
    path: a file written by `save`, or any safetensors file of a state_dict.

    Returns the model. Raises FileError where the file does not hold the weights of this model.
    """
    path = Path(path)
    tensors, _ = sparse_file.read(path)
    fill(model, tensors, path)
    return model


def described(metadata: Mapping[str, Any], path: Path) -> Any:
    """What a file's metadata says about its network. Raises FileError where it says nothing."""
    version = metadata.get("version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise FileError(f"{path}: format version must be at most {FORMAT_VERSION}, got {version}; update feta")
    if metadata.get("network") is None:
        raise FileError(
            f"{path} must describe its network, got a safetensors file without feta's description; "
            "put its weights into your own model with feta.load_into(model, path)"
        )
    return metadata["network"]


def fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put tensors into a model. Raises FileError where they are not those of the model."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())  # one line, as all our messages
        raise FileError(f"{path} must hold the weights of this model: {reason}") from error
