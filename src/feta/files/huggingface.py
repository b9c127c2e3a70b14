"""Models of transformers: out of folders with config.json and safetensors, and out of files that know their model.

Neither pickles nor code that comes with a model are ever loaded, and nothing is fetched from anywhere.
"""

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from feta.errors import FileError, ModelError, listed, one_line
from feta.files import sparse_file
from feta.files.plain import object_from_json, shortened, tamed, text_of
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
        config = object_from_json(text_of(folder / "config.json"), finite=False)
    except OSError:
        raise FileError(
            f"{folder} must be a Hugging Face folder, got one without config.json; a model in your own code is named "
            "as module:factory"
        ) from None
    except ValueError as error:
        raise FileError(f"{folder / 'config.json'} must be a JSON object, got {tamed(error)}") from None
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
        model, loaded = class_of(transformers, config).from_pretrained(place, output_loading_info=True, **safe)
    except Exception as error:  # transformers raises all kinds of errors
        raise ModelError(f"{folder} must be a model that transformers can load, got {one_line(error)}") from None
    if missing := sorted(loaded["missing_keys"]) + sorted(str(key[0]) for key in loaded["mismatched_keys"]):
        raise ModelError(
            f"{folder} must hold all weights of {type(model).__name__}, got none that fit {listed(missing)}"
        )
    return cast(nn.Module, model), sorted(loaded["unexpected_keys"])


def rebuild(config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: Path) -> nn.Module:
    """A model from its configuration and its weights, without a folder. Raises ModelError where they do not fit."""
    if not isinstance(config, Mapping):
        raise FileError(f"{where}: the configuration must be an object, got {shortened(config)}")
    transformers = quiet_transformers(where)
    _check_layers(config, len(tensors), where)
    try:
        made = transformers.AutoConfig.for_model(**config)
        with torch.device("meta"):  # which takes no memory: a few words in a file may name a model of any size
            shapes = class_of(transformers, dict(config))(copy.deepcopy(made)).state_dict()
        odd = [name for name in shapes if name in tensors and shapes[name].shape != tensors[name].shape]
        if odd or not set(shapes) & set(tensors):
            raise RuntimeError(f"other shapes or names in {listed(odd or sorted(shapes))}")
        model = class_of(transformers, dict(config))(made)
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
    sparse = quantised.get("sparsity_config")
    return isinstance(sparse, dict) and sparse.get("format") == "sparse-bitmask"


def _check_layers(config: Mapping[str, Any], most: int, where: Path) -> None:
    """Refuse more layers than there are tensors: even layers without memory take their time to be made."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_layers(value, most, where)
        elif re.search(r"layers?$|depths?$", str(key)) and isinstance(value, int) and value > most:
            raise ModelError(f"{where} must have a tensor or more per layer, got {most} and {key} = {value}")


def quiet_transformers(where: Path) -> Any:
    transformers = needed("transformers", f"{where}: a Hugging Face folder", "transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def class_of(transformers: Any, config: Mapping[str, Any]) -> Any:
    """The class a model was saved in, if it is one of transformers' own: it alone holds every weight in the file."""
    names = config.get("architectures")
    names = names if isinstance(names, list) and names else [""]
    found = getattr(transformers, str(names[0]), None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    return transformers.AutoModelForCausalLM if "CausalLM" in str(names[0]) else transformers.AutoModel
