"""sparsify: a pruned model as one that runs faster, each layer in the form that is fastest on this machine.

    fast = feta.sparsify(result.model, images[:16])
    fast(images)

Dead neurons are taken out, every Linear and Conv2d is measured in each form that can do it, neighbours are fused,
and in the end the whole is timed against the dense model: if it is not faster, the dense layers stay.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral

import torch
from torch import Tensor, nn

from feta.engine.finish import PruneWarning
from feta.errors import ConfigError, ModelError, shown, warn
from feta.gates import gated
from feta.inference import calls, timing
from feta.inference.candidates import LEAST_ZEROS
from feta.inference.choose import DENSE, NOISE, Choice, Chooser
from feta.inference.dead_neurons import shrink
from feta.inference.encoder import run_layers_, unpack_
from feta.inference.example import Example, called, observed, of_size, size_of
from feta.inference.fuse import fuse
from feta.inference.timing import CACHE_BYTES, Timer
from feta.inference.whole import bytes_of, distance, plain_copy, state_of, tolerance
from feta.sparsity import measured

NO_NUMBA = "the kernels of feta's own need numba, which is missing: pip install numba"


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
    joined: int = 0  # modules that run in one call with their neighbours
    notes: list[str] = field(default_factory=list)


@gated
def sparsify(
    model: nn.Module, example: Example, batches: Iterable[int] | int | None = None, *, recorded: bool = False
) -> nn.Module:
    """A model with the same outputs that makes use of its zeros.

        fast = feta.sparsify(result.model, images[:16], batches=(1, 16))

    model: any nn.Module with zeros in its Linear and Conv2d layers; it is not changed.
    example: what the model is called with: a tensor of samples, a tuple of arguments, or a dict of keyword arguments.
    batches: the numbers of samples to be fast for, or one number; by default that of the example. Others are not
        tried and may be slower than dense.
    recorded: on a GPU, be fast for calls that are replayed from a CUDA graph, not for calls from Python, where
        launching a kernel of feta's own takes longer than a small layer does.

    Returns a new module in eval mode, for inference alone. It copies, saves, loads and moves like any other; away
    from the device it was made on it uses dense weights. Without numba (extra `speed`) fewer forms can be tried. A
    PruneWarning says why where no layer was replaced. A Linear and the ReLU behind it become one call in an
    nn.Sequential alone: a small network whose forward calls F.relu gains less.
    Raises ModelError where the model does not run on the example.
    """
    found = sparsified(model, example, batches, timer=timing.recorded if recorded else timing.timed)
    for note in found.notes:
        warn(note, PruneWarning)
    return found.model


def sparsified(
    model: nn.Module,
    example: Example,
    batches: Iterable[int] | int | None = None,
    *,
    timer: Timer = timing.timed,
    progress: Callable[[str, int, int], None] | None = None,
) -> Sparsified:
    """`sparsify` with everything that was measured; `progress` is told layer, how many are done, and of how many."""
    given = size_of(example) if batches is None else batches
    asked = [given] if isinstance(given, int | Integral) else list(given)
    if not asked or not all(isinstance(size, Integral) and 0 < size < 2**31 for size in asked):
        raise ConfigError(f"sparsify.batches must be whole numbers >= 1, got {shown(asked)}")
    examples = {int(size): of_size(example, int(size)) for size in sorted(set(asked))}
    device = next((weight.device for weight in state_of(model)), torch.device("cpu"))
    if timer is timing.recorded and device.type != "cuda":
        raise ConfigError(
            f"sparsify.recorded must be False for a model that is not on a GPU, got one on the {device}"
        )
    dense, fast = plain_copy(model), plain_copy(model)
    unpack_(fast)
    result = Sparsified(fast, dense_bytes=bytes_of(dense))
    # Calls that Python launches on a GPU one by one overlap: how long one of them takes behind a sweep says nothing.
    cold = result.dense_bytes > CACHE_BYTES and (device.type == "cpu" or timer is timing.recorded)
    with torch.cuda.device(device if device.type == "cuda" else -1):
        inputs = observed(fast, examples)
        while gone := shrink(fast, inputs):
            result.dead_neurons += gone
            inputs = observed(fast, examples)
        if calls.kernels() is None and any(_could_gain(layer) for layer in inputs):
            result.notes.append(NO_NUMBA)
        originals = _replace(fast, inputs, Chooser(timer, cold), result, progress)
        run_layers_(fast)
        result.joined = fuse(fast, originals, inputs, timer, cold)
        _judge(dense, examples, timer, result)
    return result


def _could_gain(layer: nn.Module) -> bool:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.device.type == "cpu" and measured(weight) >= LEAST_ZEROS


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


def _unchanged(layers: Iterable[LayerChoice]) -> str:
    """Why no layer was replaced."""
    most = max((layer.sparsity for layer in layers), default=None)
    if most is None:
        return "no Linear or Conv2d without hooks is called with plain tensors"
    if most < LEAST_ZEROS:
        least = f"{100 * LEAST_ZEROS:.0f} %"
        return f"no layer has the {least} zeros that a sparse form needs, at most {100 * most:.3g} %"
    return "each was measured to be fastest as it is; more zeros, or whole neurons (pattern neurons), help"


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
            if math.isinf(ms["dense"]):
                raise ModelError("sparsify.recorded needs a model whose launches can be recorded as a CUDA graph")
            result.dense_ms[batch], result.sparse_ms[batch] = ms["dense"], ms["sparse"]
        example = next(iter(examples.values()))
        error = distance(called(fast, example), called(dense, example))
    changed = result.dead_neurons > 0 or any(layer.kind != DENSE for layer in result.layers)
    gains = [result.dense_ms[batch] / result.sparse_ms[batch] for batch in examples]
    if error > tolerance(dense):
        result.notes.append(f"the dense layers stay: outputs differed by {error:.1e}, relative to their norm")
    elif changed and (min(gains) < 1 / NOISE or statistics.geometric_mean(gains) <= 1):
        result.notes.append("the dense layers stay: the whole model was not faster with sparse ones")
    elif changed:
        result.bytes = bytes_of(result.model)
        return
    else:
        result.notes.append(f"the dense layers stay: {_unchanged(result.layers)}")
    result.model, result.bytes, result.sparse_ms = dense, result.dense_bytes, dict(result.dense_ms)
    result.joined = result.dead_neurons = 0
