"""Arrays as model inputs: from .npy, .npz and safetensors files, checked and in the type a model takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feta.calibration.inputs import drawn
from feta.cli.own_options import OwnOptions
from feta.errors import ConfigError, DataError, FileError, one_line
from feta.files import sparse_file

LABELS = frozenset({"y", "label", "labels", "target", "targets"})
Arrays = dict[str, Tensor]


def read_arrays(
    path: Path, options: OwnOptions, samples: int | None, seed: int, window: int | None = None
) -> tuple[Arrays, str]:
    """The arrays of a file without labels, by name, at most `samples` rows; and what they are in words.

    window: of how many tokens a sample is, where they are one row and --length is not given.
    """
    found = dict(sparse_file.read(path)[0]) if path.suffix == ".safetensors" else _of_numpy(path)
    kept = {name: array for name, array in found.items() if name.lower() not in LABELS}
    if not kept:
        raise DataError(f"{path} must hold inputs for the model, got {sorted(found) or 'no array'}: labels alone")
    what = "samples"
    if options.length is not None or (window is not None and _is_row(kept)):
        tokens = _windows(kept, path, options.length or min(window, *next(iter(kept.values())).shape))
        kept, what = {"input_ids": tokens}, f"windows of {tokens.shape[1]} tokens"
    sizes = {name: shape_of(array.shape) for name, array in kept.items()}
    counts = {array.shape[:1] for array in kept.values()}
    if len(counts) > 1 or counts <= {(), (0,)}:
        raise DataError(f"{path}: arrays must have one row per sample, the same number in each, got {told(sizes)}")
    n = int(next(iter(kept.values())).shape[0])
    rows = drawn(n, samples, seed)
    # NumPy takes a tensor of one index for a plain number, and the rows would lose a dimension.
    chosen = {name: array[rows] if isinstance(array, Tensor) else array[rows.numpy()] for name, array in kept.items()}
    scaled = () if options.scale is None else _scaled(chosen, path)
    scales = {name: options.scale if name in scaled else None for name in chosen}
    inputs = {name: _ready(array, name, path, scales[name]) for name, array in chosen.items()}
    _normalise(inputs, options, path)
    return inputs, f"{len(rows)} of {n} {what} of {path}" if len(rows) < n else f"{n} {what} of {path}"


def _is_row(arrays: dict[str, Any]) -> bool:
    """Whether there is one row of whole numbers and nothing else."""
    first = next(iter(arrays.values()))
    return len(arrays) == 1 and first.ndim == 1 and len(first) > 0 and "int" in str(first.dtype)


def _windows(arrays: dict[str, Any], path: Path, length: int) -> Any:
    """One long row of tokens, cut into windows (samples, length)."""
    tokens = next(iter(arrays.values()))
    if not _is_row(arrays) or tokens.shape[0] < length:
        sizes = {name: shape_of(array.shape) for name, array in arrays.items()}
        raise ConfigError(
            f"--length must go with text or one row of {length} tokens or more, got {path} with {told(sizes)} "
            f"of {tokens.dtype}"
        )
    return tokens[: tokens.shape[0] // length * length].reshape(-1, length)


def shape_of(sizes: Any) -> str:
    return "×".join(map(str, sizes)) or "one number"


def told(sizes: Mapping[str, str]) -> str:
    """x of 0×8 and mask of 3×8; of an array without a name, as .npy has it, its shape."""
    if list(sizes) == ["x"]:
        return sizes["x"]
    return " and ".join(f"{name} of {size}" for name, size in sizes.items())


def numbers(text: str, name: str) -> Tensor:
    """0.5 or 0.49,0.48,0.45. Raises ConfigError for anything else, and for deviations that are not above 0."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not np.isfinite(found).all() or (name == "--std" and min(found) <= 0):
        kind = "numbers > 0" if name == "--std" else "numbers"
        raise ConfigError(f"{name} must be {kind} separated by commas, got '{text}'")
    return torch.tensor(found)


def check_normalisation(options: OwnOptions, channels: int | None = None) -> None:
    """Refuse numbers that cannot be, and as many as images of so many channels cannot have."""
    for name, text in (("--mean", options.mean), ("--std", options.std)):
        count = 1 if text is None else len(numbers(text, name))
        if channels is not None and count not in (1, channels):
            raise ConfigError(f"{name} must be one number or one per channel, got {count} for {channels} channels")


def normalised(images: Tensor, options: OwnOptions) -> Tensor:
    """(images − mean) / std, channel by channel; images are samples × channels × height × width."""
    check_normalisation(options, images.shape[1])
    if options.mean is not None:
        images = images - numbers(options.mean, "--mean")[:, None, None]
    return images if options.std is None else images / numbers(options.std, "--std")[:, None, None]


def _normalise(inputs: Arrays, options: OwnOptions, path: Path) -> None:
    if options.mean is None and options.std is None:
        return
    images = [name for name, array in inputs.items() if array.ndim == 4 and array.is_floating_point()]
    if not images:
        sizes = {name: shape_of(array.shape) for name, array in inputs.items()}
        raise ConfigError(
            f"--mean and --std must go with images (samples × channels × height × width), got {path} with "
            f"{told(sizes)}"
        )
    for name in images:
        inputs[name] = normalised(inputs[name], options)


def _scaled(arrays: Mapping[str, Any], path: Path) -> list[str]:
    """What --scale divides: bytes, or else whole numbers that are alone; others are tokens and masks."""
    bytes_ = [name for name, array in arrays.items() if str(array.dtype).endswith("uint8")]
    whole = [name for name, array in arrays.items() if "int" in str(array.dtype)]
    if not bytes_ and not (len(arrays) == 1 and whole):
        kinds = ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
        raise ConfigError(f"--scale must go with bytes, or one array of whole numbers, got {path} with {kinds}")
    return bytes_ or whole


def _ready(array: Any, name: str, path: Path, scale: float | None) -> Tensor:
    """An array as the model takes it: whole numbers as int64 or divided by a scale, others as they are."""
    tensor = array if isinstance(array, Tensor) else _tensor(array, name, path)
    if scale is not None:
        return tensor.float() / scale
    if tensor.dtype == torch.uint8:
        raise DataError(
            f"{path}: '{name}' must be numbers the model takes, got bytes (uint8); for images give --scale 255 "
            "to divide by 255, tokens and masks must be saved as int64 or bool"
        )
    if tensor.is_complex():
        raise DataError(f"{path}: '{name}' must hold real numbers, got {tensor.dtype}")
    if not tensor.is_floating_point():
        return tensor if tensor.dtype == torch.bool else tensor.long()
    tensor = tensor if tensor.element_size() in (2, 4) else tensor.float()
    odd = int((~tensor.isfinite()).sum())
    if odd:
        raise DataError(f"{path}: '{name}' must be finite, got {odd} NaN or infinite of {tensor.numel()}")
    return tensor


def _tensor(array: Any, name: str, path: Path) -> Tensor:
    if array.dtype.kind not in "biufc":
        raise DataError(f"{path}: '{name}' must be an array of numbers, got {array.dtype}")
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    elif array.dtype.kind == "f" and array.dtype.itemsize > 4:
        with np.errstate(over="ignore"):  # 1e300 becomes infinite, which is refused later
            array = array.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))


def _of_numpy(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:  # numpy leaves a file open that it cannot read
            opened = np.load(file, allow_pickle=False)
            if isinstance(opened, np.ndarray):
                return {"x": opened}
            with opened:
                return {name: opened[name] for name in opened.files}
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # numpy lets through what zip, deflate and Python's own parser raise
        raise FileError(
            f"{path} must be a whole .npy or .npz file of numbers, got one that cannot be read without pickle: "
            f"{one_line(error)}"
        ) from None
