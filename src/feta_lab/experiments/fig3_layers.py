"""Figures 3a and 3b: one layer at a time is pruned by thresholding, every other layer stays as it was.

A record per network, layer and sparsity. `depth` counts layers from the input; the softmax layer is never pruned.
Beside the accuracy stand two measures of the layer's inputs, by TwoNN over `samples` training images, to see
whether they tell a layer's safe sparsity better than its depth does:

    intrinsic_dimension        of its rows: one patch per image, drawn at random, for a convolution
    intrinsic_dimension_maps   of its whole input
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from feta.calibration.model import call, evaluating
from feta.calibration.recording import record
from feta.calibration.tap import Tap
from feta.calibration.trace import trace_layers
from feta.engine.prune import prune
from feta.layers import LayerView, prunable_names
from feta.theory.dimension import nearest, sample_rows, two_nn
from feta_lab import networks
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.plan import Plan
from feta_lab.experiments.subject import Source, Subject

PART = 50  # images unfolded at a time
FEWEST = 10  # points that have a dimension
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True)
class Fig3a(Plan):
    """The networks, the sparsities, and how many images the inputs of a layer are measured on."""

    nets: tuple[str, ...] = ("conv-mnist",)
    sparsity: tuple[float, ...] = SPARSITIES
    samples: int = 2000
    epochs: int | None = None  # at the most, of training missing networks; by default as in the paper

    name: ClassVar[str] = "fig3a"
    timed: ClassVar[bool] = False
    lines: ClassVar[tuple[str, ...]] = ("net", "depth", "layer")
    columns: ClassVar[tuple[str, ...]] = ("dense_accuracy", "intrinsic_dimension")
    across: ClassVar[str] = "sparsity"

    def cells(self) -> list[Cell]:
        """Sparsities change fastest: what is measured once per layer is kept for them."""
        settings, cells = {"samples": self.samples, "epochs": self.epochs}, []
        for net in self.nets:
            axes = {"seed": range(self.seeds), "layer": hidden_layers(net), "sparsity": self.sparsity}
            cells += self.grid(net, settings, **axes)
        return cells

    @property
    def source(self) -> Source:
        return replace(super().source, epochs=self.epochs)

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        """Load the network and measure the inputs of the layer."""
        subject, hidden = self.subject(cell), hidden_layers(cell["net"])
        rows, maps = _dimensions(subject, cell["layer"], self.samples)
        view = LayerView.of(subject.model, cell["layer"])
        place = {"depth": hidden.index(cell["layer"]) + 1, "layers": len(hidden), "weights": view.weight.numel()}
        known = {"data": subject.data.label, "dense_accuracy": subject.dense["test"]}
        return {**place, **known, "intrinsic_dimension": rows, "intrinsic_dimension_maps": maps}

    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Threshold the layer, judge the network."""
        subject = self.subject(cell)
        sample, only = _sample(subject, self.samples), [cell["layer"]]
        result = prune(subject.model, sample, cell["sparsity"], "threshold", layers=only, device=self.where)
        (report,) = result.report.layers
        accuracy = subject.scores(result.model)["accuracy"]
        return {"accuracy": accuracy, "relative_error": report.relative_error, "nonzeros": report.nonzeros}


@dataclass(frozen=True)
class Fig3b(Fig3a):
    """The same for CIFAR-10."""

    nets: tuple[str, ...] = ("conv-cifar",)

    name: ClassVar[str] = "fig3b"


@functools.cache
def hidden_layers(net: str) -> list[str]:
    """Convolutions and fully connected layers of a preset, without the softmax layer."""
    # The names do not depend on the size of the images, which is known only once data is read.
    return prunable_names(networks.build(networks.preset(net).specification, (1, 32, 32), seed=0))[:-1]


@functools.lru_cache(maxsize=1)
def _sample(subject: Subject, samples: int) -> Tensor:
    """Training images, drawn at random, on the device."""
    order = torch.randperm(len(subject.images), generator=torch.Generator().manual_seed(0))
    return subject.images[order[:samples].to(subject.images.device)]


@functools.lru_cache(maxsize=1)
def _dimensions(subject: Subject, layer: str, samples: int) -> tuple[float | None, float | None]:
    rows, maps = layer_inputs(subject.model, layer, _sample(subject, samples))
    return dimension_of(rows), dimension_of(maps)


def layer_inputs(model: nn.Module, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """One row of the layer per image (n, d_in), at a random place of a convolution; whole inputs (n, d)."""
    (trace,) = (found for found in trace_layers(record(model, images[:1])) if found.name == layer)
    view, tap = LayerView.of(model, layer, trace.operator), Tap(model, [trace])
    generator = torch.Generator().manual_seed(0)
    rows, maps = [], []
    with evaluating(model):
        for part in images.split(PART):
            (caught,) = tap.run(functools.partial(call, model, part), outputs=False, shortcuts=False)[layer]
            maps.append(caught.x.flatten(1))
            places = torch.randint(int(trace.rows), (len(part),), generator=generator)
            picked = torch.arange(len(part)) * int(trace.rows) + places  # patches of one image overlap: one of each
            rows.append(view.input_rows(caught.x, 0, picked.to(part.device)))
    return torch.cat(rows), torch.cat(maps)


def dimension_of(points: Tensor) -> float | None:
    """TwoNN over all different points (n, d); None where they are too few or too much alike to tell."""
    distinct = sample_rows(points, len(points), seed=0)
    value = two_nn(nearest(distinct, 2)) if len(distinct) >= FEWEST else math.nan
    return value if math.isfinite(value) else None
