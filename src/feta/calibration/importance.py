"""How much each output of a layer matters to the network's own outputs.

    s_j^2 = mean over rows with output j active of   sum_c (d logit_c / d z_j)^2

z is what the layer's activation reads, behind its batch-norm and shortcut. Estimated by a few backward passes of the
original network with random signs on the logits, without labels, over samples drawn from all of the data. It tells a
layer's solver which outputs deserve its weights; one that was never seen active gets the mean.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from feta.calibration.inputs import Batch, generator_of, shared_out
from feta.calibration.lane import kept_rows
from feta.calibration.model import device_of, differentiable, float_dtype, outputs_of, place
from feta.calibration.notes import TRANSPARENT
from feta.calibration.operators import attention, name_of, reading_of
from feta.calibration.trace import ADD, LayerTrace
from feta.layers import weight_path
from feta.ranks import ALONE, Ranks

ON_CPU = 2**22  # logits up to which their signs are drawn on the CPU


def output_importance(
    model: nn.Module,
    layers: Sequence[LayerTrace],
    batches: Iterable[Batch],
    *,
    seed: int = 0,
    probes: int = 8,
    ranks: Ranks = ALONE,
) -> dict[str, Tensor]:
    """s (d_out,) for each layer; a layer that gradients do not reach is left out.

    ranks: processes that share the samples of these batches, which all of them have.
    """
    sums: tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]] = {}, {}
    failed = None
    try:
        sums = _sums(model, layers, shared_out(batches, ranks), _Signs(seed, device_of(model)), probes)
    except RuntimeError as error:
        if not ranks.many or isinstance(error, torch.OutOfMemoryError):
            raise
        failed = error
    if ranks.any(failed is not None):  # a process without samples would not know
        raise failed or RuntimeError("it has none in another process")
    weights = {}
    for layer in layers:
        total, active = (ranks.in_turn(part.get(layer.name, [])) for part in sums)
        if total is not None and active is not None and bool(((s := _mean(total, active)) > 0).any()):
            weights[layer.name] = s
    return weights


def _sums(
    model: nn.Module,
    layers: Sequence[LayerTrace],
    batches: Iterable[tuple[Batch, Tensor]],
    signs: "_Signs",
    probes: int,
) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Squared gradients summed over rows, and the rows on which an output is active, by layer, for each batch."""
    # Detached weights: nothing is held for gradients of the weights, and models that work in place can be run.
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    watched = {id(weights[path]): layer for layer in layers for path in [weight_path(model, layer.name)]}
    totals: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    active: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    careful = False
    for batch, numbers in batches:
        mode = _Outputs(watched)
        signs.begin(numbers)
        try:
            squares = _squares(model, weights, batch, mode, signs, probes, careful)
        except RuntimeError as error:
            if careful or "inplace operation" not in str(error):
                raise
            mode, careful = _Outputs(watched), True
            signs.begin(numbers)
            squares = _squares(model, weights, batch, mode, signs, probes, careful)
        for layer in layers:
            if layer.name in squares:
                z, dim = mode.outputs[layer.name].detach(), 1 if layer.operator.spatial else -1
                z, found = (t.movedim(dim, -1).reshape(-1, t.shape[dim]) for t in (z, squares[layer.name]))
                if (keep := kept_rows(batch, mode.outputs[layer.name], layer.operator)) is not None:
                    z, found = z[keep.to(z.device)], found[keep.to(z.device)]  # padding is no row
                totals[layer.name].append(found.double().sum(0))
                active[layer.name].append((z > 0).sum(0))
    return totals, active


def _squares(
    model: nn.Module,
    weights: dict[str, Tensor],
    batch: Batch,
    mode: "_Outputs",
    signs: "_Signs",
    probes: int,
    careful: bool,
) -> dict[str, Tensor]:
    """Squared gradients of what the mode holds, layer by layer, a mean over probes.

    careful: whether copies are kept for the way back, for models that write to what it needs: ReLU, then x += f(x).
    """
    batch = place(batch, device_of(model), float_dtype(model))
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else ((batch,), {})
    copies = saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor)
    with torch.enable_grad(), differentiable(model), copies if careful else nullcontext():
        with mode, _kept_parameters(model):
            logits = outputs_of(functional_call(model, weights, args, kwargs))
        if not logits.requires_grad:
            return {}
        names = list(mode.outputs)
        squares = {name: torch.zeros_like(mode.outputs[name], dtype=torch.float32) for name in names}
        for _ in range(probes):
            wanted = [mode.outputs[name] for name in names]
            found = torch.autograd.grad(logits, wanted, signs.like(logits), retain_graph=True, allow_unused=True)
            for name, gradient in zip(names, found, strict=True):
                if gradient is not None:
                    squares[name] += gradient.float().square() / probes
    return squares


class _Signs:
    """Random signs, drawn for every sample by its number: the same whatever the batches and the processes.

    Drawn on the CPU every device has the same; a language model's logits are too many for that.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device

    def begin(self, numbers: Tensor) -> None:
        """The samples of the next logits, by their numbers."""
        self.numbers: list[int] = numbers.tolist()
        self.generators: list[torch.Generator] = []

    def like(self, logits: Tensor) -> Tensor:
        # Where samples have no rows of their own, the first one's signs serve all.
        numbers = self.numbers if len(logits) == len(self.numbers) else self.numbers[:1]
        where = torch.device("cpu") if logits.numel() <= ON_CPU else self.device
        if not self.generators:
            self.generators = [generator_of(self.seed, number, where) for number in numbers]
        size = (logits.numel() // len(numbers),)
        parts = [torch.randint(0, 2, size, generator=g, device=where) for g in self.generators]
        return 2 * torch.cat(parts).view(logits.shape).to(logits) - 1


@contextmanager
def _kept_parameters(model: nn.Module) -> Iterator[None]:
    """The modules' parameters as they were: functional_call leaves its own in some modules that share a weight."""
    before = [(module, dict(module._parameters)) for module in model.modules()]
    try:
        yield
    finally:
        for module, parameters in before:
            module._parameters.update(parameters)
            for name in parameters:
                module.__dict__.pop(name, None)


def _mean(total: Tensor, active: Tensor) -> Tensor:
    s = (total / active.clamp_min(1)).sqrt()
    seen = active > 0
    return s.where(seen, s[seen].mean()) if bool(seen.any()) else s


class _Outputs(TorchFunctionMode):
    """Holds what the activation behind each layer reads, of its last call, so that gradients can be asked for."""

    def __init__(self, layers: Mapping[int, LayerTrace]) -> None:
        super().__init__()
        self.layers = layers
        self.outputs: dict[str, Tensor] = {}
        self.tagged: dict[int, tuple[Tensor, list[LayerTrace]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return attention(self, args, kwargs)
        reading = reading_of(func, args, kwargs)
        if reading is not None:
            found = [self.layers[id(reading.weight)]] if id(reading.weight) in self.layers else []
        else:
            tags = (layer for value in args if id(value) in self.tagged for layer in self.tagged[id(value)][1])
            found = [layer for layer in tags if _follows(name_of(func), layer)]
        result = func(*args, **kwargs)
        if not found:
            return result
        if name_of(func) not in TRANSPARENT:
            # Weights are detached and inputs may be whole numbers: nothing else would ask for gradients.
            result = result if result.requires_grad else result.detach().requires_grad_()
            self.outputs.update((layer.name, result) for layer in found)
        handed = result.clone()  # in-place functions that follow must not touch what is kept
        self.tagged[id(handed)] = handed, found
        return handed


def _follows(name: str, layer: LayerTrace) -> bool:
    """Whether a function may lie between the layer and its activation."""
    norm, shortcut = layer.follow.norm is not None, layer.follow.shortcut
    return (
        (name == "batch_norm" and norm) or (name in ADD and shortcut) or (name in TRANSPARENT and (norm or shortcut))
    )
