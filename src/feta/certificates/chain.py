"""A network as a chain of stages, found by tracing it: what bounds and certificates work on.

chain = chain_of(model, images[:2]);  chain.apply(x);  chain.affines[0].norm.upper

Batch-norm in eval mode is folded into the layer before it; dropout and identities fall away. Whatever else a
network may do (residual sums, attention, a sigmoid) is refused by name. The chain is run against the model on
the example before it is handed out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.certificates.stages import Affine, AvgPool, Flatten, MaxPool, ReLU, Shape, Stage, window_means
from feta.errors import ConfigError, ModelError

NOTHING = (nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.Identity)
NOTHING_CALLS = {"dropout", "dropout2d", "contiguous", "clone"}
SHAPING_CALLS = {"flatten", "view", "reshape", "squeeze"}
# Functions are known by what they are, not by their names: a user's `relu` may be anything.
FUNCTIONS: Mapping[Callable[..., Any], str] = {
    F.relu: "relu", F.relu_: "relu", torch.relu: "relu", torch.relu_: "relu",
    F.max_pool2d: "max_pool2d", torch.max_pool2d: "max_pool2d",
    F.avg_pool2d: "avg_pool2d", F.adaptive_avg_pool2d: "adaptive_avg_pool2d",
    torch.flatten: "flatten", torch.reshape: "reshape", torch.squeeze: "squeeze", torch.clone: "clone",
    F.dropout: "dropout", F.dropout2d: "dropout2d", torch.dropout: "dropout",
}  # fmt: skip
UNDERSTOOD = (
    "Linear, Conv2d, BatchNorm, ReLU, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Flatten and Dropout one after "
    "the other"
)


@dataclass(frozen=True, eq=False)
class Chain:
    """Stages in order; the network is their composition."""

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

    @property
    def dtype(self) -> torch.dtype:
        return self.affines[0].weight.dtype

    @property
    def device(self) -> torch.device:
        return self.affines[0].weight.device

    def apply(self, x: Tensor) -> Tensor:
        """The network's output for a batch, in the chain's dtype."""
        x = x.to(self.device, self.dtype)
        for stage in self.stages:
            x = stage.apply(x)
        return x


@torch.no_grad()
def chain_of(model: nn.Module, example: Tensor, dtype: torch.dtype = torch.float64) -> Chain:
    """The chain that computes what `model` does in eval mode on inputs like `example` (a batch).

    The model is copied, not changed; the chain stays on the model's device. On every row of the example it is
    compared with the model.
    """
    if not isinstance(example, Tensor) or example.ndim < 2 or not example.is_floating_point():
        raise ConfigError("example must be a batch of float inputs, samples as rows")
    _check_hooks(model)
    twin = copy.deepcopy(model).eval().to(dtype)
    device = next((p.device for p in twin.parameters()), torch.device("cpu"))
    example = example.to(device, dtype, copy=True)
    stages = tuple(_stages(twin, example[:2]))
    if not any(isinstance(stage, Affine) for stage in stages):
        raise ModelError("the network must have at least one Linear or Conv2d layer, got none")
    chain = Chain(stages)
    _check(chain, twin, example)
    return chain


class _Recorder(fx.Interpreter):
    """Runs a traced network and keeps what every node gave."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.shapes[n] = tuple(result.shape) if isinstance(result, Tensor) else None
        self.others[n] = None if isinstance(result, Tensor) else result
        return result

    def watch(self, x: Tensor) -> dict[fx.Node, Shape | None]:
        self.shapes: dict[fx.Node, Shape | None] = {}
        self.others: dict[fx.Node, Any] = {}  # sizes and the like, which other nodes may ask for
        self.run(x.clone())
        return self.shapes


def _stages(model: nn.Module, example: Tensor) -> list[Stage]:
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:  # fx lets through whatever the model's own code raised
        reason = " ".join(str(error).split())
        raise ModelError(
            f"the network must be {UNDERSTOOD}, got one that cannot be traced: {reason}"
        ) from error
    recorder = _Recorder(traced)
    shapes = recorder.watch(example)
    last: fx.Node | None = None
    stages: list[Stage] = []
    # Stages that a batch-norm is in: what rounding adds between two of them would be in no box.
    normed: set[int] = set()
    for node, shape in shapes.items():
        if shape is None or node.op == "output":
            continue
        if node.op == "placeholder" and last is None:
            last = node
            continue
        read = [source for source in node.all_input_nodes if shapes[source] is not None]
        if last is None or read != [last]:
            names = " and ".join(source.name for source in read) or "no input"
            raise ModelError(
                f"the network must be a chain, got '{_name(node)}' which reads {names}; chains are {UNDERSTOOD}"
            )
        before = shapes[last] or ()
        called = node.op == "call_module"
        module = model.get_submodule(_name(node)) if called else _as_module(node, recorder.others)
        if isinstance(module, _BatchNorm):
            _add_norm(stages, _name(node), module, before[1:], fold=len(stages) - 1 not in normed)
            normed.add(len(stages) - 1)
        elif not isinstance(module, NOTHING):
            stages.append(_stage(_name(node), module, before[1:], shape[1:], example))
        last = node
    return stages


def _name(node: fx.Node) -> str:
    return node.target if node.op == "call_module" and isinstance(node.target, str) else node.name


def _stage(name: str, module: nn.Module | None, before: Shape, after: Shape, like: Tensor) -> Stage:
    match module:
        case nn.Linear() | nn.Conv2d():
            bias = module.weight.new_zeros(module.weight.shape[0]) if module.bias is None else module.bias
            return Affine(name, module, module.weight.detach(), bias.detach(), before, after)
        case nn.ReLU():
            return ReLU(name, before, after)
        case nn.Flatten():
            return Flatten(name, before, after)
        case nn.MaxPool2d() if not module.return_indices:
            return MaxPool(name, module, before, after)
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            return _avg_pool(name, module, before, after, like)
    kind = "a function" if module is None else type(module).__name__
    raise ModelError(f"the network must be {UNDERSTOOD}, got '{name}' ({kind})")


def _check_hooks(model: nn.Module) -> None:
    """What a hook does is in no stage."""
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise ModelError(
                f"the network must have no forward hooks, got one on '{name or type(module).__name__}'; remove it, "
                "torch's own pruning by torch.nn.utils.prune.remove"
            )


def _as_module(node: fx.Node, others: Mapping[fx.Node, Any]) -> nn.Module | None:
    """The module that does what a called function or method does, or None."""
    called = node.target.rstrip("_") if isinstance(node.target, str) else FUNCTIONS.get(node.target, "")
    given: Mapping[str, Any] = {
        key: fx.node.map_arg(value, others.get) for key, value in node.kwargs.items() if key != "input"
    }
    rest = fx.node.map_arg(node.args[1:], others.get)
    try:
        if called == "relu":
            return nn.ReLU()
        if called in SHAPING_CALLS:
            return nn.Flatten()
        if called in NOTHING_CALLS:
            return nn.Identity()
        if called == "max_pool2d":
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            return nn.MaxPool2d(**{**dict(zip(names, rest, strict=False)), **given})
        if called == "avg_pool2d":
            return nn.AvgPool2d(*rest, **given)  # type: ignore[arg-type]
        if called == "adaptive_avg_pool2d":
            return nn.AdaptiveAvgPool2d(*rest, **given)  # type: ignore[arg-type]
    except TypeError:
        return None
    return None


def _add_norm(stages: list[Stage], name: str, norm: _BatchNorm, shape: Shape, *, fold: bool) -> None:
    """Batch-norm with running statistics: a factor and a shift per channel, put into the layer before it."""
    if norm.running_mean is None or norm.running_var is None:
        raise ModelError(
            f"batch-norm '{name}' must have running statistics, got one that normalises each batch by itself"
        )
    if len(shape) not in (1, 3):
        raise ModelError(f"batch-norm '{name}' must act on vectors or images, got samples of shape {shape}")
    scale = torch.rsqrt(norm.running_var + norm.eps)
    shift = -norm.running_mean * scale
    if norm.affine:
        scale, shift = scale * norm.weight.detach(), shift * norm.weight.detach() + norm.bias.detach()
    channels = len(scale)
    last = stages[-1] if stages and fold else None
    if isinstance(last, Affine) and isinstance(last.layer, nn.Conv2d) == (len(shape) == 3):
        weight = last.weight * scale.reshape(-1, *[1] * (last.weight.ndim - 1))
        stages[-1] = replace(last, weight=weight, bias=last.bias * scale + shift)
    elif len(shape) == 3:  # nothing to put it into: a layer of its own
        conv = nn.Conv2d(channels, channels, 1, groups=channels).to(scale)
        stages.append(Affine(name, conv, scale.reshape(-1, 1, 1, 1), shift, shape, shape))
    else:
        linear = nn.Linear(channels, channels).to(scale)
        stages.append(Affine(name, linear, torch.diag(scale), shift, shape, shape))


def _avg_pool(
    name: str, pool: nn.AvgPool2d | nn.AdaptiveAvgPool2d, before: Shape, after: Shape, like: Tensor
) -> AvgPool:
    rows, columns = (
        window_means(pool, size_in, size_out, axis).to(like)
        for axis, (size_in, size_out) in enumerate(zip(before[1:], after[1:], strict=True))
    )
    if isinstance(pool, nn.AvgPool2d) and pool.divisor_override:
        if pool.divisor_override < 0:
            raise ModelError(f"pooling '{name}' must have a divisor > 0, got {pool.divisor_override}")
        rows = rows / pool.divisor_override
    return AvgPool(name, rows, columns, before, after)


def _check(chain: Chain, model: nn.Module, example: Tensor) -> None:
    """The chain must give what the model gives, on the example and on noise."""
    noise = torch.randn(example[:2].shape, generator=torch.Generator().manual_seed(0)).to(example)
    slack = 1e-3 if chain.dtype == torch.float32 else 1e-8
    for x in (example, noise):
        expected, got = model(x.clone()), chain.apply(x)
        if not isinstance(expected, Tensor):
            raise ModelError(f"the network must return a tensor, got {type(expected).__name__}")
        if not bool(torch.isfinite(expected).all()):
            if x is example:
                raise ModelError("the network must give finite outputs on the example, got inf or NaN")
            continue  # noise may go where no input goes
        close = slack * float(expected.abs().max())
        if expected.shape != got.shape or not torch.allclose(expected, got, slack, close):
            raise ModelError(
                "the network must do what its stages do one after the other, got other outputs; "
                f"chains are {UNDERSTOOD}"
            )
