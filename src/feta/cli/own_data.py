"""The user's data on the command line: which kind it is, and how it becomes batches of model inputs."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.model import call, evaluating
from feta.calibration.recording import cure_of
from feta.cli.arrays import Arrays, check_normalisation, read_arrays, shape_of, told
from feta.cli.images import read_images
from feta.cli.own_options import OwnOptions
from feta.cli.text import LENGTH, find_tokenizer, read_text
from feta.errors import ConfigError, DataError, FileError, one_line

Batch = Tensor | dict[str, Tensor]
ARRAYS, TEXT = (".npz", ".npy", ".safetensors"), (".jsonl", ".txt")
# Which options go with which kind of data.
KINDS = {
    "arrays": ("scale", "mean", "std", "length"),
    "a folder of images": ("size", "channels", "mean", "std"),
    "text": ("tokenizer", "length"),
}
CURES = {"arrays": "", "a folder of images": "; see --size and --channels", "text": "; see --length and --tokenizer"}
FLOATS, TOKENS = 2**22, 4096  # numbers in a batch: what a model makes of them is many times larger


def check_options(options: OwnOptions) -> Path | None:
    """The data's place, after checks that need no reading. Raises ConfigError or FileError."""
    given = [name for names in KINDS.values() for name in names if getattr(options, name) is not None]
    if options.data is None:
        if given:
            raise ConfigError(f"--{given[0]} must go with --data, got it without")
        return None
    path = Path(options.data)
    kind = _kind(path)
    for name in given:
        if name not in KINDS[kind]:
            home = " or ".join(other for other, names in KINDS.items() if name in names)
            raise ConfigError(f"--{name} must go with {home}, got --data {path}, which is {kind}")
    if options.length is not None and options.length < 1:
        raise ConfigError(f"--length must be >= 1, got {options.length}")
    if options.scale is not None and not 0 < options.scale < float("inf"):
        raise ConfigError(f"--scale must be a number > 0, got {options.scale}")
    check_normalisation(options)
    return path


def read_batches(
    path: Path,
    model: nn.Module,
    options: OwnOptions,
    *,
    samples: int | None,
    seed: int,
    batch_size: int | None,
    folder: Path | None = None,
) -> tuple[list[Batch], str]:
    """Batches of inputs that the model is known to accept, and what they are in words.

    folder: the model's own, where it came in one; its tokenizer is the one that fits.
    """
    kind = _kind(path)
    if kind == "arrays":
        window = longest(model) if positions(model) else None
        arrays, note = read_arrays(path, options, samples, seed, window)
    elif kind == "text":
        tokenizer = find_tokenizer(options.tokenizer, *([folder] if folder else []), path.parent)
        ids, note = read_text(path, tokenizer, options.length or longest(model), samples, seed)
        arrays = {"input_ids": ids}
    else:
        images, note = read_images(path, options, model, samples, seed)
        arrays = {"pixel_values": images}
    batches = _batches(arrays, model, batch_size, path)
    _try(model, batches[0], path, CURES[kind])
    return batches, note


def longest(model: nn.Module) -> int:
    """The default length of a window: what the model's configuration allows, where it has one."""
    return min(LENGTH, positions(model) or LENGTH)


def positions(model: nn.Module) -> int | None:
    """How many tokens a language model of transformers takes at the most, if its configuration says so."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder of images"
    if path.suffix in ARRAYS or path.suffix in TEXT:
        if not path.exists():
            raise FileError(f"cannot read {path}: No such file or directory")
        return "arrays" if path.suffix in ARRAYS else "text"
    known = ", ".join((*ARRAYS, *TEXT))
    raise ConfigError(f"--data must be a file ({known}) or a folder of images, got {path}")


def _batches(arrays: Arrays, model: nn.Module, batch_size: int | None, path: Path) -> list[Batch]:
    """One array is the model's first argument, unless it bears the name of another; several go by their names."""
    parameters = inspect.signature(model.forward).parameters
    by_name = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in arrays if name not in by_name]
    first = next(iter(arrays.values()))
    if len(arrays) > 1 and unknown and not anything:
        raise DataError(
            f"{path}: arrays must bear the names of the model's arguments, {', '.join(by_name)}, "
            f"got {', '.join(arrays)}"
        )
    size = batch_size or min(_batch_size(array) for array in arrays.values())
    if len(arrays) == 1 and (unknown or by_name[:1] == list(arrays)):
        return list(first.split(size))
    parts = {name: array.split(size) for name, array in arrays.items()}
    return [{name: part[i] for name, part in parts.items()} for i in range(-(-len(first) // size))]


def _batch_size(array: Tensor) -> int:
    budget = FLOATS if array.is_floating_point() else TOKENS
    return max(1, min(1000, budget // max(1, array[0].numel())))


@torch.no_grad()
def _try(model: nn.Module, batch: Batch, path: Path, cure: str) -> None:
    """Run one sample, so that data that does not fit the model is said before the work and in one line."""
    sample: Any = {name: part[:1] for name, part in batch.items()} if isinstance(batch, Mapping) else batch[:1]
    parts = sample if isinstance(sample, dict) else {"x": sample}
    shapes = told({name: shape_of(part.shape) for name, part in parts.items()})
    try:
        with evaluating(model):
            call(model, sample)
    except Exception as error:  # the user's own code runs here
        if isinstance(sample, Tensor) and sample.ndim == 1 and not sample.is_floating_point():
            cure = "; for one row of tokens give --length, the number of tokens per sample"
        cure = cure or cure_of(list(parts.values()), str(error))
        raise DataError(f"{path}: the model must run on one sample, {shapes}, got {one_line(error)}{cure}") from None
