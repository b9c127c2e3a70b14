"""Models in folders as Hugging Face writes them, through transformers: config.json and safetensors, in and out.

Neither pickles nor code that comes with a model are ever loaded, and nothing is fetched from anywhere.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from feta.cli.console import err
from feta.cli.optional import listed, needed, one_line
from feta.cli.pickles import SUFFIXES, refusal
from feta.errors import FileError, ModelError

WEIGHTS = (".safetensors", ".h5", ".msgpack", ".onnx", ".gguf", *SUFFIXES)


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def check_folder(folder: Path) -> dict[str, Any]:
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
        pickles = [path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
        if pickles:
            name = pickles[0] if len(pickles) == 1 else folder / "pytorch_model.bin"
            to = folder / "model.safetensors"
            raise refusal(name, f"weights in {folder}", lambda _: f"feta prune {folder} …", to=to)
        raise FileError(f"{folder} must hold model.safetensors or its parts, got no safetensors file")
    if config.get("quantization_config") is not None:
        raise ModelError(f"{folder} must hold float weights, got a quantised model; prune the original of it")
    return config


def open_folder(folder: Path) -> nn.Module:
    """The model in a folder, in its own class and dtype. Raises ModelError where its weights are not all there."""
    config = check_folder(folder)
    transformers = needed("transformers", f"{folder}: a Hugging Face folder", "transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
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
    if unused := sorted(loaded["unexpected_keys"]):
        name = type(model).__name__
        err().print(f"feta: warning: {name} does not use {listed(unused)}: these weights are left out of the result")
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # keys and values of past tokens are of no use here
    found: nn.Module = model
    return found


def _class(transformers: Any, config: dict[str, Any]) -> Any:
    """The class a model was saved in, if it is one of transformers' own: it alone holds every weight in the file."""
    names = config.get("architectures") or [""]
    found = getattr(transformers, str(names[0]), None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    return transformers.AutoModelForCausalLM if "CausalLM" in str(names[0]) else transformers.AutoModel


def check_output(folder: Path, output: Path) -> None:
    """Refuse an output folder that exists with something in it, or that lies in the input."""
    inside = folder.resolve() in (output.resolve(), *output.resolve().parents)
    if inside:
        raise FileError(f"--output must be a new folder outside of the input, got {output}")
    if output.is_dir() and any(output.iterdir()):
        raise FileError(
            f"--output must be a new or an empty folder, got {output} with {len(list(output.iterdir()))} files"
        )


def write_folder(model: nn.Module, source: Path, output: Path) -> int:
    """The model as a folder that transformers loads, with the source's configuration and tokenizer; its bytes.

    It is written beside its place and renamed, so that it appears whole or not at all.
    """
    saved: Any = model
    output = output.resolve()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", f".{output.name}.", output.parent, ignore_cleanup_errors=True) as place:
            part = Path(place) / output.name
            saved.save_pretrained(part)
            for path in source.iterdir():
                if path.is_file() and path.suffix not in (*WEIGHTS, ".py") and ".index." not in path.name:
                    shutil.copyfile(path, part / path.name)
            os.replace(part, output)
    except OSError as error:
        raise FileError(f"cannot write {output}: {error.strerror or error}") from error
    return sum(path.stat().st_size for path in weight_files(output))
