"""Plans: what an experiment runs and where, from its defaults, a TOML file or the quick run's, and options.

experiment = "table1"
nets = ["dense-mnist", "conv-mnist"]
seeds = 3
"""

from __future__ import annotations

import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from feta.errors import ConfigError, FileError, unknown_name
from feta.pruners import make
from feta.sparsity import check_share
from feta_lab import networks
from feta_lab.bench import parse_method
from feta_lab.devices import default_device
from feta_lab.workers import Cell

PAPER_NETS = ("dense-mnist", "dense-fashion", "dense-cifar", "conv-mnist", "conv-fashion", "conv-cifar")
PAPER_METHODS = ("threshold", "net-trim", "lobs", "corenet")
METHODS = (*PAPER_METHODS, "feta", "alps", "exact-obs", "sparsegpt", "wanda")

P = TypeVar("P", bound="Plan")


@dataclass(frozen=True)
class Plan:
    """What all experiments have in common; each adds its own fields."""

    nets: tuple[str, ...] = PAPER_NETS
    seeds: int = 3  # networks per preset
    device: str | None = None  # by default a GPU if there is one
    data: str | None = None  # instead of the nets' own
    data_dir: Path | None = None
    networks: Path = Path("results/networks")  # trained networks, made where missing
    out: Path = Path("results")
    resume: bool = True
    jobs: int = 1  # processes for training and for what is not timed
    cell_budget: float | None = None  # seconds

    def __post_init__(self) -> None:
        for net in self.nets:
            networks.preset(net)
        for method in getattr(self, "methods", ()):
            make(*parse_method(method))
        for share in getattr(self, "sparsity", ()):
            check_share(share, "sparsity")
        for name in ("seeds", "jobs", "samples", "epochs", "cell_budget"):
            value = getattr(self, name, None)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be > 0 and finite, got {value}")

    def data_of(self, net: str) -> str:
        return self.data or networks.preset(net).data

    @property
    def where(self) -> str:
        """The device."""
        return self.device or default_device()


@dataclass(frozen=True)
class PruningPlan(Plan):
    """Methods against each other."""

    methods: tuple[str, ...] = METHODS
    sparsity: tuple[float, ...] = (0.9,)
    samples: int | None = None  # calibration samples; by default the whole training set
    keep: Path | None = None  # folder of pruned networks, shared between experiments

    def grid(self) -> list[Cell]:
        """A cell per pruning. Methods innermost: a slow minute of the machine falls on all of them."""
        return [
            {
                "net": net,
                "method": method,
                "seed": seed,
                "sparsity": share,
                "samples": self.samples,
                "data_name": self.data_of(net),
                "device": self.where,
            }
            for net in self.nets
            for seed in range(self.seeds)
            for share in self.sparsity
            for method in self.methods
        ]


def load_plan(kind: type[P], experiment: str, config: Path | None, given: Mapping[str, Any]) -> P:
    """The plan of an experiment: its defaults, changed by a file, changed by options that are not None."""
    values = {} if config is None else _read(config, experiment)
    hints = typing.get_type_hints(kind)
    known = {field.name for field in fields(kind)}
    chosen: dict[str, Any] = {}
    for source, settings in ((f"{config}: ", values), ("", given)):
        for name, value in settings.items():
            if value is None:
                continue
            if name not in known:
                raise unknown_name(f"setting of {experiment}", name, known)
            chosen[name] = convert(value, hints[name], f"{source}{name}")
    return kind(**chosen)


def _read(path: Path, experiment: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} must be TOML, got {error}") from error
    named = values.pop("experiment", None)
    if named != experiment:
        raise ConfigError(f"{path}: experiment must be '{experiment}', got {named!r}")
    return values


def convert(value: Any, hint: Any, label: str) -> Any:
    """A value out of a file or off the command line as a field's type; lists may be text with commas."""
    if isinstance(hint, types.UnionType):  # X | None; None itself is left out before
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        if not parts:
            raise ConfigError(f"{label} must not be empty, got {value!r}")
        return tuple(convert(part, typing.get_args(hint)[0], label) for part in parts)
    if hint is float and (isinstance(value, str) or type(value) is int):
        try:
            return float(value)
        except ValueError:
            raise ConfigError(f"{label} must be a number, got {value!r}") from None
    if hint is int and isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    # bool is an int to Python, not to us; a Path may be a subclass of Path.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{label} must be of type {hint.__name__}, got {value!r}")
    return value.strip() if isinstance(value, str) else value
