"""Trials of the planner: prune on some rows, refine the result by one pass over them, retrain it for one.

A trial adds points to what is known of a method; `planning` draws its conclusions from them.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.errors import ModelError
from feta.lab.data import DataSet
from feta.lab.extrapolation import Points
from feta.lab.judge import accuracy
from feta.lab.planning import Measured, Task
from feta.lab.store import Network
from feta.layers import LayerView
from feta.pruners import make
from feta.pruning import PruneResult, prune
from feta.selection import prunable_names, select
from feta.tuning.refining import refine
from feta.tuning.retraining import retrain
from feta.tuning.stepping import clock

FEWEST_IMAGES = 500  # of the validation data
FIRST_PART = 4  # a first trial refines and retrains on a quarter of its rows too
# In the order of first trials, for time may run out: what did best for its time on the paper's networks comes first.
# The number: work on a d_in x d_in matrix whatever the rows, in products of two such.
FIXED = {
    "threshold": 0.0,
    "alps": 2.0,
    "feta": 2.5,
    "wanda": 0.0,
    "sparsegpt": 1.0,
    "lobs": 1.0,
    "exact-obs": math.inf,  # one for every output
    "corenet": 0.0,
    "net-trim": 120.0,
}


class Trials:
    """A network, its data in one random order, and as much validation data as a look may take seconds for."""

    def __init__(
        self,
        network: Network,
        data: DataSet,
        sparsity: float,
        look: float,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.data, self.sparsity, self.seed = data, sparsity, seed
        self.device = torch.device(device)
        self.model = copy.deepcopy(network.model).to(self.device)
        self.order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
        self.failed: dict[str, str] = {}  # method, stage -> why it cannot be done
        self.sample = functools.lru_cache(maxsize=1)(self._sample)
        self.validation, look_seconds = self._validation(look)
        dense = accuracy(self.model, *self.validation)
        self.task = Task(len(data.train), dense, len(self.validation[1]), look_seconds)

    def add(
        self,
        known: Measured,
        rows: int,
        stages: Collection[str],
        seconds: Callable[[], float],
        callback: Callable[[Any], None],
    ) -> Measured:
        """What is known of a method after one more trial.

        seconds: how much each stage may take; a stage that is stopped by it adds nothing. One that diverges is
            dropped, whatever is known of it, and `failed` says why.
        callback: called by `feta.prune`; may raise.
        """
        x, y = self.sample(rows)
        result = prune(
            self.model,
            x,
            self.sparsity,
            known.method,
            seed=self.seed,
            device=self.device,
            callback=callback,
        )
        # A method that reads no data has seen all of it.
        at = float(self.task.rows if make(known.method).passes == "none" else rows)
        known = replace(
            known,
            prune_seconds=_with(known.prune_seconds, at, result.report.seconds),
            prune=_with(known.prune, at, accuracy(result.model, *self.validation)),
        )
        try:
            if "refine" in stages:
                if not known.refine:  # two points to begin with
                    known = self._refine(known, result, x[: len(x) // FIRST_PART], seconds())
                known = self._refine(known, result, x, seconds())
        except ModelError as error:
            known = replace(known, refine=())
            self.failed[f"{known.method}, refine"] = str(error)
        try:
            if "retrain" in stages:
                known = self._retrain(known, result, x, y, seconds())
        except ModelError as error:
            known = replace(known, retrain=())
            self.failed[f"{known.method}, retrain"] = str(error)
        return known

    def _refine(self, known: Measured, result: PruneResult, x: Tensor, seconds: float) -> Measured:
        refined = refine(
            result.model,
            self.model,
            x,
            masks=result.masks,
            passes=1,
            batch_size=self.task.refine_batch,
            seconds=seconds,
            seed=self.seed,
            device=self.device,
        )
        report = refined.report
        steps = report.passes * len(x) / self.task.refine_batch
        if report.stopped == "seconds" or steps < 1:
            return known
        score = accuracy(refined.model, *self.validation)
        rate = report.seconds / (report.passes * len(x))
        return replace(known, refine=_with(known.refine, steps, score), refine_rate=rate)

    def _retrain(
        self, known: Measured, result: PruneResult, x: Tensor, y: Tensor, seconds: float
    ) -> Measured:
        report = retrain(
            result.model,
            (x, y),
            masks=result.masks,
            validation=self.validation,
            max_epochs=1,
            check_every=1 / FIRST_PART,
            batch_size=self.task.retrain_batch,
            seconds=seconds,
            seed=self.seed,
            device=self.device,
        ).report
        if report.stopped == "seconds":
            return known
        steps = len(x) / self.task.retrain_batch
        points: Points = ()
        for point in (report.history[1], report.history[-1]):
            points = _with(points, steps * point.epoch, float(point.accuracy or 0.0))
        rate = (report.seconds - report.evaluation_seconds) / len(x)
        return replace(known, retrain=points, retrain_rate=rate)

    def fixed_seconds(self, method: str) -> float:
        """A first guess at what a trial takes, however few its rows."""
        products = FIXED.get(method, 0.0)
        if products == 0:
            return 0.0
        cost = 0.0
        for name in select(self.model, prunable_names(self.model), None):
            d_in, d_out = LayerView(self.model.get_submodule(name), name).matrix(0).shape
            cost += float(d_in) ** 3 * min(products, d_out)
        return cost * _product_seconds(str(self.device))

    def _sample(self, rows: int) -> tuple[Tensor, Tensor]:
        """The first rows of the order: larger samples hold the smaller ones."""
        chosen = self.data.train.take(self.order[:rows])
        return self.data.normalisation.apply(chosen.images, self.device), chosen.labels.to(self.device)

    def _validation(self, look: float) -> tuple[tuple[Tensor, Tensor], float]:
        """Validation images for a look of so many seconds; seconds of a look at all there are."""
        split, normalise = self.data.validation, self.data.normalisation.apply
        few, labels = normalise(split.images[:FEWEST_IMAGES], self.device), split.labels.to(self.device)
        accuracy(self.model, few, labels[: len(few)])  # the first one wakes the libraries up
        before = clock(self.device)
        accuracy(self.model, few, labels[: len(few)])
        each = max((clock(self.device) - before) / len(few), 1e-9)
        count = min(max(int(look / each), FEWEST_IMAGES), len(split))
        return (normalise(split.images[:count], self.device), labels[:count]), each * len(split)


@functools.cache
def wake(device: str) -> None:
    """Every stage once on a toy: libraries are loaded, nothing is measured."""
    where, generator = torch.device(device), torch.Generator().manual_seed(0)
    toy = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(where)
    x = torch.randn(64, 8, generator=generator).to(where)
    y = torch.zeros(64, dtype=torch.long, device=where)
    result = prune(toy, x, 0.5, "threshold", device=where)
    refine(result.model, toy, x, masks=result.masks, passes=1, device=where)
    retrain(result.model, (x, y), masks=result.masks, validation=(x, y), max_epochs=1, device=where)


@functools.cache
def _product_seconds(device: str) -> float:
    """Seconds of a product of two n x n matrices, over n^3."""
    size, where = 384, torch.device(device)
    matrix = torch.eye(size, dtype=torch.float64, device=where)
    _ = matrix @ matrix
    before = clock(where)
    _ = matrix @ matrix @ matrix
    return (clock(where) - before) / 2 / size**3


def _with(points: Points, at: float, value: float) -> Points:
    """Points with one more; one at the same place is replaced."""
    return (*(point for point in points if point[0] != at), (at, value))
