"""Plans: what an experiment runs, where, and how.

An experiment is a frozen dataclass that derives from Plan. Its fields are its settings; they come from their
defaults, then from a TOML file (or the settings of the quick run), then from options:

    experiment = "table1"
    nets = ["dense-mnist", "conv-mnist"]
    seeds = 3
"""

import contextlib
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from feta.calibration.model import resolve_device
from feta.errors import ConfigError, FileError, unknown_name
from feta.files.atomic import check_writable
from feta.files.plain import from_toml, tamed, text_of
from feta.pruners import make
from feta.sparsity import check_share
from feta_lab import networks, paper
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.subject import Source, Subject, network_path, subject_of, train_missing

QUICK = Path(__file__).with_name("quick.toml")

P = TypeVar("P", bound="Plan")


@dataclass(frozen=True)
class Plan(ABC):
    """The settings and steps that all experiments have; each experiment adds its own.

    A cell is a dictionary. It says what to run, and it is the `key` of the cell's record: it must hold every
    setting that could change the numbers. Cells may be prepared and run in other processes.
    """

    nets: tuple[str, ...] = paper.NETS
    seeds: int = 3  # networks per preset
    device: str | None = None  # by default a GPU if there is one
    data: str | None = None  # instead of the nets' own
    data_dir: Path | None = None
    networks: Path = Path("results/networks")  # trained networks, made where missing
    out: Path | None = None  # by default results/NAME
    resume: bool = True
    jobs: int = 1  # processes for training and for cells that need not be timed
    cell_budget: float | None = None  # seconds

    name: ClassVar[str]
    timed: ClassVar[bool] = True  # cells run one at a time, whatever `jobs` says
    lines: ClassVar[tuple[str, ...]]  # fields that name a line of the table
    columns: ClassVar[tuple[str, ...]]  # fields that the table shows
    across: ClassVar[str] = ""  # a field whose values have a column each

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

    @abstractmethod
    def cells(self) -> list[Cell]:
        """Every cell, in the order to run them; cells of one network stand together."""

    @abstractmethod
    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        """Load and warm up what the cell needs; the fields that its record has even where the cell fails."""

    @abstractmethod
    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Run a prepared cell; the fields that its record gets."""

    def check(self) -> None:
        """Fail now, and not hours into the run, if a file cannot be written or the device is not there."""
        networks = (
            network_path(self.networks, net, seed, self.data) for net in self.nets for seed in range(self.seeds)
        )
        missing = [path for path in networks if not path.exists()]
        for path in (self.records, self.records.with_name("report.html"), *missing):
            check_writable(path)
        resolve_device(self.where)

    def train(self, tell: Callable[[str], None]) -> None:
        """Train the networks that are not there yet, `jobs` at a time."""
        train_missing(self.nets, range(self.seeds), self.networks, self.source, self.jobs, tell)

    def subject(self, cell: Cell) -> Subject:
        """The trained network that a cell names, with its data."""
        return subject_of(cell["net"], cell["seed"], self.networks, self.source)

    @property
    def source(self) -> Source:
        return Source(self.data, self.data_dir, self.where)

    @property
    def where(self) -> str:  # the device
        return self.device or resolve_device(None)

    @property
    def records(self) -> Path:
        return (self.out or Path("results") / self.name) / "records.jsonl"

    def grid(self, net: str, settings: Mapping[str, Any], **axes: Iterable[Any]) -> list[Cell]:
        """A cell of a network for every combination of the axes' values; the last axis changes fastest."""
        common = {"net": net, **settings, "data_name": self.data_of(net), "device": self.where}
        return [common | dict(zip(axes, values, strict=True)) for values in product(*axes.values())]

    def data_of(self, net: str) -> str:
        return self.data or networks.preset(net).data


def parse_method(label: str) -> tuple[str, dict[str, str]]:
    """A method and its options from a label: feta, feta:quality=best, feta-svrg:debias=false."""
    name, _, text = label.partition(":")
    pairs = [part.partition("=") for part in text.split("+") if part]
    return name, {option: value for option, _, value in pairs}


def load_plan(kind: type[P], config: Path | None, given: Mapping[str, Any], quick: bool = False) -> P:
    """The plan of an experiment: its defaults, changed by a file, changed by options that are not None.

    Raises ConfigError for a setting that the experiment does not have, or whose value has the wrong type.
    """
    values: dict[str, Any] = {}
    if quick:
        values = {"networks": "results/quick/networks", "out": f"results/quick/{kind.name}"}
        values |= _read(QUICK)[kind.name]
    elif config is not None:
        values = _read(config)
        named = values.pop("experiment", None)
        if named != kind.name:
            raise ConfigError(f"{config}: experiment must be '{kind.name}', got {named!r}")
    hints, known = typing.get_type_hints(kind), {field.name for field in fields(kind)}
    chosen: dict[str, Any] = {}
    for source, settings in ((f"{config}: ", values), ("", given)):
        for name, value in settings.items():
            if value is not None and name not in known:
                raise unknown_name(f"setting of {kind.name}", name, known)
            if value is not None:
                chosen[name] = convert(value, hints[name], f"{source}{name}")
    return kind(**chosen)


def _read(path: Path) -> dict[str, Any]:
    try:
        return from_toml(text_of(path))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} must be TOML, got {tamed(error)}") from error


def convert(value: Any, hint: Any, label: str) -> Any:
    """A value from a file or a command line as a field's type; a list may be text with commas."""
    if isinstance(hint, types.UnionType):  # X | None, and None never gets here
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        if not parts:
            raise ConfigError(f"{label} must not be empty, got {value!r}")
        return tuple(convert(part, typing.get_args(hint)[0], label) for part in parts)
    if isinstance(value, str):
        value = value.strip()
        with contextlib.suppress(ValueError):
            value = {"true": True, "false": False}.get(value.lower(), value) if hint is bool else hint(value)
    if hint is float and type(value) is int:
        return float(value)
    # bool is an int to Python, not to us; a Path may be a subclass of Path.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        what = "a number" if hint is float else f"of type {hint.__name__}"
        raise ConfigError(f"{label} must be {what}, got {value!r}")
    return value
