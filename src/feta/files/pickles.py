"""Files that are pickles: never loaded, since reading one can run code. The user gets the commands that work."""

import json
import shlex
from pathlib import Path

from feta.errors import FileError

SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin")
# weights_only: torch then makes tensors and plain containers alone, so that the command is as safe as it can be.
_LOAD = 'import torch; from safetensors.torch import save_file; s = torch.load(FILE, "cpu", weights_only=True)'
_STATE = 's = next((s[k] for k in ("state_dict", "model_state_dict", "model") if k in s), s)'
_TENSORS = "s = s if isinstance(s, dict) else dict(x=s)"
_SAVE = 'save_file(dict((k, v.clone().contiguous()) for k, v in s.items()), FILE, dict(format="pt"))'


def is_pickle(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def conversion(path: Path, to: Path, *, weights: bool) -> str:
    """A shell command that makes a safetensors file of a pickle with a state dict, or with tensors."""
    load, save = (code.replace("FILE", json.dumps(str(file))) for code, file in ((_LOAD, path), (_SAVE, to)))
    return f"python -c {shlex.quote('; '.join((load, _STATE if weights else _TENSORS, save)))}"


def beside(path: Path) -> Path:
    """Where the content of a pickle goes: the same name as a safetensors file, unless there is one."""
    new = path.with_suffix(".safetensors")
    return path.with_suffix(".new.safetensors") if new == path or new.exists() else new


def refusal(where: str, path: Path, then: str, *, weights: bool = True, to: Path | None = None) -> FileError:
    """The error for a pickle, with the command that converts it and what works afterwards.

    where: what must be something else, such as --weights.
    then: what to do with the new file.
    """
    return FileError(
        f"{where} must not be a pickle, got {path}, which feta never loads: reading one can run code (of a whole "
        "model that was pickled save its state_dict() first, where its code is). If you trust it, convert it: "
        f"{conversion(path, to or beside(path), weights=weights)} and then: {then}"
    )


def refuse_name(where: str, path: Path) -> None:
    """Raise FileError for a file to write whose ending stands for a pickle, which it will not be."""
    if is_pickle(path):
        raise FileError(f"{where} must end in .safetensors, got {path}, whose ending stands for a pickle")
