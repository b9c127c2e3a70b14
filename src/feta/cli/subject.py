"""What commands work on: a network with data to prune on and to judge by.

A package that knows a kind of network file adds how it is opened, see feta.plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta.cli.console import download_bar
from feta.errors import ConfigError
from feta.files import sparse_file
from feta.files.network import described
from feta.plugins import required

Part = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Subject:
    """A network and its data, as commands see them."""

    model: nn.Module
    specification: str  # the network in one line
    data: str | None  # what its data is called; None where there is none
    preparation: tuple[Any, ...]  # shape and normalisation of its inputs: equal for a network and its pruned form
    deviations: tuple[float, ...]  # by what each channel of pixels in [0, 1] was divided
    rows: Callable[[Part, str], tuple[Tensor, Tensor]]  # part and device -> inputs and labels
    encode: Callable[[nn.Module, Mapping[str, Any], Mapping[str, float]], bytes]  # model, pruning, accuracy -> file
    record: Callable[[Path, str, Mapping[str, Any], int, Any], None]  # file, kind, config, seed, metrics
    pruning: Mapping[str, Any] | None = None  # what was done to it since it was trained
    environment: Mapping[str, str] = field(default_factory=dict)  # versions and machine


def open_subject(
    network: Path, data_dir: Path | None = None, data: str | None = None, *, with_data: bool = True
) -> Subject:
    """The network in a file with its data, or with the data set of that name.

    Raises FileError for a file that cannot be read or does not describe its network, DataError for missing data.
    """
    described(sparse_file.read(network)[1], network)
    opener = required("feta.subjects", "paper", f"{network}: a network in the paper's notation")
    with download_bar() as advance:
        found: Subject = opener(network, data_dir=data_dir, data=data, with_data=with_data, progress=advance)
    return found


def open_pair(dense: Path, pruned: Path, data_dir: Path | None, data: str | None) -> tuple[Subject, Subject]:
    """A network with its data, and what pruning has made of it.

    Raises ConfigError where one cannot have come from the other.
    """
    first, second = open_subject(dense, data_dir, data), open_subject(pruned, with_data=False)
    if first.specification != second.specification:
        raise ConfigError(
            f"the pruned network must come from the dense one, got {second.specification} and {first.specification}"
        )
    if first.preparation != second.preparation:
        raise ConfigError(
            f"both networks must take the same inputs, got {first.preparation} and {second.preparation}"
        )
    return first, second


@torch.no_grad()
def accuracy(model: nn.Module, subject: Subject, device: str) -> dict[str, float]:
    """Percent of right answers on the validation and the test half."""
    model = model.to(device)

    def right(x: Tensor, y: Tensor) -> int:
        pairs = zip(x.split(1000), y.split(1000), strict=True)
        return sum(int((model(a).argmax(1) == b).sum()) for a, b in pairs)

    parts: tuple[Part, ...] = ("validation", "test")
    with evaluating(model):
        halves = {part: subject.rows(part, device) for part in parts}
        return {part: 100 * right(x, y) / len(y) for part, (x, y) in halves.items()}
