"""The cells of the benchmark on pretrained models: how each is prepared, run and judged."""

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from llama import Llama, load_llama, perplexity, random_llama, token_windows
from measure import measured_prune
from resnet import ResNet, calibration_images, data_label, images_of, load_resnet

from feta.engine.recipe import EFFORTS
from feta.errors import DataError
from feta_lab.experiments.harness import Cell
from feta_lab.judge import accuracy


@dataclass(frozen=True)
class Plan:
    """What to run: the axes of the grid, and settings that all cells share."""

    models: Path
    nets: tuple[str, ...]
    seeds: int  # calibration sets
    allocation: tuple[str, ...]
    sparsity: tuple[float, ...]
    methods: tuple[str, ...]
    device: str
    limit: int | None  # how many test images or windows; None: all of them

    kind: ClassVar[str]
    score: ClassVar[str]  # what is judged, as records call it
    layers: ClassVar[str]
    # Fields that do not name a cell: the axes, and where files lie.
    apart: ClassVar[tuple[str, ...]] = (
        "models",
        "nets",
        "seeds",
        "allocation",
        "sparsity",
        "methods",
        "data",
        "folder",
    )

    def cells(self) -> list[Cell]:
        """Every cell; methods change fastest, so that a run that is cut short can be compared."""
        axes = ("net", "seed", "allocation", "sparsity", "method")
        values = (self.nets, range(self.seeds), self.allocation, self.sparsity, self.methods)
        common = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.apart}
        return [dict(zip(axes, one, strict=True)) | common for one in itertools.product(*values)]

    def pruning(self, cell: Cell) -> dict[str, Any]:
        """Arguments of feta.prune."""
        shared = {"layers": self.layers, "allocation": cell["allocation"], "seed": cell["seed"]}
        return {"method": cell["method"], "sparsity": cell["sparsity"], **shared}


@dataclass(frozen=True)
class ResNets(Plan):
    """All convolutions and the head; accuracy on the test file."""

    data: Path
    images: int  # in a calibration set

    kind: ClassVar[str] = "resnet"
    score: ClassVar[str] = "accuracy"
    layers: ClassVar[str] = "*"

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        warm_resnet(cell["method"], self.device)
        _, labels = images_of("test_batch.bin", self.data)
        return {"dense_accuracy": dense_score(self, cell["net"]), "layers": self.layers, "data": data_label(labels)}

    def run(self, cell: Cell) -> Mapping[str, Any]:
        images = calibration_images(self.data, self.images, cell["seed"]).to(self.device)
        pruned, found = measured_prune(self.model(cell["net"]), images, **self.pruning(cell))
        return {**found, "accuracy": self.judge(pruned)}

    def model(self, net: str) -> ResNet:
        return resnet_of(net, self.models, self.device)

    def judge(self, model: ResNet) -> float:
        images, labels = images_of("test_batch.bin", self.data)
        return accuracy(model, images[: self.limit].to(self.device), labels[: self.limit], batch_size=500)


@dataclass(frozen=True)
class SmolLm(Plan):
    """All linear layers of the blocks; perplexity on the test file."""

    folder: Path
    dtype: str
    sequences: int  # of the validation file, to calibrate on
    tokens: int  # in each of them
    window: int  # tokens that are judged together
    batch: int  # sequences that run at once

    kind: ClassVar[str] = "smollm2"
    score: ClassVar[str] = "perplexity"
    layers: ClassVar[str] = "model.layers.*"

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        warm_llama(cell["method"], self.device, self.dtype)
        return {"dense_perplexity": dense_score(self, cell["net"]), "layers": self.layers, "data": "WikiText-2"}

    def run(self, cell: Cell) -> Mapping[str, Any]:
        text = self.models / "smollm2-wikitext2-valid.npy"
        data = token_windows(text, self.sequences, self.tokens, cell["seed"]).to(self.device)
        pruned, found = measured_prune(self.model(cell["net"]), data, **self.pruning(cell))
        return {**found, "perplexity": self.judge(pruned)}

    def model(self, net: str) -> Llama:
        return llama_of(self.folder, self.dtype, self.device)

    def judge(self, model: Llama) -> float:
        found = perplexity(model, self.models / "smollm2-wikitext2-test.npy", self.window, self.limit, self.batch)
        if not math.isfinite(found):
            raise DataError(f"the perplexity must be finite, got {found}")
        return found


@functools.cache
def dense_score(plan: ResNets | SmolLm, net: str) -> float:
    return plan.judge(plan.model(net))


@functools.lru_cache(maxsize=1)
def resnet_of(net: str, folder: Path, device: str) -> ResNet:
    return load_resnet(int(net.removeprefix("resnet-")), folder).to(device)


@functools.lru_cache(maxsize=1)
def llama_of(folder: Path, dtype: str, device: str) -> Llama:
    return load_llama(folder, getattr(torch, dtype)).to(device)


def quick(method: str) -> str:
    """A method to warm up with: of the efforts the one that takes no steps."""
    effort, colon, first = method.partition(":")
    return f"fast{colon}{first}" if effort in EFFORTS else method


@functools.cache
def warm_resnet(method: str, device: str) -> None:
    """Prune a tiny network once, so that no cell pays for loading libraries; failures show in the cells."""
    with contextlib.suppress(Exception):
        images = torch.rand(64, 3, 32, 32, device=device)
        measured_prune(ResNet(8).eval().to(device), images, quick(method), 0.5, layers=ResNets.layers)


@functools.cache
def warm_llama(method: str, device: str, dtype: str) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    with contextlib.suppress(Exception):
        model = random_llama(**sizes, num_attention_heads=4, num_key_value_heads=2).to(device, getattr(torch, dtype))
        tokens = torch.randint(64, (16, 32), device=device)
        measured_prune(model, tokens, quick(method), 0.5, layers=SmolLm.layers)
