"""feta: prune trained neural networks, without retraining.

    result = feta.prune(model, images, sparsity=0.9)
    result.model, result.masks, result.report

Names are resolved when they are first used, so that `feta --help` does not wait for torch. Methods live in
feta.pruners, ways to spread a budget in feta.allocation, the paper's theorems in feta.theory.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feta.certificates.certificate import certify
    from feta.engine.finish import PruneWarning
    from feta.engine.prune import PruneResult, prune
    from feta.engine.settings import Settings
    from feta.engine.smart_prune import smart_prune
    from feta.errors import ConfigError, DataError, FetaError, FileError, ModelError
    from feta.files.network import load, load_into, save
    from feta.inference.sparsify import sparsify
    from feta.masks import hold_zeros, masks_of
    from feta.problem import Activation, LayerProblem, LayerSolution, Needs, Pruner, Status
    from feta.sparsity import Sparsity
    from feta.structured.shrink import ShrinkResult, shrink
    from feta.tuning.refine import refine
    from feta.tuning.refinement import Refinement
    from feta.tuning.retrain import Retraining, retrain

__version__ = "0.2.0"

_HOMES = {
    "feta.certificates.certificate": ("certify",),
    "feta.engine.finish": ("PruneWarning",),
    "feta.engine.prune": ("PruneResult", "prune"),
    "feta.engine.settings": ("Settings",),
    "feta.engine.smart_prune": ("smart_prune",),
    "feta.errors": ("ConfigError", "DataError", "FetaError", "FileError", "ModelError"),
    "feta.files.network": ("load", "load_into", "save"),
    "feta.inference.sparsify": ("sparsify",),
    "feta.masks": ("hold_zeros", "masks_of"),
    "feta.problem": ("Activation", "LayerProblem", "LayerSolution", "Needs", "Pruner", "Status"),
    "feta.sparsity": ("Sparsity",),
    "feta.structured.shrink": ("ShrinkResult", "shrink"),
    "feta.tuning.refine": ("refine",),
    "feta.tuning.refinement": ("Refinement",),
    "feta.tuning.retrain": ("Retraining", "retrain"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["certify", "hold_zeros", "load", "load_into", "masks_of", "prune", "refine", "retrain", "save", "sparsify"]
__all__ += ["PruneResult", "Refinement", "Retraining", "Settings", "ShrinkResult", "Sparsity"]
__all__ += ["shrink", "smart_prune"]
__all__ += ["Activation", "LayerProblem", "LayerSolution", "Needs", "Pruner", "Status"]  # for methods of one's own
__all__ += ["ConfigError", "DataError", "FetaError", "FileError", "ModelError", "PruneWarning"]


def __getattr__(name: str) -> Any:
    if name in ("allocation", "files", "pruners", "theory"):  # rooms with names that users need
        return importlib.import_module(f"feta.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'feta' has no attribute '{name}'")
    globals()[name] = value = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
