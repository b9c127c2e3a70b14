"""What a run's page, its notebook view and its text say in the same words: the table of layers, and what it means."""

from collections.abc import Mapping
from typing import Any

from feta.pages.words import in_words, percent, significant

Found = Mapping[str, Any]  # PruneReport.to_dict()

FITTED = "on the samples that were fitted"
HEADER = ("layer", "shape", "non-zeros", "zeros", "error", "seconds", "status")
AS_PRUNED = "as the layers were pruned, before the network was fitted as a whole"
UNSEEN = "held-out samples come from the calibration data; on data the network never saw expect more changes"
MIXED = "+mixtures"  # behind a measure of few samples and of mixtures of them
MEASURES = {
    "kl": "KL divergence",
    "mse": "mean squared difference",
    "cosine": "1 − cosine",
    "probabilities": "difference of probabilities",
}


def layer_row(layer: Found) -> tuple[str, ...]:
    """A layer's fields as text, under HEADER."""
    error, shape = error_of(layer), "×".join(map(str, layer["shape"]))
    numbers = (f"{layer['nonzeros']:,}", percent(layer["sparsity"]), "–" if error is None else significant(error))
    return (in_words(layer["name"]) or "the layer", shape, *numbers, f"{layer['seconds']:.3f}", layer["status"])


def error_of(layer: Found) -> float | None:
    """Of the layer as it is or, where the whole network was fitted since, as it was pruned."""
    found: float | None = layer["relative_error"]
    return layer.get("pruned_error") if found is None else found


def as_pruned(found: Found) -> bool:
    """Whether the whole network was fitted after the errors of its layers were measured."""
    return any(layer["relative_error"] is None and error_of(layer) is not None for layer in found["layers"])


def judged_on(found: Found) -> str:
    """The samples that the errors are of."""
    return FITTED if found.get("judged_by") == 0 else "on held-out samples"


def errors_said(found: Found) -> str:
    """Of which samples and which network the errors are, where that needs to be said."""
    parts = [FITTED] if judged_on(found) == FITTED else []
    parts += [AS_PRUNED] if as_pruned(found) else []
    return ", ".join(parts) if any(error_of(layer) is not None for layer in found["layers"]) else ""


def measure_of(found: Found) -> str:
    """By what the stages' distances are measured: all are judged alike."""
    return next((measure_said(stage["measure"]) for stage in found["stages"] if stage["measure"]), "")


def measure_said(measure: str) -> str:
    """A measure in words."""
    return MEASURES[measure.removesuffix(MIXED)] + " (also on mixtures of samples)" * measure.endswith(MIXED)
