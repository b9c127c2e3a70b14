"""What commands work on: a network with data to prune on and to judge by.

A package that knows a kind of network file adds how it is opened, see feta.plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta.cli.console import download_bar
from feta.errors import ConfigError
from feta.files import sparse_file
from feta.files.network import described
from feta.plugins import required

Part = Literal["train", "validation", "test"]


class Subject(Protocol):
    """A network and its data, as commands see them."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def specification(self) -> str:
        """The network in one line."""
        ...

    @property
    def data(self) -> str | None:
        """What the data is called; None where there is none."""
        ...

    @property
    def pruning(self) -> Mapping[str, Any] | None:
        """What was done to the network since it was trained; None: nothing."""
        ...

    @property
    def deviations(self) -> tuple[float, ...]:
        """By what each input channel of pixels in [0, 1] was divided."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Versions and machine, for records."""
        ...

    def rows(self, part: Part, device: str) -> tuple[Tensor, Tensor]:
        """Inputs as the model takes them, and their labels."""
        ...

    def takes_inputs_of(self, other: Subject) -> bool:
        """Whether both networks take the same inputs, prepared in the same way."""
        ...

    def encode(self, model: nn.Module, pruning: Mapping[str, Any], accuracy: Mapping[str, float]) -> bytes:
        """The file of this network with another model in it."""
        ...

    def record(self, path: Path, kind: str, config: Mapping[str, Any], seed: int, metrics: Any) -> None:
        """Add a record of a run to a file."""
        ...


def open_subject(
    network: Path, data_dir: Path | None = None, data: str | None = None, *, with_data: bool = True
) -> Subject:
    """The network in a file with its data, or with the data set of that name.

    Raises FileError for a file that cannot be read or does not describe its network, DataError for missing data.
    """
    _, metadata = sparse_file.read(network)
    described(metadata, network)
    opener = required("feta.subjects", "paper", f"{network}: a network in the paper's notation")
    with download_bar() as advance:
        found: Subject = opener(network, data_dir=data_dir, data=data, with_data=with_data, progress=advance)
    return found


@torch.no_grad()
def accuracy(model: nn.Module, subject: Subject, device: str) -> dict[str, float]:
    """Percent of right answers on the validation and the test half."""
    model = model.to(device)
    found: dict[str, float] = {}
    parts: tuple[Part, ...] = ("validation", "test")
    with evaluating(model):
        for part in parts:
            x, y = subject.rows(part, device)
            right = sum(
                int((model(a).argmax(1) == b).sum())
                for a, b in zip(x.split(1000), y.split(1000), strict=True)
            )
            found[part] = 100 * right / len(y)
    return found


def check_pair(dense: Subject, pruned: Subject) -> None:
    """Raise ConfigError where one network cannot have come from the other."""
    if dense.specification != pruned.specification:
        raise ConfigError(
            f"the pruned network must come from the dense one, got {pruned.specification} "
            f"and {dense.specification}"
        )
    if not dense.takes_inputs_of(pruned):
        raise ConfigError("both networks must take the same inputs, got two shapes or normalisations")
