"""feta.toml: settings of commands, read with the limits of every file that may come from anywhere."""

from pathlib import Path
from typing import Any

from cyclopts import CycloptsError
from cyclopts.config import Toml

from feta.errors import one_line
from feta.files.plain import from_toml, text_of


class Settings(Toml):
    """A file of settings in this folder or above."""

    def _load_config(self, path: Path) -> dict[str, Any]:
        try:
            return from_toml(text_of(path))
        except (OSError, ValueError) as error:
            raise CycloptsError(msg=f"{path} must be a file of settings in TOML, got {one_line(error)}") from error
