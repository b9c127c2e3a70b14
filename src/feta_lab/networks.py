"""The paper's notation for networks, parsed into plain nn.Sequential models, and its presets.

kCq   convolution, k output channels, q x q support, zero-padded to keep the size, then ReLU
MPk   max-pooling over k x k regions
kFC   fully connected layer with k outputs, then ReLU
kSM   the softmax layer: k class scores; the softmax itself lives in the loss

20C5-MP2-50C5-MP2-500FC-150FC-10SM
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from feta.errors import ConfigError, unknown_name

_TOKEN = re.compile(
    r"(?P<outputs>[1-9]\d*)C(?P<support>[1-9]\d*)|MP(?P<pool>[1-9]\d*)|(?P<width>[1-9]\d*)(?P<kind>FC|SM)"
)
_EXPECTED = "kCq (convolution), MPk (max-pooling), kFC (fully connected) or kSM (softmax), k and q whole numbers"


@dataclass(frozen=True)
class Preset:
    """A named network and the data set it is trained on."""

    name: str
    specification: str
    data: str


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("dense-mnist", "60FC-60FC-10SM", "mnist"),
        Preset("conv-mnist", "20C5-MP2-50C5-MP2-500FC-150FC-10SM", "mnist"),
        Preset("dense-fashion", "100FC-100FC-10SM", "fashion-mnist"),
        Preset("conv-fashion", "32C3-32C3-MP2-64C3-64C3-MP2-512FC-128FC-10SM", "fashion-mnist"),
        Preset("dense-cifar", "100FC-100FC-10SM", "cifar-10"),
        Preset("conv-cifar", "32C3-32C3-MP2-64C3-64C3-MP2-128C3-128C3-MP2-1024FC-512FC-10SM", "cifar-10"),
        Preset("dense-mnist-wide", "300FC-100FC-10SM", "mnist"),
        Preset("dense-fashion-wide", "500FC-200FC-10SM", "fashion-mnist"),
        Preset("dense-cifar-wide", "1000FC-400FC-10SM", "cifar-10"),
    )
}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]


def build(specification: str, shape: tuple[int, int, int], *, seed: int | None = None) -> nn.Sequential:
    """The network for inputs of `shape` (channels, height, width); a seed fixes its weights."""
    builder = _Builder(specification, shape)
    if seed is None:
        return builder.build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return builder.build()


class _Builder:
    """Adds layers token by token, keeping track of the shape that reaches each."""

    def __init__(self, specification: str, shape: tuple[int, int, int]) -> None:
        self.specification = specification
        self.tokens = specification.split("-")
        self.shape = shape
        self.width: int | None = None  # set once the maps are flattened
        self.layers: OrderedDict[str, nn.Module] = OrderedDict()
        self.counts = {"conv": 0, "pool": 0, "fc": 0}

    def build(self) -> nn.Sequential:
        for position, token in enumerate(self.tokens):
            match = _TOKEN.fullmatch(token)
            if match is None:
                raise self._error(position, f"must be {_EXPECTED}")
            if match["pool"]:
                self._pool(position, int(match["pool"]))
            elif match["outputs"]:
                self._conv(position, int(match["outputs"]), int(match["support"]))
            else:
                self._dense(position, int(match["width"]), last=match["kind"] == "SM")
        if "softmax" not in self.layers:
            raise self._error(len(self.tokens) - 1, "must be the softmax layer kSM: a network ends in one")
        return nn.Sequential(self.layers)

    def _conv(self, position: int, outputs: int, support: int) -> None:
        self._check_maps(position)
        self.layers[self._next("conv")] = nn.Conv2d(self.shape[0], outputs, support, padding="same")
        self.layers[f"relu_conv{self.counts['conv']}"] = nn.ReLU()
        self.shape = (outputs, *self.shape[1:])

    def _pool(self, position: int, size: int) -> None:
        self._check_maps(position)
        channels, height, width = self.shape
        if height < size or width < size:
            raise self._error(position, f"pools a {height} x {width} map to nothing; use fewer or smaller poolings")
        self.layers[self._next("pool")] = nn.MaxPool2d(size)
        self.shape = (channels, height // size, width // size)

    def _dense(self, position: int, width: int, *, last: bool) -> None:
        if last and position != len(self.tokens) - 1:
            raise self._error(position, "must come last: nothing follows the softmax layer")
        if self.width is None:
            self.layers["flatten"] = nn.Flatten()
            self.width = self.shape[0] * self.shape[1] * self.shape[2]
        self.layers["softmax" if last else self._next("fc")] = nn.Linear(self.width, width)
        if not last:
            self.layers[f"relu_fc{self.counts['fc']}"] = nn.ReLU()
        self.width = width

    def _check_maps(self, position: int) -> None:
        if self.width is not None:
            raise self._error(position, "must come before the first fully connected layer")

    def _next(self, kind: str) -> str:
        self.counts[kind] += 1
        return f"{kind}{self.counts[kind]}"

    def _error(self, position: int, fact: str) -> ConfigError:
        return ConfigError(f"network '{self.specification}': token {position + 1} '{self.tokens[position]}' {fact}")
