"""smart_prune: one layer that is held as tensors."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from feta.calibration.stream import TensorStream
from feta.engine.settings import parse_activation
from feta.errors import ConfigError
from feta.problem import LayerProblem, LayerSolution, Pruner
from feta.pruners import DEFAULT_METHOD, make
from feta.sparsity import Sparsity


def smart_prune(
    W: Tensor,
    A: Tensor,
    B: Tensor,
    *,
    sparsity: float | Sparsity = 0.9,
    method: str | Pruner = DEFAULT_METHOD,
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
    sparsity: the share of zeros, or a Sparsity with the number of non-zeros.
    method, options: as for `prune`.
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
    target = sparsity if isinstance(sparsity, Sparsity) else Sparsity(sparsity)
    return make(method, options).prune(problem, target)
