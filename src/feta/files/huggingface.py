"""Models of transformers: folders with config.json and safetensors, in and out, and files that know their model.

Neither pickles nor code that comes with a model are ever loaded, and nothing is fetched from anywhere.

A folder is written in one of three layouts:
    "dense"                as transformers has it: every program that reads such folders reads it
    "small"                the weights in one file of feta's own, model.feta.safetensors, for feta.load
    "compressed-tensors"   values and bit masks, named in config.json, for programs that know that format
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from feta.errors import ConfigError, FileError, ModelError, listed, one_line
from feta.files import sparse_file
from feta.files.card import with_pruning
from feta.files.lossy import Smaller
from feta.plugins import needed
from feta.sparsity import measured

SMALL = "model.feta.safetensors"
KIND = "compressed-tensors"
# What is not copied from one folder to another: weights of any program, and code.
LEFT = (".safetensors", ".h5", ".msgpack", ".onnx", ".gguf", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin", ".py")


def is_pretrained(model: nn.Module) -> bool:
    """Whether it is a model of transformers, which knows how to write its folder."""
    return callable(getattr(model, "save_pretrained", None)) and hasattr(getattr(model, "config", None), "to_dict")


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def configuration(folder: Path) -> dict[str, Any]:
    """A folder's configuration, after every check that needs no transformers."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        raise FileError(
            f"{folder} must be a Hugging Face folder, got one without config.json; a model in your own code is named "
            "as module:factory"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{folder / 'config.json'} must be JSON, got {one_line(error)}") from None
    if not isinstance(config, dict):
        raise FileError(f"{folder / 'config.json'} must be a JSON object, got a {type(config).__name__}")
    if not weight_files(folder):
        raise FileError(f"{folder} must hold model.safetensors or its parts, got no safetensors file")
    if config.get("quantization_config") is not None and not _is_masked(config):
        raise ModelError(f"{folder} must hold float weights, got a quantised model; prune the original of it")
    return config


def read(folder: Path) -> tuple[nn.Module, list[str]]:
    """The model in a folder, in its own class and dtype, and the weights it does not use.

    Raises ModelError where its weights are not all there.
    """
    config = configuration(folder)
    if (folder / SMALL).exists() or _is_masked(config):
        config.pop("quantization_config", None)
        return rebuild(config, tensors_of(folder), folder), []
    transformers = _transformers(folder)
    dtype = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    safe = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False, dtype: "auto"}
    try:
        # An absolute path can never be taken for a name on the hub.
        place = str(folder.resolve())
        model, loaded = _class(transformers, config).from_pretrained(place, output_loading_info=True, **safe)
    except Exception as error:  # transformers raises all kinds of errors
        raise ModelError(f"{folder} must be a model that transformers can load, got {one_line(error)}") from None
    if missing := sorted(loaded["missing_keys"]) + sorted(str(key[0]) for key in loaded["mismatched_keys"]):
        raise ModelError(
            f"{folder} must hold all weights of {type(model).__name__}, got none that fit {listed(missing)}"
        )
    return cast(nn.Module, model), sorted(loaded["unexpected_keys"])


def rebuild(config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: Path) -> nn.Module:
    """A model from its configuration and its weights, without a folder. Raises ModelError where they do not fit."""
    transformers = _transformers(where)
    try:
        made = transformers.AutoConfig.for_model(**config)
        model = _class(transformers, dict(config))(made)
        model.load_state_dict(dict(tensors), assign=True)  # the weights bring their own dtype
        model.tie_weights()
        model.config._name_or_path = str(where.resolve())
    except Exception as error:  # transformers raises all kinds of errors
        raise ModelError(f"{where} must be a model that transformers can build, got {one_line(error)}") from None
    return cast(nn.Module, model.eval())


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

    source: a folder whose configuration, tokenizer and other texts come along; by default the one it was loaded from.
    pruning: what is known of how it was pruned, for the card.
    """
    if dtype is not None and layout != "small":
        raise ConfigError(
            f"save.dtype must go with layout='small' for a folder, got {dtype} with {layout or 'dense'}"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise FileError(
            f"{folder} must be a new or an empty folder, got one with {len(list(folder.iterdir()))} files"
        )
    _transformers(folder)  # which is there, since the model is its own; this keeps it quiet
    saved: Any = model
    keep_config = source is not None
    came_from = Path(str(getattr(saved.config, "_name_or_path", "") or "?"))
    source = source or (came_from if (came_from / "config.json").exists() else None)
    target = folder.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", f".{target.name}.", target.parent, ignore_cleanup_errors=True) as place:
            part = Path(place) / target.name
            saved.save_pretrained(part)
            for path in source.iterdir() if source else ():
                made = (part / path.name).exists() and not keep_config
                if path.is_file() and path.suffix not in LEFT and ".index." not in path.name and not made:
                    shutil.copyfile(path, part / path.name)
            _set_masked(part / "config.json", saved.state_dict() if layout == KIND else None)
            if layout not in (None, "dense"):
                _smaller(saved, part, layout, dtype)
            _write_card(model, part / "README.md", pruning)
            os.replace(part, target)
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
    return sum(path.stat().st_size for path in weight_files(target))


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, whatever their layout."""
    return {name: tensor for path in weight_files(folder) for name, tensor in sparse_file.read(path)[0].items()}


def description(model: nn.Module) -> dict[str, Any]:
    """What a file's metadata holds to rebuild a model of transformers; nothing for any other model."""
    if not is_pretrained(model):
        return {}
    owner: Any = model
    # Through text: a configuration may hold objects, such as dtypes, that only its own writer knows.
    return {
        "transformers": json.loads(owner.config.to_json_string(use_diff=False))
        | {"architectures": [type(model).__name__]}
    }


def _smaller(model: Any, folder: Path, layout: sparse_file.Layout, dtype: Smaller | None) -> None:
    """Put the weights in place of the dense ones that save_pretrained wrote."""
    content = sparse_file.encode(model.state_dict(), description(model), layout=layout, dtype=dtype)
    for path in (*weight_files(folder), folder / "model.safetensors.index.json"):
        path.unlink(missing_ok=True)
    (folder / (SMALL if layout == "small" else "model.safetensors")).write_bytes(content)


def _set_masked(path: Path, tensors: Mapping[str, Tensor] | None) -> None:
    """Say in config.json that the weights are values and bit masks; None: that they are not."""
    config = json.loads(path.read_text(encoding="utf-8"))
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


def _is_masked(config: Mapping[str, Any]) -> bool:
    """Whether the weights are sparse as compressed-tensors has it, and not quantised."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, dict) or quantised.get("quant_method") != KIND or quantised.get("config_groups"):
        return False
    return (quantised.get("sparsity_config") or {}).get("format") == "sparse-bitmask"


def _transformers(where: Path) -> Any:
    transformers = needed("transformers", f"{where}: a Hugging Face folder", "transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _class(transformers: Any, config: Mapping[str, Any]) -> Any:
    """The class a model was saved in, if it is one of transformers' own: it alone holds every weight in the file."""
    names = config.get("architectures") or [""]
    found = getattr(transformers, str(names[0]), None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    return transformers.AutoModelForCausalLM if "CausalLM" in str(names[0]) else transformers.AutoModel
