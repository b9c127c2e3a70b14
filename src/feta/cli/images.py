"""A folder of images as model inputs, through pillow."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feta.cli.arrays import check_normalisation, normalised
from feta.cli.console import err, progress_bar
from feta.cli.own_options import OwnOptions
from feta.errors import ConfigError, DataError, listed
from feta.plugins import needed

MOST = 2000  # images, unless --samples says otherwise: more cost time and change little


def read_images(
    folder: Path, options: OwnOptions, model: nn.Module, samples: int | None, seed: int
) -> tuple[Tensor, str]:
    """Images of a folder and of those in it: (samples, channels, height, width); and what they are in words.

    Files that are no images are left out, with a warning that names them.
    """
    channels = int(options.channels or (1 if _wanted(model) == 1 else 3))
    check_normalisation(options, channels)
    needed("PIL", f"{folder}: a folder of images", "pillow")
    size = None if options.size is None else parse_size(options.size)
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and not any(p[0] == "." for p in _below(path, folder))
    )
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    wanted, images, unread = samples or MOST, dict[str, Tensor](), list[str]()
    with progress_bar("reading images", min(wanted, len(files))) as update:
        for index in order:
            if len(images) == wanted:
                break
            name = os.path.join(*_below(files[index], folder))
            try:
                images[name] = _pixels(files[index], channels, size)
            except Exception:  # pillow's decoders raise all kinds of errors on damaged files
                unread.append(name)
            update(completed=len(images))
    if unread:
        what = f"{len(unread)} of {len(unread) + len(images)} files in {folder}"
        err().print(
            f"feta: warning: {what} are no images that can be read and are left out: {listed(sorted(unread))}"
        )
    if not images:
        raise DataError(f"{folder} must hold images, got {len(files)} files and none that can be read")
    sizes = {tuple(image.shape[1:]): name for name, image in images.items()}
    if len(sizes) > 1:
        shown = ", ".join(f"{h}x{w} ('{name}')" for (h, w), name in list(sizes.items())[:2])
        raise ConfigError(f"{folder}: images must be of one size, got {shown}; give --size HEIGHTxWIDTH")
    stacked = torch.stack([images[name] for name in sorted(images)])
    return normalised(stacked, options), f"{len(images)} of {len(files)} images of {folder}"


def parse_size(text: str) -> tuple[int, int]:
    """224x224, or 224 for a square, as (height, width)."""
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise ConfigError(f"--size must be HEIGHTxWIDTH in pixels, such as 224x224, got '{text}'")
    return int(parts[0]), int(parts[-1])


def _below(path: Path, folder: Path) -> tuple[str, ...]:
    return path.relative_to(folder).parts


def _wanted(model: nn.Module) -> int | None:
    """How many channels the model's first convolution takes."""
    return next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), None)


def _pixels(path: Path, channels: int, size: tuple[int, int] | None) -> Tensor:
    """One image in [0, 1]: upright, in colour or grey, scaled to cover `size` and cut at the centre."""
    image_of: Any = needed("PIL.Image", str(path), "pillow")
    change: Any = needed("PIL.ImageOps", str(path), "pillow")
    with image_of.open(path) as opened:
        if opened.mode[0] in "IF":  # 16 bits and more, which pillow would clip without a word
            raise DataError(f"{path} must have 8 bits per channel, got mode {opened.mode}")
        image = change.exif_transpose(opened).convert("RGB" if channels == 3 else "L")
    if size is not None:
        image = change.fit(image, (size[1], size[0]))
    pixels = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, channels)
    return torch.from_numpy(pixels / 255).permute(2, 0, 1).contiguous()
