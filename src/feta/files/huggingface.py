"""Models of transformers: out of folders with config.json and safetensors, and out of files that know their model.

Neither pickles nor code that comes with a model are ever loaded, and nothing is fetched from anywhere.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from feta.errors import FileError, ModelError, listed, one_line
from feta.files import sparse_file
from feta.plugins import needed

SMALL = "model.feta.safetensors"
KIND = "compressed-tensors"


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
    if config.get("quantization_config") is not None and not is_masked(config):
        raise ModelError(f"{folder} must hold float weights, got a quantised model; prune the original of it")
    return config


def read(folder: Path) -> tuple[nn.Module, list[str]]:
    """The model in a folder, in its own class and dtype, and the weights it does not use.

    Raises ModelError where its weights are not all there.
    """
    config = configuration(folder)
    if (folder / SMALL).exists() or is_masked(config):
        config.pop("quantization_config", None)
        return rebuild(config, tensors_of(folder), folder), []
    transformers = quiet_transformers(folder)
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
    transformers = quiet_transformers(where)
    try:
        made = transformers.AutoConfig.for_model(**config)
        model = _class(transformers, dict(config))(made)
        model.load_state_dict(dict(tensors), assign=True)  # the weights bring their own dtype
        model.tie_weights()
        model.config._name_or_path = str(where.resolve())
    except Exception as error:  # transformers raises all kinds of errors
        raise ModelError(f"{where} must be a model that transformers can build, got {one_line(error)}") from None
    return cast(nn.Module, model.eval())


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, whatever their layout."""
    return {name: tensor for path in weight_files(folder) for name, tensor in sparse_file.read(path)[0].items()}


def description(model: nn.Module) -> dict[str, Any]:
    """What a file's metadata holds to rebuild a model of transformers; nothing for any other model."""
    if not is_pretrained(model):
        return {}
    owner: Any = model
    # Through text: a configuration may hold objects, such as dtypes, that only its own writer knows.
    config = json.loads(owner.config.to_json_string(use_diff=False))
    config.pop("_name_or_path", None)  # where it was is nobody's business
    return {"transformers": config | {"architectures": [type(model).__name__]}}


def is_masked(config: Mapping[str, Any]) -> bool:
    """Whether the weights are sparse as compressed-tensors has it, and not quantised."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, dict) or quantised.get("quant_method") != KIND or quantised.get("config_groups"):
        return False
    return (quantised.get("sparsity_config") or {}).get("format") == "sparse-bitmask"


def quiet_transformers(where: Path) -> Any:
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
