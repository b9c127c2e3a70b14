"""smart_prune: one layer that is held as tensors."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from feta.calibration.stream import TensorStream
from feta.engine.judge import ROUNDING, Error, verdict
from feta.engine.layer import LOOKED_AT
from feta.engine.select import check_pattern, share_asked
from feta.engine.settings import parse_activation
from feta.engine.solve import emptied, solve
from feta.errors import ConfigError, DataError
from feta.gates import gated
from feta.layers import cast
from feta.patterns import parse_pattern
from feta.problem import ActivationStream, LayerProblem, LayerSolution, Pruner, Status
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

    Returns a LayerSolution: U, the bias, the status and the method's statistics. The status is told on these rows: an
    answer that thresholding would beat is not `ok`, and `feta` then gives thresholding's.
    Raises ConfigError where shapes do not fit, and DataError for numbers that are not finite.
    """
    if A.shape[1:] != W.shape[:1] or B.shape[1:] != W.shape[1:]:
        shapes = f"W {tuple(W.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}"
        raise ConfigError(f"A must be (m, d_in) and B (m, d_out) for W (d_in, d_out), got {shapes}")
    # Half precision is solved in float32 and cast back, as in `prune`.
    own, wide = W.dtype, W.dtype if W.dtype in (torch.float32, torch.float64) else torch.float32
    A, B = A.to(wide), B.to(wide)
    for name, tensor in (("A", A), ("B", B)):
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{name} must be finite, got NaN or infinite values in {wide}")
    stream = TensorStream(A, B, chunk_rows=chunk_rows)
    problem = LayerProblem(W.to(wide), None if bias is None else bias.to(wide), stream, parse_activation(activation))
    pruner, form = make(method, options), parse_pattern(pattern)
    check_pattern(form, pruner, None)
    share = sparsity if isinstance(sparsity, Sparsity) else share_asked(sparsity, form)
    target = share if isinstance(share, Sparsity) else Sparsity(share)  # type: ignore[arg-type]
    if form is not None:
        target = Sparsity(nonzeros=form.count(len(W), W.shape[1], target.count(W.numel())), pattern=form)
    found = solve(pruner, problem, target)
    U, found_bias = cast(found.U, own), None if found.bias is None else cast(found.bias, own)
    return _judged(replace(found, U=U, bias=found_bias), problem, pruner, target, 4 * torch.finfo(own).eps)


def _judged(
    found: LayerSolution, problem: LayerProblem, pruner: Pruner, target: Sparsity, rounding: float
) -> LayerSolution:
    """The answer with what is to be said of it beside thresholding, or thresholding itself in its place."""
    largest = problem.W.where(target.mask(problem.W.abs()), 0).to(found.U.dtype)
    safe = replace(found, U=largest, bias=None if problem.bias is None else problem.bias.to(found.U.dtype))
    sample = problem.rows.sampled(LOOKED_AT)
    error, limit = (_error(problem, solution, sample) for solution in (found, safe))
    falls_back = pruner.needs.safe
    told = verdict(Error(error, error), Error(limit, limit), falls_back, 1.0, max(ROUNDING, rounding))
    if told is None or (pruner.needs.passes == "none" and error <= 1 + rounding):
        return emptied(found, problem, target)
    message = "; ".join(filter(None, (found.message if found.status is not Status.OK else "", told[1])))
    return replace(safe if told[0] is Status.FELL_BACK else found, status=told[0], message=message)


def _error(problem: LayerProblem, found: LayerSolution, stream: ActivationStream) -> float:
    """The relative error of the answer, in float64."""
    wrong, right, rho = 0.0, 0.0, problem.activation
    for A, B in stream.chunks():
        Z = A.double() @ found.U.double()
        Z = Z if found.bias is None else Z + found.bias.double()
        wrong += float(torch.linalg.vector_norm(rho(Z) - B.double()).square())
        right += float(torch.linalg.vector_norm(B.double()).square())
    return (wrong / right) ** 0.5 if right > 0 else float(wrong > 0)
