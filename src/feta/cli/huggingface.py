"""Models of transformers on the command line (files.huggingface), with the commands that cure what is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from feta.cli.console import err
from feta.cli.typed import typed
from feta.errors import FileError, listed
from feta.files import huggingface, sparse_file
from feta.files.huggingface import weight_files
from feta.files.network import load
from feta.files.pickles import SUFFIXES, is_pickle, refusal


def check_folder(folder: Path) -> None:
    """Everything that can be refused before any work, and before transformers is needed."""
    pickles = [path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
    if pickles and (folder / "config.json").exists() and not weight_files(folder):
        name = pickles[0] if len(pickles) == 1 else folder / "pytorch_model.bin"
        to = folder / "model.safetensors"
        raise refusal(f"weights in {folder}", name, typed(), to=to)
    huggingface.configuration(folder)


def open_folder(folder: Path) -> nn.Module:
    """The model in a folder, in its own class and dtype. Raises ModelError where its weights are not all there."""
    check_folder(folder)
    model, unused = huggingface.read(folder)
    if unused:
        name = type(model).__name__
        err().print(f"feta: warning: {name} does not use {listed(unused)}: these weights are left out of the result")
    return _without_cache(model)


def network_of(path: Path) -> Mapping[str, Any]:
    """What a file or a folder says of its network, for `feta info`; of a model of transformers its class."""
    metadata = {} if path.is_dir() else sparse_file.metadata_of(path)
    config: Any = huggingface.configuration(path) if path.is_dir() else metadata.get("transformers")
    if metadata.get("network") or not isinstance(config, Mapping):
        return metadata.get("network") or {}
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else config.get("model_type", "a model")
    return {"specification": f"{name} of transformers"}


def is_described(path: Path) -> bool:
    """Whether it is a file of feta.save that says how its model of transformers is made."""
    return path.is_file() and not is_pickle(path) and bool(sparse_file.metadata_of(path).get("transformers"))


def open_file(path: Path) -> nn.Module:
    """The model of such a file."""
    return _without_cache(load(path).model)


def _without_cache(model: nn.Module) -> nn.Module:
    config: Any = model.config
    if hasattr(config, "use_cache"):
        config.use_cache = False  # keys and values of past tokens are of no use here
    return model


def class_name(folder: Path) -> str:
    """The class of transformers that a folder is loaded in."""
    name: str = huggingface.class_of(
        huggingface.quiet_transformers(folder), huggingface.configuration(folder)
    ).__name__
    return name


def check_output(folder: Path, output: Path) -> None:
    """Refuse an output folder that exists with something in it, or that lies in the input."""
    inside = folder.resolve() in (output.resolve(), *output.resolve().parents)
    if inside:
        raise FileError(f"--output must be a new folder outside of the input, got {output}")
    if output.is_dir() and (count := len(list(output.iterdir()))):
        cure = "choose another name: --force replaces files, not folders"
        raise FileError(f"--output must be a new or an empty folder, got {output} with {count} files; {cure}")
