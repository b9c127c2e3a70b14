"""feta: prune trained neural networks, without retraining.

    result = feta.prune(model, images, sparsity=0.9)
    result.model, result.masks, result.report

Names are resolved when they are first used, so that `feta --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feta.certificates.attack import Attack
    from feta.certificates.certificate import Certificate, certify
    from feta.engine.prune import PruneResult, prune, smart_prune
    from feta.engine.run import PruneEvent
    from feta.errors import ConfigError, DataError, FetaError, FileError, ModelError
    from feta.files.low_rank import low_rank
    from feta.masks import hold_zeros, masks_of
    from feta.problem import Activation, LayerProblem, LayerSolution, Pruner, Status
    from feta.pruners.alps import Alps
    from feta.pruners.corenet import Corenet
    from feta.pruners.exact_obs import ExactObs
    from feta.pruners.feta import Feta
    from feta.pruners.lobs import Lobs
    from feta.pruners.net_trim import NetTrim
    from feta.pruners.sparsegpt import SparseGpt
    from feta.pruners.threshold import Threshold
    from feta.pruners.wanda import Wanda
    from feta.report import LayerReport, PruneReport, RefineReport, RetrainReport
    from feta.sparsity import Sparsity
    from feta.theory.bounds import BoundsReport, generalisation_bounds
    from feta.theory.dimension import Dimension, intrinsic_dimension
    from feta.theory.robustness import Manifold
    from feta.tuning.refine import RefineResult, refine
    from feta.tuning.refine_run import Refinement
    from feta.tuning.retrain import RetrainResult, retrain
    from feta_lab.store import Network, load, load_into, save

__version__ = "0.1.0"

_HOMES = {
    "feta.certificates.attack": ("Attack",),
    "feta.certificates.certificate": ("Certificate", "certify"),
    "feta.theory.dimension": ("Dimension", "intrinsic_dimension"),
    "feta.theory.bounds": ("BoundsReport", "generalisation_bounds"),
    "feta.theory.robustness": ("Manifold",),
    "feta.errors": ("ConfigError", "DataError", "FetaError", "FileError", "ModelError"),
    "feta_lab.store": ("Network", "load", "load_into", "save"),
    "feta.problem": ("Activation", "LayerProblem", "LayerSolution", "Pruner", "Status"),
    "feta.files.low_rank": ("low_rank",),
    "feta.pruners.alps": ("Alps",),
    "feta.pruners.corenet": ("Corenet",),
    "feta.pruners.exact_obs": ("ExactObs",),
    "feta.pruners.feta": ("Feta",),
    "feta.pruners.lobs": ("Lobs",),
    "feta.pruners.net_trim": ("NetTrim",),
    "feta.pruners.sparsegpt": ("SparseGpt",),
    "feta.pruners.threshold": ("Threshold",),
    "feta.pruners.wanda": ("Wanda",),
    "feta.engine.run": ("PruneEvent",),
    "feta.engine.prune": ("PruneResult", "prune", "smart_prune"),
    "feta.masks": ("hold_zeros", "masks_of"),
    "feta.tuning.refine_run": ("Refinement",),
    "feta.tuning.refine": ("RefineResult", "refine"),
    "feta.report": ("LayerReport", "PruneReport", "RefineReport", "RetrainReport"),
    "feta.tuning.retrain": ("RetrainResult", "retrain"),
    "feta.sparsity": ("Sparsity",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Activation",
    "Alps",
    "Attack",
    "BoundsReport",
    "Certificate",
    "ConfigError",
    "Corenet",
    "DataError",
    "Dimension",
    "ExactObs",
    "Feta",
    "FetaError",
    "FileError",
    "LayerProblem",
    "LayerReport",
    "LayerSolution",
    "Lobs",
    "Manifold",
    "ModelError",
    "NetTrim",
    "Network",
    "PruneEvent",
    "PruneReport",
    "PruneResult",
    "Pruner",
    "RefineReport",
    "RefineResult",
    "Refinement",
    "RetrainReport",
    "RetrainResult",
    "SparseGpt",
    "Sparsity",
    "Status",
    "Threshold",
    "Wanda",
    "certify",
    "generalisation_bounds",
    "hold_zeros",
    "intrinsic_dimension",
    "load",
    "load_into",
    "low_rank",
    "masks_of",
    "prune",
    "refine",
    "retrain",
    "save",
    "smart_prune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'feta' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
