"""smart_prune: one layer that is held as tensors."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from feta.calibration.stream import TensorStream
from feta.engine.select import check_pattern, share_asked
from feta.engine.settings import parse_activation
from feta.errors import ConfigError
from feta.gates import gated
from feta.patterns import parse_pattern
from feta.problem import LayerProblem, LayerSolution, Pruner
from feta.pruners import DEFAULT_METHOD, make
from feta.sparsity import Pattern, Sparsity


@gated
def smart_prune(
    W: Tensor,
    A: Tensor,
    B: Tensor,
    *,
    sparsity: float | Sparsity | None = None,
    method: str | Pruner = DEFAULT_METHOD,
    pattern: str | Pattern | None = None,
    activation: str = "relu",
    bias: Tensor | None = None,
    options: Mapping[str, Any] | None = None,
    chunk_rows: int = 8192,
) -> LayerSolution:
    """SmartPrune(W, A, B) -> U of the paper: prune one layer that is held as tensors.

        U = feta.smart_prune(W, A, torch.relu(A @ W), sparsity=0.9).U

    W: (d_in, d_out), the trained weights.
    A: (m, d_in), the layer's inputs, samples as rows.
    B: (m, d_out), the outputs to reproduce, after the activation.
    sparsity: the share of zeros, or a Sparsity with the number of non-zeros; by default 0.9, or what `pattern` says.
    method, pattern, options: as for `prune`.
    activation: "relu", "linear" or another of feta.Activation.
    bias: (d_out,); without one the layer has none.
    chunk_rows: how many rows a method looks at at once.

    Returns a LayerSolution: U, the bias, the status and the method's statistics.
    Raises ConfigError where shapes do not fit.
    """
    if A.shape[1:] != W.shape[:1] or B.shape[1:] != W.shape[1:]:
        shapes = f"W {tuple(W.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}"
        raise ConfigError(f"A must be (m, d_in) and B (m, d_out) for W (d_in, d_out), got {shapes}")
    stream = TensorStream(A.to(W.dtype), B.to(W.dtype), chunk_rows=chunk_rows)
    problem = LayerProblem(W, bias, stream, parse_activation(activation))
    pruner, form = make(method, options), parse_pattern(pattern)
    check_pattern(form, pruner, None)
    share = sparsity if isinstance(sparsity, Sparsity) else share_asked(sparsity, form)
    target = share if isinstance(share, Sparsity) else Sparsity(share)  # type: ignore[arg-type]
    if form is not None:
        target = Sparsity(nonzeros=form.count(len(W), W.shape[1], target.count(W.numel())), pattern=form)
    return pruner.prune(problem, target)
