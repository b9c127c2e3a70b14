"""Pruned networks kept as files, so that Table 1 and Figure 2 prune each network once.

A file belongs to a cell, and to the dense network that was pruned: another one is not taken for it. It does not know
of changes to the code; after one, use another folder.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feta.files import sparse_file
from feta.masks import masks_of
from feta_lab.workers import Cell

NAMED = ("net", "seed", "method", "sparsity", "samples", "data_name", "device")  # what is pruned, and how


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned network, and what records say of the pruning."""

    model: nn.Module
    masks: dict[str, Tensor]
    fields: dict[str, Any]


def kept_path(folder: Path, cell: Cell) -> Path:
    words = [str(cell[name]) for name in NAMED if cell[name] is not None]
    return folder / (re.sub(r"[^\w.-]+", "-", "_".join(words)) + ".safetensors")


def keep(folder: Path, cell: Cell, dense: Mapping[str, float], pruned: Pruned) -> None:
    known = {
        "cell": _named(cell),
        "dense": dict(dense),
        "layers": list(pruned.masks),
        "fields": pruned.fields,
    }
    sparse_file.write(kept_path(folder, cell), pruned.model.state_dict(), known)


def find(folder: Path, cell: Cell, dense: Mapping[str, float], model: nn.Module) -> Pruned | None:
    """The kept network of a cell, as a copy of the dense `model` with other weights; None if there is none."""
    path = kept_path(folder, cell)
    if not path.exists():
        return None
    tensors, known = sparse_file.read(path)
    if known.get("cell") != _named(cell) or known.get("dense") != dict(dense):
        return None
    model = copy.deepcopy(model)
    model.load_state_dict(tensors)
    return Pruned(model, masks_of(model, known["layers"]), known["fields"])


def _named(cell: Cell) -> dict[str, Any]:
    return {name: cell[name] for name in NAMED}
