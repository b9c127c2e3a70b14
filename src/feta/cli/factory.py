"""module:factory: a model out of the user's own code, and its weights out of a safetensors file.

The factory is a callable without arguments, an nn.Module class, or an nn.Module object. Only the module that is named
is imported. The current folder is searched first, as `python -m` does, and only while the model is made.
"""

import importlib
import inspect
import sys
import traceback
from pathlib import Path
from typing import Any

from torch import nn

from feta.cli.places import current_folder_first, no_module
from feta.errors import ConfigError, ModelError, one_line, unknown_name


def made(name: str) -> nn.Module:
    """The model that module:factory stands for. Whatever goes wrong in the user's code is one line."""
    module, factory = name.split(":")
    if module.endswith(".py"):
        raise ConfigError(f"model must be module:factory, got '{name}'; write {module.removesuffix('.py')}:{factory}")
    with current_folder_first():
        found = _attribute(_imported(module), module, factory)
        model = found if isinstance(found, nn.Module) else _called(found, name)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name} must give an nn.Module, got a {type(model).__name__}")
    return model


def recipe(name: str, path: Path | str) -> str:
    """How the result is loaded again, as Python code."""
    module, factory = name.split(":")
    parts = factory.split(".")
    made_here = factory if isinstance(sys.modules[module].__dict__.get(parts[0]), nn.Module) else f"{factory}()"
    return f"from {module} import {parts[0]}; model = feta.load_into({made_here}, {str(path)!r}).eval()"


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise no_module(name, error.name) from None
        raise ModelError(f"module '{name}' cannot be imported: {_place(error)}") from None


def _attribute(module: Any, name: str, path: str) -> Any:
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            public = [key for key in dir(found) if not key.startswith("_")]
            place = getattr(module, "__file__", None) or "built into Python"
            raise unknown_name(f"name in module '{name}' ({place})", part, public)
        found = getattr(found, part)
    return found


def _called(found: Any, name: str) -> Any:
    if not callable(found):
        kind = type(found).__name__
        raise ConfigError(f"{name} must be a function without arguments, an nn.Module class or object, got a {kind}")
    try:
        inspect.signature(found).bind()
    except ValueError:  # a callable written in C may have no signature
        pass
    except TypeError:
        got = f"{name.split(':')[1]}{inspect.signature(found)}"
        raise ConfigError(
            f"{name} must work without arguments, got {got}; write a function that fills them in, and name that"
        ) from None
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} must give a model, got {_place(error)}") from None


def _place(error: BaseException) -> str:
    """An error with the last line of the user's own code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    outer = ("site-packages", "<frozen", str(Path(__file__).parent), str(Path(importlib.__file__ or "").parent))
    own = [frame for frame in frames if not any(part in frame.filename for part in outer)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return one_line(error) + where
