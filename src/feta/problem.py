"""One layer as a pruning problem, its solution, and the contract every method keeps.

Samples are rows: A (m, d_in) holds the layer's inputs, W (d_in, d_out) its trained weights,
B (m, d_out) the outputs to reproduce, U (d_in, d_out) the pruned weights:

    B = rho(A0 W + bias)      find a sparse U with      rho(A U + bias') close to B

A0 are the inputs in the original network, A those in the network pruned so far (cascade), or A0 itself
(parallel). rho is the activation that the network applies to this layer, as far as methods know it, and the identity
otherwise, so that B holds pre-activations then. The bias is fitted by methods that fit, and never penalised nor
pruned.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from feta.errors import ConfigError, ModelError
from feta.layers import cast
from feta.objective.activation import Activation as Activation  # a part of this contract too
from feta.objective.datafit import DataFit
from feta.sparsity import Sparsity


class Status(StrEnum):
    """How a solve ended; anything but OK is shown to the user."""

    OK = "ok"
    DAMPED = "damped"  # a factorisation needed more damping, or float64, than was asked for
    NOT_CONVERGED = "not-converged"  # stopped by its iteration limit
    INFEASIBLE = "infeasible"  # a constraint is not met at the sparsity asked for
    FEW_ROWS = "few-rows"  # too little data for the layer's inputs
    FELL_BACK = "fell-back"  # the method did worse than thresholding on rows it did not see: that was taken instead
    POOR = "poor"  # the method did worse than thresholding there, or than no outputs at all, and was kept


SAID = {
    Status.DAMPED: "some inputs say the same or nothing, so that damping was needed; more samples would help",
    Status.NOT_CONVERGED: "the solver was stopped by its limit of iterations",
}
TRACE = 1e-6  # of a trained weight, that stays where one must


class Rows(NamedTuple):
    """Some rows: inputs A, the original's Z with B = rho(Z), and R, what the network adds to the outputs before rho.

    Where only B is known it stands for Z.
    """

    A: Tensor
    Z: Tensor
    R: Tensor | None = None


class ActivationStream(Protocol):
    """Fresh passes over the rows (A, B) of a layer, in the same order each time."""

    @property
    def n_rows(self) -> int: ...

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def inputs(self) -> Iterator[Tensor]:
        """The rows of A alone: B need not be computed for them."""
        ...

    @property
    def rho(self) -> Activation:
        """What makes B out of the rows' Z; LINEAR: they hold B itself."""
        ...

    def rows(self) -> Iterator[Rows]:
        """The same before the activation, and with R, for methods that look through shortcuts (Needs.through)."""
        ...

    def sampled(self, size: int) -> "ActivationStream":
        """About `size` rows drawn at random over all samples and positions, held, with the same promises."""
        ...


@dataclass(frozen=True)
class LayerProblem:
    """Everything a method may look at; it must change none of it.

    W: the trained weights (d_in, d_out).
    bias: the trained bias (d_out,), or None for a layer without one.
    stream: passes over the rows (A, B), or None where the user gave no data; `rows` refuses None.
    activation: what the network applies to the layer's output.
    cascaded: whether A comes from a network whose earlier layers are pruned already.
    name: the layer's name, for messages.
    trace: what `report` calls with the phase of the solve and its numbers.
    output_weights: (d_out,), how much each output matters to what follows; None: all alike, or not measured.
    own_outputs: whether B is rho(A W + bias), so that whoever has A need not read B.
    """

    W: Tensor
    bias: Tensor | None
    stream: ActivationStream | None
    activation: Activation = Activation.RELU
    cascaded: bool = False
    name: str = "layer"
    trace: Callable[[str, dict[str, float]], None] | None = None
    output_weights: Tensor | None = None
    own_outputs: bool = False

    def __post_init__(self) -> None:
        if self.W.ndim != 2 or not self.W.is_floating_point():
            raise ConfigError(f"{self.name}: W must be a 2-d float tensor, got {tuple(self.W.shape)} {self.W.dtype}")
        if self.bias is not None and self.bias.shape != (self.W.shape[1],):
            raise ConfigError(f"{self.name}: bias must have shape ({self.W.shape[1]},), got {tuple(self.bias.shape)}")
        for label, tensor in (("weights", self.W), ("bias", self.bias)):
            if tensor is not None and not bool(torch.isfinite(tensor).all()):
                got = f"{int((~torch.isfinite(tensor)).sum())} NaN or infinite of {tensor.numel()}"
                raise ModelError(f"{self.name}: {label} must be finite, got {got}")

    @property
    def rows(self) -> ActivationStream:
        """The stream, for methods that cannot do without one."""
        if self.stream is None:
            raise ConfigError(f"{self.name}: this method needs calibration data, got none; pass data=")
        return self.stream

    @property
    def fit(self) -> DataFit:
        """The error of weights V (d_in [+ 1], d_out), the bias as their last row, after the activation."""
        return DataFit(self.activation, self.bias is not None)

    @property
    def trained(self) -> Tensor:
        """V of the trained layer: W with the bias as its last row."""
        return self.W if self.bias is None else torch.cat([self.W, self.bias[None, :]])

    def solved(
        self,
        V: Tensor,
        status: Status = Status.OK,
        message: str = "",
        stats: dict[str, Any] | None = None,
        target: Sparsity | None = None,
    ) -> "LayerSolution":
        """The solution with weights V (d_in [+ 1], d_out), in the layer's dtype.

        The bias is the last row of V; where V has none, the layer keeps the bias it has.
        target: how many weights must stay, as far as there are any. A place that was kept for a weight of zero is
            worth nothing to the outputs: the largest trained weights that are left get a trace of themselves.
        """
        d_in, V = len(self.W), cast(V, self.W.dtype)
        U, bias = V[:d_in].contiguous(), V[-1].clone() if len(V) > d_in else self.bias
        if target is not None and int(U.count_nonzero()) < min(target.count(U.numel()), int(self.W.count_nonzero())):
            size = self.W.double().abs()
            idle = target.mask((size / size.max()).where(U == 0, 1e3)) & (U == 0)  # those that stay come first
            U = U.where(~idle, cast(TRACE * self.W.double(), self.W.dtype))
        return LayerSolution(U, bias, status, message or SAID.get(status, ""), stats or {})

    def report(self, phase: str, **values: float) -> None:
        """Tell the trace, if there is one, how far the solve has come."""
        if self.trace is not None:
            self.trace(phase, values)


@dataclass(frozen=True)
class LayerSolution:
    """The pruned layer and how the solve went; it never touches the model.

    U: the pruned weights (d_in, d_out), in the dtype and on the device of W.
    bias: the bias that goes with them (d_out,), or None for a layer without one.
    status: how the solve ended.
    message: for the user, where there is something to say.
    stats: numbers for the report, by name.
    """

    U: Tensor
    bias: Tensor | None
    status: Status = Status.OK
    message: str = ""
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Needs:
    """What a method needs from the engine, and what it promises.

    passes: over the data: "none", "few" (the network is run again for each) or "many" (rows are kept on disk).
    importance: whether the engine measures how much each output matters to the network's own outputs.
    through: whether the layer is fitted together with the batch-norm and the shortcut behind it: W, bias and B then
        are those behind the batch-norm, and rows have R. Without, the layer is seen alone, as rivals define it.
    safe: whether thresholding is taken where the method does worse on held-out rows.
    seed: whether the method draws random numbers; it then has a field `seed`, which the engine sets.
    count: of the non-zeros: "exact" (as many as may stay), "most" (that many at the most), or "own" (another
        option of the method decides, such as a bound on the error).
    patterns: whether the method keeps to a target's pattern.
    shares: whether the method reads rows by feta's own statistics alone (gram, cross, sampled rows, …), which sum
        over the processes of a job; any other is given the rows of all processes, in each.
    """

    passes: Literal["none", "few", "many"] = "few"
    importance: bool = False
    through: bool = False
    safe: bool = False
    seed: bool = False
    count: Literal["exact", "most", "own"] = "exact"
    patterns: bool = False
    shares: bool = False


@runtime_checkable
class Pruner(Protocol):
    """A method: a frozen dataclass whose fields are its hyper-parameters, the seed included.

    name: a class variable, what the method is called in tables and reports.
    """

    name: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What the method needs and promises: a property, or a class variable where options do not matter."""
        ...

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        """The layer with at most `target.count(W.numel())` non-zero weights."""
        ...
