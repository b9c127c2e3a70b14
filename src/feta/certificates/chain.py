"""A network as a chain of stages, found by tracing it. Certificates and the theorems work on chains.

Batch-norm in eval mode is folded into the layer before it; dropout and identities fall away. Anything else
(residual sums, attention, a sigmoid) is refused by name.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from feta.calibration.copies import copied
from feta.calibration.model import device_of
from feta.calibration.recording import running
from feta.certificates.stages import Affine, AvgPool, Flatten, MaxPool, Normed, ReLU, Shape, Stage, window_means
from feta.errors import ConfigError, ModelError

NOTHING = (nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.Identity)
# Functions are known by what they are, not by their names: a user's `relu` may be anything.
FUNCTIONS: tuple[Any, ...] = (F.relu, F.relu_, torch.relu, torch.relu_, F.max_pool2d, torch.max_pool2d, F.avg_pool2d)
FUNCTIONS += (F.adaptive_avg_pool2d, torch.flatten, torch.reshape, torch.squeeze, torch.clone)
FUNCTIONS += (F.dropout, F.dropout2d, torch.dropout)
UNDERSTOOD = "Linear, Conv2d, BatchNorm, ReLU, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Flatten and Dropout, in a row"
CLOSE = 1e-8  # how far chain and model may be apart, relative: both run in float64


@dataclass(frozen=True, eq=False)
class Chain:
    """Stages in order, in float64; the network is their composition."""

    stages: tuple[Stage, ...]

    @property
    def affines(self) -> tuple[Affine, ...]:
        return tuple(stage for stage in self.stages if isinstance(stage, Affine))

    @property
    def in_shape(self) -> Shape:
        return self.stages[0].in_shape

    @property
    def out_shape(self) -> Shape:
        return self.stages[-1].out_shape

    def place(self, x: Tensor) -> Tensor:
        """A batch in float64, where the chain is."""
        return x.to(self.affines[0].weight)

    def values(self, x: Tensor) -> Iterator[Tensor]:
        """The inputs of a batch, and what every stage makes of them in turn."""
        return accumulate(self.stages, lambda value, stage: stage.apply(value), initial=self.place(x))

    def apply(self, x: Tensor) -> Tensor:
        """The network's output for a batch."""
        return reduce(lambda value, stage: stage.apply(value), self.stages, self.place(x))


@torch.no_grad()
def chain_of(model: nn.Module, example: Tensor) -> Chain:
    """The chain that computes what `model` does in eval mode, in float64 and on the model's device.

    The model is not changed. A copy is compared with the chain on noise and on every row of `example`, a batch.
    Raises ModelError where the model is not a chain of stages that are known.
    """
    if not isinstance(example, Tensor) or example.ndim < 2 or not example.is_floating_point():
        raise ConfigError("example must be a batch of float inputs, samples as rows")
    for name, module in model.named_modules():  # a hook may do anything, and no stage would show it
        if module._forward_hooks or module._forward_pre_hooks:
            cure = "remove it, torch's own pruning by torch.nn.utils.prune.remove"
            where = name or type(module).__name__
            raise ModelError(f"the network must have no forward hooks, got one on '{where}'; {cure}")
    twin = copied(model).eval().double()
    example = example.to(device_of(twin), torch.float64, copy=True)
    chain = Chain(tuple(_stages(twin, example[:2])))
    if not chain.affines:
        raise ModelError("the network must have at least one Linear or Conv2d layer, got none")
    noise = torch.randn(example[:2].shape, generator=torch.Generator().manual_seed(0)).to(example)
    for x in (example, noise):
        expected, got = twin(x.clone()), chain.apply(x)
        if not isinstance(expected, Tensor):
            raise ModelError(f"the network must return a tensor, got {type(expected).__name__}")
        if not bool(torch.isfinite(expected).all()):
            if x is example:
                raise ModelError("the network must give finite outputs on the example, got inf or NaN")
            continue  # noise may go where no input goes
        close = CLOSE * float(expected.abs().max())
        if expected.shape != got.shape or not torch.allclose(expected, got, CLOSE, close):
            raise ModelError(f"the network must do what its stages do, got other outputs; chains are {UNDERSTOOD}")
    return chain


def check_scores(chain: Chain) -> None:
    """Raise ModelError where the chain does not end in class scores, or a Linear layer gets more than vectors."""
    if len(chain.out_shape) != 1 or chain.out_shape[0] < 2:
        raise ModelError(f"certify must get networks with two or more class scores, got {chain.out_shape}")
    for stage in chain.affines:
        if isinstance(stage.layer, nn.Linear) and len(stage.in_shape) != 1:
            raise ModelError(f"layer '{stage.name}' must get vectors, got samples of shape {stage.in_shape}")


def _stages(model: nn.Module, example: Tensor) -> list[Stage]:
    try:
        run = fx.Interpreter(model, garbage_collect_values=False, graph=_graph(model))
    except Exception as error:  # fx lets through whatever the model's own code raised
        reason = " ".join(str(error).split())
        raise ModelError(f"the network must be {UNDERSTOOD}, got one that cannot be traced: {reason}") from error
    with running(example):
        run.run(example.clone())
    values: dict[fx.Node, Any] = run.env
    last: Any = next((node for node in values if node.op == "placeholder"), None)
    # normed: stages that hold a batch-norm already; the rounding between it and a second one would be in no box.
    stages, normed = list[Stage](), set[int]()
    for node, value in values.items():
        if node is last or not isinstance(value, Tensor) or node.op == "output":
            continue
        name = str(node.target) if node.op == "call_module" else node.name
        read = [source for source in node.all_input_nodes if isinstance(values[source], Tensor)]
        if read != [last]:
            got = f"'{name}' which reads {' and '.join(source.name for source in read) or 'no input'}"
            raise ModelError(f"the network must be a chain, got {got}; chains are {UNDERSTOOD}")
        module = model.get_submodule(name) if node.op == "call_module" else _as_module(node, values)
        if isinstance(module, _BatchNorm):
            _add_norm(stages, name, module, tuple(value.shape[1:]), fold=len(stages) - 1 not in normed)
            normed.add(len(stages) - 1)
        elif not isinstance(module, NOTHING):
            stages.append(_stage(name, module, values[last], value))
        last = node
    return stages


def _step(tracer: fx.Tracer, name: str, *args: Any, **kwargs: Any) -> fx.Proxy:
    return tracer.create_proxy("call_module", name, args, kwargs)


def _graph(model: nn.Module) -> fx.Graph:
    """What a model of our own does with its input; layers of torch's are steps of it.

    fx.symbolic_trace would do, but it changes nn.Module itself while it works: other threads run through its tracer.
    """
    tracer = fx.Tracer()
    tracer.root, tracer.graph, tracer.tensor_attrs = model, fx.Graph(), {}
    layers = [(n, m) for n, m in model.named_modules() if n and tracer.is_leaf_module(m, n)]
    try:
        for name, layer in layers:
            layer.forward = partial(_step, tracer, name)
        found = model(tracer.create_proxy("placeholder", "x", (), {}))
        tracer.create_node("output", "output", (tracer.create_arg(found),), {})
    finally:
        for _, layer in layers:
            vars(layer).pop("forward", None)
    return tracer.graph


def _stage(name: str, module: nn.Module | None, x: Tensor, y: Tensor) -> Stage:
    """The stage of a module that was seen to make a batch y out of a batch x."""
    before, after = tuple(x.shape[1:]), tuple(y.shape[1:])
    match module:
        case nn.Linear() | nn.Conv2d():
            bias = module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias.detach()
            return Affine(name, before, after, module, module.weight.detach(), bias)
        case nn.ReLU():
            return ReLU(name, before, after)
        case nn.Flatten():
            return Flatten(name, before, after)
        case nn.MaxPool2d() if not module.return_indices:
            return MaxPool(name, before, after, module)
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            sizes = enumerate(zip(before[1:], after[1:], strict=True))
            down, across = (window_means(module, *size, axis).to(y) for axis, size in sizes)
            divisor = getattr(module, "divisor_override", None) or 1
            if divisor < 0:
                raise ModelError(f"pooling '{name}' must have a divisor > 0, got {divisor}")
            return AvgPool(name, before, after, down / divisor, across)
    kind = "a function" if module is None else type(module).__name__
    raise ModelError(f"the network must be {UNDERSTOOD}, got '{name}' ({kind})")


def _as_module(node: fx.Node, values: Mapping[fx.Node, Any]) -> nn.Module | None:
    """The module that does what a called function or method does; None where there is none."""
    known = isinstance(node.target, str) or node.target in FUNCTIONS
    called = str(getattr(node.target, "__name__", node.target)) if known else ""
    rest: Any = fx.node.map_arg(node.args[1:], values.get)
    given: Any = fx.node.map_arg({k: v for k, v in node.kwargs.items() if k != "input"}, values.get)
    with suppress(TypeError):  # arguments that the module does not take
        match called.rstrip("_"):
            case "relu":
                return nn.ReLU()
            case "flatten" | "view" | "reshape" | "squeeze":
                return nn.Flatten()
            case "dropout" | "dropout2d" | "contiguous" | "clone":
                return nn.Identity()
            case "max_pool2d":
                names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
                return nn.MaxPool2d(**dict(zip(names, rest, strict=False)), **given)
            case "avg_pool2d":
                return nn.AvgPool2d(*rest, **given)
            case "adaptive_avg_pool2d":
                return nn.AdaptiveAvgPool2d(*rest, **given)
    return None


def _add_norm(stages: list[Stage], name: str, norm: _BatchNorm, shape: Shape, *, fold: bool) -> None:
    """Put batch-norm, a factor and a shift per channel, into the layer before it or into a stage of its own."""
    if norm.running_mean is None or norm.running_var is None:
        raise ModelError(f"batch-norm '{name}' must have running statistics, got those of each batch")
    if len(shape) not in (1, 3):
        raise ModelError(f"batch-norm '{name}' must act on vectors or images, got samples of shape {shape}")
    last = stages[-1] if stages and fold else None
    if not isinstance(last, Affine) or isinstance(last.layer, nn.Conv2d) != (len(shape) == 3):
        n, mean = shape[0], norm.running_mean
        layer = nn.Conv2d(n, n, 1, groups=n) if len(shape) == 3 else nn.Linear(n, n)
        weight = torch.ones(n, 1, 1, 1) if len(shape) == 3 else torch.eye(n)
        last = Affine(name, shape, shape, layer.to(mean), weight.to(mean), torch.zeros_like(mean))
        stages.append(last)
    statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    folded, shifted = fuse_conv_bn_weights(last.weight, last.bias, *statistics)
    sharpness = (norm.running_var + norm.eps).rsqrt()
    gamma = torch.ones_like(sharpness) if norm.weight is None else norm.weight.detach().abs()
    factor = torch.stack([sharpness, gamma, sharpness * gamma]).amax(0)
    before = Normed(replace(last, bias=last.bias.abs() + norm.running_mean.abs()), factor)
    stages[-1] = replace(last, weight=folded.detach(), bias=shifted.detach(), normed=before)
