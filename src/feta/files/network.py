"""save, load, load_into: models as safetensors files, sparse layers compressed (files.sparse_file).

    feta.save(result.model, "pruned.safetensors")
    feta.load_into(MyModel(), "pruned.safetensors")

A file may describe its network, so that `load` can rebuild it: its metadata then holds `network`, a JSON
object that a builder understands (feta.plugins), or `transformers`, the configuration of a model of that package,
which may be a folder too (files.huggingface). Nothing is ever unpickled.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from feta.errors import FetaError, FileError, listed, one_line, warn
from feta.files import folder, huggingface, sparse_file
from feta.files.atomic import write_atomic
from feta.files.lossy import Smaller
from feta.files.pickles import refuse_name
from feta.files.plain import shortened
from feta.files.sparse_file import Layout
from feta.gates import gated
from feta.layers import refuse_sparsified
from feta.plugins import required

FORMAT_VERSION = 2  # 1: before checksums and packed tensors


@dataclass(frozen=True)
class Network:
    """A model and what its file says about it.

    info: an object of the package that describes the network; its `to_metadata()` gives the JSON object.
    """

    model: nn.Module  # with the weights of the file, in eval mode
    info: Any


@dataclass(frozen=True)
class Transformers:
    """What is known of a model of transformers: its configuration."""

    config: Mapping[str, Any]

    def to_metadata(self) -> dict[str, Any]:
        return dict(self.config)


def encode(network: Network | nn.Module, *, dtype: Smaller | None = None, layout: Layout = "small") -> bytes:
    """The file of a network as bytes; their number is the file's size."""
    metadata: dict[str, Any] = {"version": FORMAT_VERSION}
    model = network.model if isinstance(network, Network) else network
    if isinstance(network, Network) and not isinstance(network.info, Transformers):
        metadata["network"] = network.info.to_metadata()
    metadata |= huggingface.description(model)
    return sparse_file.encode(model.state_dict(), metadata, layout=layout, dtype=dtype)


@gated
def save(
    network: Network | nn.Module,
    path: str | os.PathLike[str],
    *,
    dtype: Smaller | None = None,
    layout: Layout | None = None,
) -> int:
    """Write the weights of a model, or a network with its description, to one safetensors file.

        feta.save(result.model, "pruned.safetensors")

    network: any nn.Module, or a Network.
    path: the file, or for a model of transformers a folder too, new or empty; it appears whole or not at all. It must
        not end as pickles do, in .pt, .pth or .bin.
    dtype: store the weights rounded, which loses accuracy: "float16", "bfloat16", or "int8" with a scale per output
        channel. Loading gives them back in their own dtype, zeros exactly zero. By default nothing is lost.
    layout: "small", entropy coded, the default of files; "compressed-tensors", values and bit masks, larger and
        faster to read; "dense", plain safetensors, the default of folders.

    Returns the file's size in bytes, of a folder that of its weights.
    Raises FileError where the file cannot be written or the state holds something else than tensors.
    """
    if not isinstance(network, Network | nn.Module):
        raise FileError(f"save must be given a model or a Network, got a {type(network).__name__}; save result.model")
    path, model = Path(path), network.model if isinstance(network, Network) else network
    refuse_name("path", path)
    refuse_sparsified(model, "network")
    if huggingface.is_pretrained(model) and path.suffix != ".safetensors":
        return folder.write(model, path, layout=layout, dtype=dtype)
    content = encode(network, dtype=dtype, layout=layout or "small")
    write_atomic(path, content)
    return len(content)


@gated
def load(path: str | os.PathLike[str]) -> Network:
    """A network from a file that describes it, such as those of `feta train` and `feta prune`, or a folder.

        network = feta.load("dense-mnist.safetensors")
        network.model, network.info

    path: a file written by `save`, or a Hugging Face folder; these need the package transformers.

    Returns a Network: the model in eval mode and its description.
    Raises FileError where the file is damaged or says nothing about its network, and ConfigError where the
    package that knows such networks is not installed.
    """
    path = Path(path)
    if path.is_dir():
        model, unused = huggingface.read(path)
        if unused:
            warn(f"{path}: {type(model).__name__} does not use {listed(unused)}")
        return _of_transformers(model)
    return read_network(path, None)


def read_network(path: Path, build: Callable[[Mapping[str, Any], Path], Network] | None) -> Network:
    """`load` with the function that makes the empty network; None: the one that an installed package adds."""
    opened = sparse_file.open_file(path)
    if build is None and opened.metadata.get("transformers"):
        return _of_transformers(huggingface.rebuild(opened.metadata["transformers"], opened.tensors(), path))
    description = described(opened.metadata, path)
    if build is None:
        build = required("feta.networks", "paper", f"{path}: a network in the paper's notation")
    try:
        with torch.device("meta"):  # which takes no memory: a few words in a file may name a network of any size
            shapes = build(description, path).model.state_dict()
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, FetaError):
            raise
        raise FileError(f"{path} must describe a network that can be built, got {one_line(error)}") from error
    opened.check_shapes(shapes)
    tensors = opened.tensors()
    compare(shapes, tensors, path)
    network = build(description, path)
    fill(network.model, tensors, path)
    network.model.eval()
    return network


def compare(shapes: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise FileError where tensors are not those of a network, known by its state on any device."""
    for what, odd in (("has no", set(shapes) - set(tensors)), ("has an unknown", set(tensors) - set(shapes))):
        if odd:
            raise FileError(f"{path} must hold the weights of this model: it {what} {listed(sorted(odd))}")
    for name, tensor in shapes.items():
        if tensor.shape != tensors[name].shape:
            right, got = tuple(tensor.shape), tuple(tensors[name].shape)
            raise FileError(f"{path} must hold the weights of this model: '{name}' of shape {right}, got {got}")


@gated
def load_into(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Put the weights in a file into a model.

        model = feta.load_into(MyModel(), "pruned.safetensors")

    model: a model of the same structure; it is changed in place.
    path: a file written by `save`, any safetensors file of a state_dict, or a folder of these.

    Returns the model. Raises FileError where the file does not hold the weights of this model.
    """
    path = Path(path)
    if path.is_dir():
        tensors = huggingface.tensors_of(path)
    else:
        opened = sparse_file.open_file(path)
        opened.check_shapes(model.state_dict())
        tensors = opened.tensors()
    fill(model, tensors, path)
    return model


def described(metadata: Mapping[str, Any], path: Path, cure: str = "") -> Any:
    """What a file's metadata says about its network. Raises FileError, with the cure, where it says nothing."""
    version = metadata.get("version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise FileError(
            f"{path}: format version must be at most {FORMAT_VERSION}, got {shortened(version)}; update feta"
        )
    if metadata.get("network") is None:
        said = "its network, got weights alone, of a model in code"
        usual = "put its weights into your own model with feta.load_into(model, path)"
        if metadata.get("transformers"):
            said = "a network of `feta train`, got a model of transformers"
            usual = "open it with feta.load(path)"
        raise FileError(f"{path} must describe {said}; {cure or usual}")
    return metadata["network"]


def fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path | str) -> None:
    """Put tensors into a model, all of them or none. Raises FileError where they are not those of the model.

    Of weights that share their memory one is enough: other programs store them once. Old files do not count the
    batches that batch-norms have seen, which torch does without as well.
    """
    own = model.state_dict(keep_vars=True)
    # All is looked at first: torch copies what fits before it says what does not.
    wrong = [
        f"'{name}' with {tuple(tensor.shape)} for {tuple(own[name].shape)}"
        for name, tensor in tensors.items()
        if isinstance(own.get(name), Tensor) and not is_lazy(own[name]) and own[name].shape != tensor.shape
    ]
    unknown = [name for name in tensors if name not in own]
    present = {id(own[name]): tensor for name, tensor in tensors.items() if name in own}
    tied = {name: kept for name, kept in own.items() if name.endswith("num_batches_tracked")}
    tied |= {name: present[id(kept)] for name, kept in own.items() if id(kept) in present}
    missing = [name for name in own if name not in tied and isinstance(own[name], Tensor)]
    if wrong or missing or unknown:
        raise FileError(f"{path} must hold the weights of this model, got {_misfit(wrong, missing, unknown)}")
    try:
        model.load_state_dict(tied | dict(tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())  # one line, as all our messages
        raise FileError(f"{path} must hold the weights of this model: {reason}") from error


def _misfit(wrong: list[str], missing: list[str], unknown: list[str]) -> str:
    """How a file's tensors differ from those of a model, in a sentence."""
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    said = [f"tensors of other shapes: {', '.join(wrong[:5])}{more}"] if wrong else []
    said += [f"nothing for {listed(missing)}"] if missing else []
    said += [f"tensors that the model does not have: {listed(unknown)}"] if unknown else []
    return "; ".join(said)


def _of_transformers(model: nn.Module) -> Network:
    owner: Any = model.eval()
    return Network(model, Transformers(owner.config.to_dict()))
