"""What every built-in method promises, whatever it does inside."""

import dataclasses
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import correlated
import feta
from correlated import problem
from feta.calibration.stream import TensorStream
from feta.errors import ConfigError, DataError, ModelError
from feta.problem import Activation, LayerProblem, Needs, Pruner, Status
from feta.pruners import METHODS, make, options_of
from feta.sparsity import Sparsity

# Iterative methods with little work, so that the suite stays quick; what is promised does not depend on it.
SVRG = {"outer": 2, "search_steps": 2, "step": 0.01}
CASES = {name: (name, {}) for name in METHODS} | {
    "net-trim": ("net-trim", {"iterations": 40, "search_steps": 4}),
    "net-trim constraint": ("net-trim", {"iterations": 40, "search_steps": 4, "search": "constraint"}),
    "corenet without removal": ("corenet", {"neuron_removal": False}),
    "alps exact": ("alps", {"refit": "exact"}),
    "feta-svrg": ("feta-svrg", SVRG),
    "feta-svrg raw": ("feta-svrg", {**SVRG, "debias": False}),
    "feta-svrg rows": ("feta-svrg", {**SVRG, "regulariser": "rows"}),
    "feta-svrg columns": ("feta-svrg", {**SVRG, "regulariser": "columns"}),
    "feta fast": ("feta", {"quality": "fast"}),
    "feta best": ("feta", {"quality": "best"}),
    "feta wide": ("feta", {"memory": 1e-6}),
}
# These do not promise the exact count: groups of weights leave as a whole, so as many stay as fit.
INEXACT = {"feta-svrg rows", "feta-svrg columns"}


def pruner(case):
    name, options = CASES[case]
    return make(name, options)


def layer(seed=0, m=120, d_in=14, d_out=9, dtype=torch.float64, bias=True):
    A, W, b = correlated.layer(seed, m, d_in, d_out, mean=0.0)
    return (0.3 * A).to(dtype), W.to(dtype), (0.3 * b).to(dtype) if bias else None


def check_solution(case, p, target, solution, exact=True):
    """Shape, dtype, device, finite numbers, the count, and something left."""
    target = target if isinstance(target, Sparsity) else Sparsity(target)
    keep, kept = target.count(p.W.numel()), int(torch.count_nonzero(solution.U))
    assert (solution.U.shape, solution.U.dtype, solution.U.device) == (p.W.shape, p.W.dtype, p.W.device)
    assert torch.isfinite(solution.U).all()
    assert (solution.bias is None) == (p.bias is None)
    if p.bias is not None:
        assert (solution.bias.shape, solution.bias.dtype) == (p.bias.shape, p.bias.dtype)
        assert torch.isfinite(solution.bias).all()
    assert kept <= keep
    if exact and case not in INEXACT:
        assert kept == keep
    if keep >= max(p.W.shape):  # a whole group fits
        assert kept > 0


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def test_is_a_frozen_dataclass_that_declares_its_needs(case):
    method = pruner(case)
    assert isinstance(method, Pruner)
    assert method.__dataclass_params__.frozen
    assert METHODS[method.name] is type(method)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", method.name)
    assert isinstance(method.needs, Needs)
    assert method.needs.passes in ("none", "few", "many")
    assert (method.needs.count == "exact") == (case not in INEXACT)
    options = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    assert method.needs.seed == ("seed" in options)
    assert options_of(method) == options


@pytest.mark.parametrize("name", METHODS)
def test_the_docstring_describes_the_method_and_every_field(name):
    lines = [line.strip() for line in METHODS[name].__doc__.splitlines()]
    fields = [f.name for f in dataclasses.fields(METHODS[name])]
    for part in ("Formula", "Cost", "Source", *fields):
        assert sum(line.startswith(f"{part}: ") for line in lines) == 1, part


def test_a_given_strength_or_epsilon_promises_no_count():
    assert make("feta-svrg", {"strength": 0.1}).needs.count == "own"
    assert make("net-trim", {"epsilon": 0.1}).needs.count == "own"


# Every share behind a ReLU, and every other activation at one share: the two have nothing to do with each other.
COUNTED = [(share, Activation.RELU) for share in (0.0, 0.3, 0.5, 0.9, 0.97)]
COUNTED += [(0.9, activation) for activation in Activation if activation is not Activation.RELU]


@pytest.mark.parametrize(("share", "activation"), COUNTED)
def test_exact_count(case, share, activation):
    p = problem(*layer(), activation)
    check_solution(case, p, share, pruner(case).prune(p, Sparsity(share)))


@settings(deadline=None, max_examples=12)
@given(d_in=st.integers(1, 9), d_out=st.integers(1, 7), m=st.integers(1, 30), share=st.floats(0, 0.99))
def test_any_shape(d_in, d_out, m, share):
    for case in CASES:
        p = problem(*layer(1, m, d_in, d_out))
        check_solution(case, p, share, pruner(case).prune(p, Sparsity(share)), exact=False)


@pytest.mark.parametrize("k", [0, 1, 7, 63, 125, 126])
def test_ties_do_not_break_the_count(case, k):
    A, W, b = layer()
    p = problem(A, torch.ones_like(W), b)
    check_solution(case, p, Sparsity(nonzeros=k), pruner(case).prune(p, Sparsity(nonzeros=k)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_kinds_of_numbers_are_kept_and_nothing_is_touched(case, dtype, bias):
    A, W, b = layer(dtype=dtype, bias=bias)
    p = problem(A, W, b)
    inputs = [p.W, p.stream.A, p.stream.B, *([] if b is None else [b])]
    before = [t.clone() for t in inputs]
    solution = pruner(case).prune(p, Sparsity(0.6))
    check_solution(case, p, 0.6, solution)
    assert all(torch.equal(x, y) for x, y in zip(before, inputs, strict=True))
    assert solution.U.data_ptr() != W.data_ptr()


def test_same_seed_same_result(case):
    first, second = (pruner(case).prune(problem(*layer()), Sparsity(0.7)) for _ in range(2))
    assert torch.equal(first.U, second.U)
    assert first.status == second.status


def test_does_not_depend_on_chunking(case):
    if CASES[case][0] == "feta-svrg":
        pytest.skip("SVRG draws its minibatches within chunks: another chunking is another draw")
    results = [pruner(case).prune(problem(*layer(), chunk_rows=rows), Sparsity(0.6)).U for rows in (7, 50, 120)]
    for other in results[1:]:
        assert torch.equal(results[0] != 0, other != 0)
        torch.testing.assert_close(results[0], other, rtol=1e-6, atol=1e-8)


def test_no_sparsity_leaves_the_response_no_worse(case):
    A, W, b = layer()
    A[:, 5] = 0
    p = problem(A, W, b)
    solution = pruner(case).prune(p, Sparsity(0.0))
    error = torch.relu(A @ solution.U + solution.bias) - p.stream.B
    assert error.square().sum() <= 1e-8 * p.stream.B.square().sum()
    if case == "net-trim":  # nothing to solve: the trained layer itself
        assert torch.equal(solution.U, p.W) and torch.equal(solution.bias, p.bias)  # noqa: PT018


@pytest.mark.parametrize("case", ["alps", "alps exact", "corenet", "exact-obs", "lobs", "sparsegpt", "wanda"])
def test_inputs_that_never_vary_stay_only_where_there_is_room(case):
    A, W, b = layer()
    A[:, 3] = 0
    # A constant input has no say beside a bias that is fitted with every removal.
    A[:, 8] = 2 if case.startswith(("alps", "exact-obs")) else 0
    assert not pruner(case).prune(problem(A, W, b), Sparsity(0.3)).U[[3, 8]].any()
    torch.testing.assert_close(pruner(case).prune(problem(A, W, b), Sparsity(0.0)).U, W)


@pytest.mark.parametrize("name", ["exact-obs", "sparsegpt", "lobs"])
def test_a_singular_matrix_without_damping_is_reported(name):
    A, W, b = layer()
    A[:, 8:12] = A[:, :4]
    solution = make(name, {"damping": 0.0}).prune(problem(A, W, b), Sparsity(0.5))
    assert solution.status is Status.DAMPED
    assert solution.stats["damping"] > 0
    assert torch.isfinite(solution.U).all()


@pytest.mark.parametrize(
    "trouble", ["dead inputs", "constant columns", "fewer rows than inputs", "rank deficient", "all dead"]
)
def test_awkward_data(case, trouble):
    A, W, b = layer(m=8 if trouble == "fewer rows than inputs" else 120)
    if trouble == "dead inputs":
        A[:, [0, 5]] = 0
    elif trouble == "constant columns":
        A[:, [2, 3]] = 1.5
    elif trouble == "rank deficient":
        A[:, 7:] = A[:, :7]
    elif trouble == "all dead":
        A[:] = 0
    p = problem(A, W, b)
    check_solution(case, p, 0.5, pruner(case).prune(p, Sparsity(0.5)))


def test_cascade_form(case):
    """Inputs that differ from the original's: B no longer follows from A and W."""
    A, W, b = layer()
    noisy = A + 0.1 * torch.randn(A.shape, generator=torch.Generator().manual_seed(9), dtype=A.dtype)
    p = LayerProblem(W, b, TensorStream(noisy, (A @ W + b).clamp_min(0), 50), cascaded=True)
    check_solution(case, p, 0.5, pruner(case).prune(p, Sparsity(0.5)))


def test_without_data_says_so(case):
    if pruner(case).needs.passes == "none":
        pytest.skip("needs no data")
    with pytest.raises(ConfigError, match="needs calibration data, got none"):
        pruner(case).prune(LayerProblem(torch.ones(3, 2), None, None), Sparsity(0.5))


def test_nan_in_the_data_is_refused(case):
    if pruner(case).needs.passes == "none":
        pytest.skip("looks at no data")
    A, W, b = layer()
    A[slice(None) if case == "feta wide" else 0, 4] = float("nan")  # a wide layer looks at some of the rows alone
    with pytest.raises((DataError, ConfigError, ModelError), match="finite"):
        pruner(case).prune(problem(A, W, b), Sparsity(0.5))


def test_smart_prune_on_tensors(case):
    A, W, _ = layer(bias=False)
    name, options = CASES[case]
    B = (A @ W).clamp_min(0)
    solution = feta.smart_prune(W, A, B, sparsity=0.8, method=name, options=options)
    check_solution(case, problem(A, W, None), 0.8, solution)
