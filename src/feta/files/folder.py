"""Models of transformers into Hugging Face folders, in one of three layouts:

"dense"                as transformers has it: every program that reads such folders reads it
"small"                the weights in one file of feta's own, model.feta.safetensors, for feta.load
"compressed-tensors"   values and bit masks, named in config.json, for programs that know that format
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from feta.errors import ConfigError, FileError, one_line
from feta.files import sparse_file
from feta.files.atomic import replacing
from feta.files.card import with_pruning
from feta.files.huggingface import KIND, SMALL, description, quiet_transformers, weight_files
from feta.files.lossy import Smaller
from feta.files.plain import object_from_json, text_of
from feta.sparsity import measured

# What is not copied from one folder to another: weights of any program, and code.
LEFT = (".safetensors", ".h5", ".msgpack", ".onnx", ".gguf", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin", ".py")


def write(
    model: nn.Module,
    folder: Path,
    *,
    source: Path | None = None,
    layout: sparse_file.Layout | None = None,
    dtype: Smaller | None = None,
    pruning: Mapping[str, Any] | None = None,
) -> int:
    """The model as a folder; the bytes of its weights.

    It is written beside its place and renamed, so that it appears whole or not at all.

    source: a folder whose configuration, tokenizer and other texts come along. By default the one it was loaded from,
        but for its configuration: that is the model's own.
    pruning: what is known of how it was pruned, for the card.
    """
    if dtype is not None and layout != "small":
        raise ConfigError(
            f"save.dtype must go with layout='small' for a folder, got {dtype} with {layout or 'dense'}"
        )
    if folder.is_dir() and (count := len(list(folder.iterdir()))):
        raise FileError(f"{folder} must be a new or an empty folder, got one with {count} files; choose another name")
    quiet_transformers(folder)  # which is there, since the model is its own; this keeps it quiet
    saved: Any = model
    came_from = Path(str(getattr(saved.config, "_name_or_path", "") or "?"))
    with replacing(folder, folder=True) as part:
        try:
            saved.save_pretrained(part)
        except SafetensorError as error:  # such as a full disk, which is no OSError there
            raise FileError(f"cannot write {folder}: {one_line(error)}") from error
        if source is not None or (came_from / "config.json").exists():
            _copy(source or came_from, part, over=source is not None)
        _set_masked(part / "config.json", saved.state_dict() if layout == KIND else None)
        if layout not in (None, "dense"):
            _smaller(saved, part, layout, dtype)
        _write_card(model, part / "README.md", pruning)
    return sum(path.stat().st_size for path in weight_files(folder))


def _copy(source: Path, folder: Path, *, over: bool) -> None:
    """What else lies in a folder; `over` what was made of the model too."""
    for path in source.iterdir():
        wanted = path.is_file() and path.suffix not in LEFT and ".index." not in path.name
        if wanted and (over or not (folder / path.name).exists()):
            shutil.copyfile(path, folder / path.name)


def _smaller(model: Any, folder: Path, layout: sparse_file.Layout, dtype: Smaller | None) -> None:
    """Put the weights in place of the dense ones that save_pretrained wrote."""
    content = sparse_file.encode(model.state_dict(), description(model), layout=layout, dtype=dtype)
    for path in (*weight_files(folder), folder / "model.safetensors.index.json"):
        path.unlink(missing_ok=True)
    (folder / (SMALL if layout == "small" else "model.safetensors")).write_bytes(content)


def _set_masked(path: Path, tensors: Mapping[str, Tensor] | None) -> None:
    """Say in config.json that the weights are values and bit masks; None: that they are not."""
    config = object_from_json(text_of(path), finite=False)
    if tensors is not None:
        weights = [tensor for tensor in tensors.values() if tensor.ndim == 2]
        share = sum(measured(w) * w.numel() for w in weights) / max(1, sum(w.numel() for w in weights))
        sparse = {"format": "sparse-bitmask", "global_sparsity": share, "sparsity_structure": "unstructured"}
        sparse |= {"targets": ["Linear"], "ignore": []}
        config["quantization_config"] = {"quant_method": KIND, "sparsity_config": sparse}
    elif config.pop("quantization_config", None) is None:
        return  # the source's own configuration stays as it is, byte by byte
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_card(model: nn.Module, card: Path, pruning: Mapping[str, Any] | None) -> None:
    weights = {name: tensor for name, tensor in model.state_dict().items() if tensor.ndim >= 2}
    shares = {name: share for name, tensor in weights.items() if (share := measured(tensor)) > 0}
    if shares:
        text = card.read_text(encoding="utf-8") if card.exists() else ""
        card.write_text(with_pruning(text, shares, pruning or {}), encoding="utf-8")
