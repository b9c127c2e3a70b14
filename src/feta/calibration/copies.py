"""Copies of a user's model to work on: hooks, modes and switches never touch the one that is given.

That is also what lets several threads work on one model at once.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.calibration.model import device_of
from feta.errors import ModelError, one_line
from feta.layers import refuse_sparsified


def shell(model: nn.Module) -> nn.Module:
    """Other modules with the same parameters; caches of keys and values are switched off in them."""
    # Other buffers are copied: a model may write to them as it runs. Batch-norms do not in eval mode.
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    statistics = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
    kept = {id(tensor): tensor for tensor in [*model.parameters(), *statistics]}
    found = copied(model, kept)
    for module in found.modules():
        if hasattr(config := getattr(module, "config", None), "use_cache"):
            config.use_cache = False  # type: ignore[union-attr]
    return found.eval()  # they run as they do when the model is used; the user's modules keep their mode


def placed(model: nn.Module, where: torch.device) -> nn.Module:
    """The model on a device: a copy if it is elsewhere, or made in inference mode, whose weights have no slopes."""
    stays = device_of(model) == where and not any(parameter.is_inference() for parameter in model.parameters())
    return model if stays else copied(model).to(where)


def copied(model: nn.Module, kept: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, but for what is kept. Raises ModelError for a model that cannot be worked on."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ModelError("model must be made of plain modules, got TorchScript; give the model it was made from")
    if any(hasattr(module, "_orig_mod") for module in model.modules()):  # compiled anew for each look
        made_from = "the model it was made from (compiled._orig_mod), and compile the result"
        raise ModelError(f"model must be made of plain modules, got one of torch.compile; give {made_from}")
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise ModelError("model must be made of plain modules, got one in nn.DataParallel; give model.module")
    refuse_sparsified(model)
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise ModelError(f"model must have no empty weights, got '{name}' of shape {tuple(parameter.shape)}")
    try:
        return copy.deepcopy(model, kept)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model's own __deepcopy__ may raise anything
        raise ModelError(
            f"model must be one that copy.deepcopy can copy, got{_uncopyable(model)}: {one_line(error)}; take locks, "
            "files and the like off the model, and make weights under torch.nn.utils.prune or an old weight_norm "
            "plain first (prune.remove, remove_weight_norm)"
        ) from error


def _uncopyable(model: nn.Module) -> str:
    """The first attribute of a module that cannot be copied."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            try:
                copy.deepcopy(value if key != "_modules" else None)
            except Exception:
                return f" '{name}.{key}'".replace("'.", "'")
    return ""
