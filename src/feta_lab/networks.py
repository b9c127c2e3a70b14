"""The paper's notation for networks, parsed into plain nn.Sequential models, and its presets.

kCq   convolution, k output channels, q x q support, zero-padded to keep the size, then ReLU
MPk   max-pooling over k x k regions
kFC   fully connected layer with k outputs, then ReLU
kSM   the softmax layer: k class scores; the softmax itself lives in the loss

20C5-MP2-50C5-MP2-500FC-150FC-10SM
"""

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from feta.errors import ConfigError, one_line, unknown_name

_TOKEN = re.compile(
    r"(?P<outputs>[1-9]\d{0,8})C(?P<support>[1-9]\d{0,3})|MP(?P<pool>[1-9]\d{0,3})|(?P<width>[1-9]\d{0,8})(?P<kind>FC|SM)",
    re.ASCII,
)
MOST_TOKENS = 1000
_EXPECTED = "kCq (convolution), MPk (max-pooling), kFC (fully connected) or kSM (softmax), k and q whole numbers"


@dataclass(frozen=True)
class Preset:
    """A named network and the data set it is trained on."""

    name: str
    specification: str
    data: str


_PRESETS = (
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
PRESETS = {known.name: known for known in _PRESETS}


def preset(name: str) -> Preset:
    """The preset of a name; raises ConfigError, with the nearest name, when there is none."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]


def build(specification: str, shape: tuple[int, int, int], *, seed: int | None = None) -> nn.Sequential:
    """The network for inputs of `shape` (channels, height, width); a seed fixes its weights.

    Raises ConfigError, with the token that is wrong, when the notation cannot be read.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            model = nn.Sequential(_layers(specification, *shape))
        except (RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"network '{specification[:200]}' must fit into memory, got {one_line(error)}"
            ) from error
    hidden = [name for name in model._modules if name.startswith("fc")]
    model.default_layers = hidden  # type: ignore[assignment] # the paper prunes its hidden dense layers
    return model


def narrowed(specification: str, model: nn.Module) -> str:
    """The notation of a network after layers of it have lost outputs."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    widths = iter([len(layer.weight) for layer in layers])
    tokens = specification.split("-")
    return "-".join(
        token if token.startswith("MP") else re.sub(r"^\d+", str(next(widths)), token) for token in tokens
    )


def _layers(specification: str, channels: int, height: int, width: int) -> OrderedDict[str, nn.Module]:
    if specification.count("-") >= MOST_TOKENS:
        count = specification.count("-") + 1
        raise ConfigError(f"network '{specification[:40]} …' must have at most {MOST_TOKENS} tokens, got {count}")
    tokens = specification.split("-")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    counts: Counter[str] = Counter()
    flat = 0  # what reaches a fully connected layer; 0 as long as there are maps

    def add(kind: str, layer: nn.Module, relu: bool) -> None:
        counts[kind] += 1
        layers[f"{kind}{counts[kind]}"] = layer
        if relu:
            layers[f"relu_{kind}{counts[kind]}"] = nn.ReLU()

    for position, token in enumerate(tokens, start=1):
        where = f"network '{specification[:200]}': token {position} '{token[:40]}'"
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ConfigError(f"{where} must be {_EXPECTED}")
        if flat and not match["kind"]:
            raise ConfigError(f"{where} must come before the first fully connected layer")
        if match["pool"]:
            size = int(match["pool"])
            if min(height, width) < size:
                raise ConfigError(f"{where} pools a {height} x {width} map to nothing; use fewer or smaller poolings")
            add("pool", nn.MaxPool2d(size), relu=False)
            height, width = height // size, width // size
        elif match["outputs"]:
            outputs = int(match["outputs"])
            add("conv", nn.Conv2d(channels, outputs, int(match["support"]), padding="same"), relu=True)
            channels = outputs
        else:
            if match["kind"] == "SM" and position < len(tokens):
                raise ConfigError(f"{where} must come last: nothing follows the softmax layer")
            if not flat:
                layers["flatten"], flat = nn.Flatten(), channels * height * width
            layer, flat = nn.Linear(flat, int(match["width"])), int(match["width"])
            if match["kind"] == "SM":
                layers["softmax"] = layer
            else:
                add("fc", layer, relu=True)
    if "softmax" not in layers:
        raise ConfigError(f"{where} must be the softmax layer kSM: a network ends in one")
    return layers
