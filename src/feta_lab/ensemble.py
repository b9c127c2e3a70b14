"""Many networks of one architecture trained together, fast: for figures that average over networks.

The recipe is shorter than the paper's (feta_lab.training): larger batches, SGD with Nesterov momentum, weight
decay, gradients clipped, and a learning rate that rises to its peak and falls to nothing in a few epochs.
Members share the images and nothing else: each has its own first weights and its own order, both from its
seed, so that a member trained alone is the same network.

On a GPU a step of all members is one CUDA graph in which each member has its own stream: small networks leave
most of a GPU idle, ten side by side do not. Activations are bfloat16 there, weights stay float32.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.inputs import generator_of
from feta.errors import ConfigError, ModelError, check_fields
from feta.tuning.recorder import Recorder
from feta_lab import networks

WARM_STEPS = 3  # taken one by one before a graph is recorded: buffers are made, algorithms are chosen


@dataclass(frozen=True)
class Sprint:
    """Hyper-parameters of a short training run."""

    epochs: int = 12
    batch_size: int = 256
    learning_rate: float = 0.08  # at its peak
    rise: float = 0.1  # share of the steps in which the learning rate grows
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0  # the largest norm of a gradient
    precision: str = "auto"  # of activations: float32, bfloat16, or auto: bfloat16 on a GPU
    graph: bool = True  # record steps as a CUDA graph

    def __post_init__(self) -> None:
        check_fields(self, "> 0 and finite", "epochs", "batch_size", "learning_rate", "clip")
        check_fields(self, ">= 0 and finite", "weight_decay")
        check_fields(self, "in [0, 1)", "rise", "momentum")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"Sprint.precision must be auto, float32 or bfloat16, got '{self.precision}'")

    def rate(self, share: float) -> float:
        """The learning rate once `share` of all steps are done: up and down in two straight lines."""
        if share < self.rise:
            return self.learning_rate * share / self.rise
        return self.learning_rate * (1 - share) / (1 - self.rise)


@dataclass(frozen=True)
class SprintEvent:
    """One epoch of all members, for callbacks."""

    epoch: int
    epochs: int
    losses: tuple[float, ...]  # mean training loss of each member
    seconds: float
    images_per_second: float  # over all members
    graph: bool  # whether steps ran as a CUDA graph
    note: str = ""  # what could not be done, and why


def train_together(
    specification: str,
    images: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    settings: Sprint,
    *,
    callback: Callable[[SprintEvent], None] | None = None,
) -> list[nn.Sequential]:
    """A trained network per seed, in eval mode, on the device of the images (n, c, h, w), already normalised."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must be one or more different numbers, got {list(seeds)}")
    if images.ndim != 4 or len(images) != len(labels):
        raise ConfigError(
            f"images must be (n, c, h, w) with a label each, got {tuple(images.shape)} and {len(labels)} labels"
        )
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, True  # it measures its kernels and keeps the fastest
    try:
        crew = _Crew(specification, images, labels.to(images.device), seeds, settings)
        for epoch in range(settings.epochs):
            event = crew.one_epoch(epoch)
            if callback is not None:
                callback(event)
    finally:
        cudnn.benchmark = before
    crew.recorder.graph = None  # freed now, not whenever garbage is collected
    for model in crew.models:
        model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return crew.models


class _Crew:
    """A network per seed with its optimiser, the shared images, and how a step of all networks is run."""

    def __init__(
        self, specification: str, images: Tensor, labels: Tensor, seeds: Sequence[int], settings: Sprint
    ) -> None:
        self.settings, self.seeds, self.labels, self.note = settings, seeds, labels, ""
        self.half = settings.precision == "bfloat16" or (settings.precision == "auto" and images.is_cuda)
        # Channels last, by a plain layout of the rows: tensor cores want it, and a batch is one gather.
        self.images = images.permute(0, 2, 3, 1).contiguous().to(torch.bfloat16 if self.half else torch.float32)
        self.rate = torch.zeros((), device=images.device)  # a tensor: a recorded step reads its value anew
        self.totals = torch.zeros(len(seeds), device=images.device)  # sums of losses since the epoch began
        self.models, self.optimisers = [], []
        channels, height, width = images.shape[1:]
        options: Any = {"weight_decay": settings.weight_decay, "nesterov": settings.momentum > 0, "fused": True}
        for seed in seeds:
            model = networks.build(specification, (channels, height, width), seed=seed).to(images.device)
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.models.append(model)
            self.optimisers.append(torch.optim.SGD(model.parameters(), self.rate, settings.momentum, **options))
        self.batch_size = min(settings.batch_size, len(images))
        self.streams = [torch.cuda.Stream(images.device) for _ in seeds] if images.is_cuda else []
        self.recorder = Recorder(self._step, WARM_STEPS if settings.graph and images.is_cuda else math.inf)

    def one_epoch(self, epoch: int) -> SprintEvent:
        """One pass over the images, each network in its own order; rows that fill no batch wait for the next."""
        started = time.perf_counter()
        rows, steps = len(self.labels), len(self.labels) // self.batch_size
        orders = torch.stack([torch.randperm(rows, generator=generator_of(seed, epoch)) for seed in self.seeds])
        batches = orders[:, : steps * self.batch_size].to(self.images.device).split(self.batch_size, dim=1)
        self.totals.zero_()
        for index, batch in enumerate(batches):
            self.rate.fill_(self.settings.rate((epoch + (index + 0.5) / steps) / self.settings.epochs))
            self._take(batch)
        losses = tuple((self.totals / steps).tolist())
        seconds = time.perf_counter() - started
        for seed, loss in zip(self.seeds, losses, strict=True):
            if not loss < math.inf:
                raise ModelError(
                    f"training must keep a finite loss, got {loss} for seed {seed} in epoch {epoch + 1}; "
                    "lower the learning rate"
                )
        speed = len(self.seeds) * steps * self.batch_size / seconds
        recorded = self.recorder.graph is not None
        return SprintEvent(epoch + 1, self.settings.epochs, losses, seconds, speed, recorded, self.note)

    def _take(self, rows: Tensor) -> None:
        """A step; if recording it fails, it is recorded on one stream, and if that fails, not at all."""
        self.recorder(rows)
        if self.recorder.failure:
            self.note = f"{'one stream' if self.streams else 'no CUDA graph'}: {self.recorder.failure}"
            self.recorder = Recorder(self._step, 0 if self.streams else math.inf)
            self.streams = []

    def _step(self, rows: Tensor) -> None:
        """A step of every network, each on its own rows; on a GPU each on its own stream, too."""
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())
        for i, own in enumerate(rows):
            with torch.cuda.stream(self.streams[i]) if self.streams else nullcontext():
                self._step_of(i, own)
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    def _step_of(self, i: int, rows: Tensor) -> None:
        x = self.images.index_select(0, rows).permute(0, 3, 1, 2)  # channels last
        self.optimisers[i].zero_grad(set_to_none=True)
        # No cache of cast weights: a recorded graph would read a cast from before it was recorded.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half, cache_enabled=False):
            scores = self.models[i](x)
        loss = F.cross_entropy(scores.float(), self.labels.index_select(0, rows))
        loss.backward()
        nn.utils.clip_grad_norm_(list(self.models[i].parameters()), self.settings.clip, foreach=True)
        self.optimisers[i].step()
        self.totals[i].add_(loss.detach())
