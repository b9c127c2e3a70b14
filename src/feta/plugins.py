"""What other packages add to feta: found by their entry points, so that feta imports none of them by name.

feta.commands   commands of the command line, by name
feta.networks   how a network is rebuilt from its description in a file, by the kind of description
feta.subjects   how a network file becomes something that commands can prune, judge and save

The laboratory, feta_lab, adds the paper's networks, data sets and experiments this way. Packages that only some data
or models need are imported when they are, with a cure where they are missing.
"""

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from feta.errors import ConfigError

LAB = "the laboratory, which is not installed; in a clone of feta: python -m pip install ./src/feta_lab"


def added(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=group)}


def required(group: str, name: str, what: str) -> Any:
    """The object behind an entry point. Raises ConfigError that says what is missing if no package adds it."""
    found = added(group).get(name)
    if found is None:
        raise ConfigError(f"{what} needs {LAB}")
    return found.load()


def needed(module: str, what: str, package: str, cure: str = "") -> Any:
    """An optional module. Raises ConfigError that says how to install its package, or the packages of the cure."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} must have the package {package}, got: {error}; pip install {cure or package}"
        ) from None
