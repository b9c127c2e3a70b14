"""Experiments that set methods against each other: a grid of cells, each of which prunes a network.

Table 1 and Figure 2 begin with the same pruning. With `keep`, pruned networks are kept as files, and each is pruned
once for both. A file belongs to a cell and to the dense network that was pruned: it is not taken for another. It
does not know of changes to the code; after one, use another folder.

What a process pays once (loading kernels, making handles and workspaces) is paid in `warm_up`, by pruning on a few
rows, and not in the first cell that happens to be timed.
"""

import contextlib
import copy
import functools
import gc
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from feta.engine.prune import PruneResult, prune
from feta.engine.settings import Cache, Settings
from feta.errors import ConfigError
from feta.files import sparse_file
from feta.files.atomic import check_writable
from feta.masks import masks_of
from feta.pruners import make
from feta.tuning.refine import refine
from feta.tuning.retrain import retrain
from feta_lab import paper
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.plan import Plan, parse_method
from feta_lab.experiments.subject import Subject

METHODS = (*paper.METHODS, "feta", "alps", "exact-obs", "sparsegpt", "wanda")
WARM_ROWS = 256
NAMED = ("net", "seed", "method", "sparsity", "samples", "data_name", "device")  # what is pruned, and how


@dataclass(frozen=True)
class PruningPlan(Plan):
    """Methods against each other."""

    methods: tuple[str, ...] = METHODS
    sparsity: tuple[float, ...] = (0.9,)
    samples: int | None = None  # calibration samples; by default the whole training set

    lines: ClassVar[tuple[str, ...]] = ("net", "sparsity", "method")

    def matches(self, **outer: Iterable[Any]) -> list[Cell]:
        """A cell per network, combination of `outer` values, sparsity and method.

        The method changes fastest, so that a slow minute of the machine falls on all methods.
        """
        seeds, samples = range(self.seeds), {"samples": self.samples}
        inner = {"sparsity": self.sparsity, "method": self.methods}
        return [cell for net in self.nets for cell in self.grid(net, samples, seed=seeds, **outer, **inner)]

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        """Load the subject, and pay for whatever must not fall into a timed cell."""
        subject = self.subject(cell)
        warm_up(subject)
        warm_up_method(cell["method"], self.where)
        settle()
        return subject.fields

    def prune(self, cell: Cell, cache: Cache = "auto", **options: Any) -> tuple[PruneResult, dict[str, Any]]:
        """Prune as the cell says, with more options of feta.prune, and say what records hold of it."""
        subject = self.subject(cell)
        method, own = parse_method(cell["method"])
        options |= {"options": own, "seed": cell["seed"], "device": self.where}
        options["settings"] = Settings(n_samples=cell["samples"], cache=cache)
        result = prune(subject.model, subject.images, cell["sparsity"], method, **options)
        names = ("relative_error", "status", "nonzeros")
        fields = {name: [getattr(layer, name) for layer in result.report.layers] for name in names}
        return result, {**fields, "options": result.report.options}


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned network, and what records say of the pruning."""

    model: nn.Module
    masks: dict[str, Tensor]
    fields: dict[str, Any]


@dataclass(frozen=True)
class PaperPlan(PruningPlan):
    """A plan whose cells begin with a pruning as in the paper, without compensation."""

    keep: Path | None = None  # folder of pruned networks, shared between experiments

    def check(self) -> None:
        if self.keep is not None:
            check_writable(self.keep / "network.safetensors")
        super().check()

    def pruned(self, cell: Cell) -> Pruned:
        """The subject pruned as the cell says, from its file in `keep` if there is one."""
        subject = self.subject(cell)
        if self.keep is not None and (found := find(self.keep, cell, subject)):
            return found
        many = make(*parse_method(cell["method"])).needs.passes == "many"
        # Hundreds of passes on a GPU: rows must not come from disk each time.
        cache: Cache = "memory" if many and subject.images.is_cuda else "auto"
        result, fields = self.prune(cell, cache, compensate=False)
        answer = Pruned(result.model, result.masks, {"prune_seconds": result.report.seconds, **fields})
        if self.keep is not None:
            known = {**_known(cell, subject), "layers": list(answer.masks), "fields": answer.fields}
            sparse_file.write(_path(self.keep, cell), answer.model.state_dict(), known)
        return answer


def find(folder: Path, cell: Cell, subject: Subject) -> Pruned | None:
    """The kept network of a cell, as a copy of the subject's model with other weights; None if there is none."""
    path = _path(folder, cell)
    tensors, known = sparse_file.read(path) if path.exists() else ({}, {})
    if {name: known.get(name) for name in ("cell", "dense")} != _known(cell, subject):
        return None
    model = copy.deepcopy(subject.model)
    model.load_state_dict(tensors)
    return Pruned(model, masks_of(model, known["layers"]), known["fields"])


def _path(folder: Path, cell: Cell) -> Path:
    words = [str(cell[name]) for name in NAMED if cell[name] is not None]
    return folder / (re.sub(r"[^\w.-]+", "-", "_".join(words)) + ".safetensors")


def _known(cell: Cell, subject: Subject) -> dict[str, Any]:
    return {"cell": {name: cell[name] for name in NAMED}, "dense": subject.dense}


def settle() -> None:
    """Collect garbage now, and keep what is left out of later rounds: none of them falls into a timed cell."""
    gc.unfreeze()  # what the cells before have left
    gc.collect()
    gc.freeze()


@functools.lru_cache(maxsize=1)
def warm_up(subject: Subject) -> None:
    """Prune, refine and retrain a subject once, on a few rows."""
    few, device = (subject.images[:WARM_ROWS], subject.labels[:WARM_ROWS]), str(subject.images.device)
    small = prune(subject.model, few[0], 0.9, "wanda", device=device)
    refine(small.model, subject.model, few[0], masks=small.masks, steps=3, device=device)
    retrain(small.model, few, masks=small.masks, validation=few, max_epochs=1, device=device)


@functools.cache
def warm_up_method(method: str, device: str) -> None:
    """Prune a toy network: every library call of the method is made once, at next to no cost."""
    toy = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))
    name, options = parse_method(method)
    rows = torch.randn(WARM_ROWS, 32, generator=torch.Generator().manual_seed(0)).to(device)
    with contextlib.suppress(ConfigError):  # an option that the toy does not suit: the cell itself will say so
        prune(toy.to(device), rows, 0.5, name, options=options, device=device)
