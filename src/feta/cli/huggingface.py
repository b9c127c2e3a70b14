"""Hugging Face folders on the command line (files.huggingface), with the commands that cure what is wrong."""

from pathlib import Path
from typing import Any

from torch import nn

from feta.cli.console import err
from feta.cli.pickles import SUFFIXES, refusal
from feta.errors import FileError, listed
from feta.files import huggingface
from feta.files.huggingface import weight_files


def check_folder(folder: Path) -> None:
    """Everything that can be refused before any work, and before transformers is needed."""
    pickles = [path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
    if pickles and (folder / "config.json").exists() and not weight_files(folder):
        name = pickles[0] if len(pickles) == 1 else folder / "pytorch_model.bin"
        to = folder / "model.safetensors"
        raise refusal(name, f"weights in {folder}", lambda _: f"feta prune {folder} …", to=to)
    huggingface.configuration(folder)


def open_folder(folder: Path) -> nn.Module:
    """The model in a folder, in its own class and dtype. Raises ModelError where its weights are not all there."""
    check_folder(folder)
    model, unused = huggingface.read(folder)
    if unused:
        name = type(model).__name__
        err().print(f"feta: warning: {name} does not use {listed(unused)}: these weights are left out of the result")
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
    if output.is_dir() and any(output.iterdir()):
        raise FileError(
            f"--output must be a new or an empty folder, got {output} with {len(list(output.iterdir()))} files"
        )
