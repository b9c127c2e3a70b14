"""sparsify: a pruned model as one that runs faster, each layer in the form that is fastest on this machine.

    fast = feta.sparsify(result.model, images[:16])
    fast(images)

Dead neurons are taken out, every Linear and Conv2d is measured in each form that can do it, neighbours are fused,
and in the end the whole is timed against the dense model: if it is not faster, the dense layers stay.
"""

import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from feta.calibration.copies import copied
from feta.errors import ConfigError, shown
from feta.gates import gated
from feta.inference import calls
from feta.inference.candidates import LEAST_ZEROS
from feta.inference.choose import DENSE, NOISE, Choice, Chooser
from feta.inference.dead_neurons import shrink
from feta.inference.example import Example, called, observed, of_size, outputs, size_of
from feta.inference.fuse import fuse
from feta.inference.timing import CACHE_BYTES, Timer, timed
from feta.sparsity import measured

TOLERANCE = 1e-3  # of the whole model's outputs, relative: ten times what one layer is allowed
NO_NUMBA = "the kernels of feta's own need numba, which is missing: pip install 'feta-prune[speed]'"


@dataclass(frozen=True)
class LayerChoice:
    """One layer: what it is, which form was chosen, and milliseconds and bytes of both."""

    name: str
    layer: str
    sparsity: float
    kind: str
    dense_ms: dict[int, float]
    sparse_ms: dict[int, float]
    dense_bytes: int
    bytes: int


@dataclass
class Sparsified:
    """The new model with what was measured on the way."""

    model: nn.Module
    layers: list[LayerChoice] = field(default_factory=list)
    dense_ms: dict[int, float] = field(default_factory=dict)
    sparse_ms: dict[int, float] = field(default_factory=dict)
    dense_bytes: int = 0
    bytes: int = 0
    dead_neurons: int = 0
    notes: list[str] = field(default_factory=list)


@gated
def sparsify(model: nn.Module, example: Example, batches: Iterable[int] | int | None = None) -> nn.Module:
    """A model with the same outputs that makes use of its zeros.

        fast = feta.sparsify(result.model, images[:16], batches=(1, 16))

    model: any nn.Module with zeros in its Linear and Conv2d layers; it is not changed.
    example: what the model is called with: a tensor of samples, a tuple of arguments, or a dict of keyword arguments.
    batches: the numbers of samples to be fast for, or one number; by default that of the example.

    Returns a new module in eval mode, for inference alone. It copies, saves, loads and moves like any other; away
    from the device it was made on it uses dense weights. Without numba (extra `speed`) fewer forms can be tried.
    Raises ModelError where the model does not run on the example.
    """
    found = sparsified(model, example, batches)
    for note in found.notes:
        warnings.warn(note, stacklevel=4)
    return found.model


def sparsified(
    model: nn.Module,
    example: Example,
    batches: Iterable[int] | int | None = None,
    *,
    timer: Timer = timed,
    progress: Callable[[str, int, int], None] | None = None,
) -> Sparsified:
    """`sparsify` with everything that was measured; `progress` is told layer, how many are done, and of how many."""
    given = size_of(example) if batches is None else batches
    asked = [given] if isinstance(given, int | Integral) else list(given)
    if not asked or not all(isinstance(size, Integral) and 0 < size < 2**31 for size in asked):
        raise ConfigError(f"sparsify.batches must be whole numbers >= 1, got {shown(asked)}")
    examples = {int(size): of_size(example, int(size)) for size in sorted(set(asked))}
    dense, fast = plain_copy(model), plain_copy(model)
    result = Sparsified(fast, dense_bytes=bytes_of(dense))
    inputs = observed(fast, examples)
    while gone := shrink(fast, inputs):
        result.dead_neurons += gone
        inputs = observed(fast, examples)
    if calls.kernels() is None and any(_could_gain(layer) for layer in inputs):
        result.notes.append(NO_NUMBA)
    cold = result.dense_bytes > CACHE_BYTES
    originals = _replace(fast, inputs, Chooser(timer, cold), result, progress)
    fuse(fast, originals, inputs, timer, cold)
    _judge(dense, examples, timer, result)
    return result


def _could_gain(layer: nn.Module) -> bool:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.device.type == "cpu" and measured(weight) >= LEAST_ZEROS


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode without gradients; weights that are computed on each use (masks held) become plain ones."""
    made = copied(model).eval().requires_grad_(False)
    for module in made.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name)
    return made.requires_grad_(False)


def bytes_of(model: nn.Module) -> int:
    """What the parameters and buffers of a model take in memory; shared ones count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _state(model)}
    return sum(storages.values())


def _state(model: nn.Module) -> Iterable[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _replace(
    fast: nn.Module,
    inputs: Mapping[nn.Module, Mapping[int, Tensor]],
    chooser: Chooser,
    result: Sparsified,
    progress: Callable[[str, int, int], None] | None,
) -> dict[nn.Module, nn.Linear]:
    """Put the chosen form in the place of each layer, wherever it stands; the dense Linear behind each form."""
    names = {module: name for name, module in fast.named_modules()}
    forms: dict[nn.Module, nn.Module] = {}
    originals: dict[nn.Module, nn.Linear] = {}
    for index, (layer, shapes) in enumerate(inputs.items()):
        if progress is not None:
            progress(names[layer], index, len(inputs))
        choice, forms[layer] = chooser.choose(layer, shapes)
        if isinstance(layer, nn.Linear):
            originals[forms[layer]] = layer
        result.layers.append(_described(names[layer], layer, choice, forms[layer]))
    if fast in forms:
        result.model = forms[fast]
    for parent in list(fast.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in forms:
                parent._modules[name] = forms[child]
    return originals


def _described(name: str, layer: nn.Module, choice: Choice, form: nn.Module) -> LayerChoice:
    dense = choice.times[DENSE]
    sparsity = measured(layer.weight)  # type: ignore[arg-type]
    sparse = choice.times[choice.kind]
    return LayerChoice(name, repr(layer), sparsity, choice.kind, dense, sparse, bytes_of(layer), bytes_of(form))


def _judge(dense: nn.Module, examples: Mapping[int, Example], timer: Timer, result: Sparsified) -> None:
    """Time the whole model; put the dense one back if it is not slower, or if outputs do not agree."""
    fast = result.model
    with torch.inference_mode():
        for batch, example in examples.items():
            ways = {
                "dense": lambda example=example: called(dense, example),
                "sparse": lambda example=example: called(fast, example),
            }
            ms = timer(ways, False)
            result.dense_ms[batch], result.sparse_ms[batch] = ms["dense"], ms["sparse"]
        example = next(iter(examples.values()))
        error = distance(called(fast, example), called(dense, example))
    changed = result.dead_neurons > 0 or any(layer.kind != DENSE for layer in result.layers)
    gains = [result.dense_ms[batch] / result.sparse_ms[batch] for batch in examples]
    if error > TOLERANCE:
        result.notes.append(f"the dense layers stay: outputs differed by {error:.1e}, relative to their norm")
    elif changed and (statistics.geometric_mean(gains) <= 1 or min(gains) < 1 / NOISE):
        result.notes.append("the dense layers stay: the whole model was not faster with sparse ones")
    elif changed:
        result.bytes = bytes_of(result.model)
        return
    result.model, result.bytes, result.sparse_ms = dense, result.dense_bytes, dict(result.dense_ms)


def distance(one: object, other: object) -> float:
    """The largest difference of outputs relative to their norm; what is not finite in both alike counts as equal."""
    worst = 0.0
    for ours, theirs in zip(outputs(one), outputs(other), strict=True):
        difference = torch.linalg.vector_norm((ours - theirs).double().nan_to_num(0.0))
        norm = torch.linalg.vector_norm(theirs.double().nan_to_num(0.0))
        worst = max(worst, float(difference / norm.clamp_min(torch.finfo(torch.float64).tiny)))
    return worst
