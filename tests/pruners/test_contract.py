"""What every method promises, whatever it does inside."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feta
from feta.calibration.stream import TensorStream
from feta.errors import ConfigError, DataError, ModelError
from feta.problem import Activation, LayerProblem, Pruner
from feta.pruners import METHODS, make, options_of
from feta.sparsity import Sparsity

# Iterative methods with little work, so that the suite stays quick; what is promised does not depend on it.
QUICK = {
    "net-trim": {"iterations": 40, "search_steps": 4},
    "feta-svrg": {"solver": "svrg", "outer": 2, "search_steps": 4, "step": 0.01},
    "feta-fast": {"quality": "fast"},
    "feta-best": {"quality": "best"},
}
CASES = [*METHODS, "feta-svrg", "feta-fast", "feta-best"]


def pruner(case, **more):
    name = case if case in METHODS else "feta"
    return make(name, {**QUICK.get(case, {}), **more})


def layer(seed=0, m=120, d_in=14, d_out=9, dtype=torch.float64, bias=True):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(m, d_in, generator=generator, dtype=torch.float64)
    A = A @ torch.randn(d_in, d_in, generator=generator, dtype=torch.float64) * 0.3  # correlated inputs
    W = torch.randn(d_in, d_out, generator=generator, dtype=torch.float64)
    b = torch.randn(d_out, generator=generator, dtype=torch.float64) * 0.3 if bias else None
    return A.to(dtype), W.to(dtype), None if b is None else b.to(dtype)


def problem(A, W, b, activation=Activation.RELU, chunk_rows=50, **more):
    Z = A @ W if b is None else A @ W + b
    return LayerProblem(W, b, TensorStream(A, activation(Z), chunk_rows), activation, **more)


def response_error(p, U, bias):
    A, B = p.stream.A, p.stream.B
    return float((p.activation(A @ U if bias is None else A @ U + bias) - B).square().sum())


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def test_is_a_frozen_dataclass_and_a_pruner(case):
    method = pruner(case)
    assert isinstance(method, Pruner)
    assert dataclasses.is_dataclass(method)
    assert method.__dataclass_params__.frozen
    assert method.passes in ("none", "few", "many")
    assert set(options_of(method)) == {f.name for f in dataclasses.fields(method)}
    for part in ("Formula:", "Cost:", "Source:"):
        assert part in type(method).__doc__


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("activation", list(Activation))
def test_exact_count(case, share, activation):
    p = problem(*layer(), activation)
    keep = Sparsity(share).count(p.W.numel())
    solution = pruner(case).prune(p, Sparsity(share))
    kept = int(torch.count_nonzero(solution.U))
    assert kept <= keep
    if case != "corenet":  # a dropped neuron's weights may leave fewer
        assert kept >= keep - 2
    assert torch.isfinite(solution.U).all()


@settings(deadline=None, max_examples=12)
@given(d_in=st.integers(1, 9), d_out=st.integers(1, 7), m=st.integers(1, 30), share=st.floats(0, 0.99))
def test_any_shape(d_in, d_out, m, share):
    for case in CASES:
        p = problem(*layer(1, m, d_in, d_out))
        solution = pruner(case).prune(p, Sparsity(share))
        assert solution.U.shape == p.W.shape
        assert int(torch.count_nonzero(solution.U)) <= Sparsity(share).count(p.W.numel())
        assert torch.isfinite(solution.U).all()


def test_ties_do_not_break_the_count(case):
    A, W, b = layer()
    W = torch.ones_like(W)
    solution = pruner(case).prune(problem(A, W, b), Sparsity(0.7))
    assert int(torch.count_nonzero(solution.U)) <= Sparsity(0.7).count(W.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_shape_dtype_device_kept_and_nothing_touched(case, dtype, bias):
    A, W, b = layer(dtype=dtype, bias=bias)
    p = problem(A, W, b)
    before = [t.clone() for t in (p.W, p.stream.A, p.stream.B, *([] if b is None else [b]))]
    solution = pruner(case).prune(p, Sparsity(0.6))
    assert (solution.U.shape, solution.U.dtype, solution.U.device) == (W.shape, dtype, W.device)
    assert (solution.bias is None) == (b is None)
    if b is not None:
        assert (solution.bias.shape, solution.bias.dtype) == (b.shape, dtype)
    after = [p.W, p.stream.A, p.stream.B, *([] if b is None else [b])]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert solution.U.data_ptr() != W.data_ptr()


def test_same_seed_same_result(case):
    first = pruner(case).prune(problem(*layer()), Sparsity(0.7))
    second = pruner(case).prune(problem(*layer()), Sparsity(0.7))
    assert torch.equal(first.U, second.U)
    assert first.status == second.status


def test_does_not_depend_on_chunking(case):
    if case == "feta-svrg":
        pytest.skip("SVRG draws its minibatches within chunks: another chunking is another draw")
    results = [
        pruner(case).prune(problem(*layer(), chunk_rows=rows), Sparsity(0.6)).U for rows in (7, 50, 120)
    ]
    for other in results[1:]:
        assert torch.equal(results[0] != 0, other != 0)
        torch.testing.assert_close(results[0], other, rtol=1e-6, atol=1e-8)


def test_no_sparsity_leaves_the_response_no_worse(case):
    p = problem(*layer())
    solution = pruner(case).prune(p, Sparsity(0.0))
    limit = 1e-8 * float(p.stream.B.square().sum())
    if case in ("net-trim", "corenet"):
        # These two replace the weights even then: Net-Trim by others in its ball, Corenet by a random estimate.
        limit = float(p.stream.B.square().sum())
    assert response_error(p, solution.U, solution.bias) <= limit


@pytest.mark.parametrize(
    "trouble", ["dead inputs", "constant columns", "fewer rows than inputs", "rank deficient", "all dead"]
)
def test_awkward_data(case, trouble):
    A, W, b = layer(m=8 if trouble == "fewer rows than inputs" else 120)
    A = A.clone()
    if trouble == "dead inputs":
        A[:, [0, 5]] = 0
    elif trouble == "constant columns":
        A[:, [2, 3]] = 1.5
    elif trouble == "rank deficient":
        A[:, 7:] = A[:, :7]
    elif trouble == "all dead":
        A[:] = 0
    p = problem(A, W, b)
    solution = pruner(case).prune(p, Sparsity(0.5))
    assert torch.isfinite(solution.U).all()
    assert int(torch.count_nonzero(solution.U)) <= Sparsity(0.5).count(W.numel())
    if solution.bias is not None:
        assert torch.isfinite(solution.bias).all()


def test_cascade_form(case):
    """Inputs that differ from the original's: B no longer follows from A and W."""
    A, W, b = layer()
    noisy = A + 0.1 * torch.randn(A.shape, generator=torch.Generator().manual_seed(9), dtype=A.dtype)
    p = LayerProblem(W, b, TensorStream(noisy, (A @ W + b).clamp_min(0), 50), cascaded=True)
    solution = pruner(case).prune(p, Sparsity(0.5))
    assert int(torch.count_nonzero(solution.U)) <= Sparsity(0.5).count(W.numel())
    assert torch.isfinite(solution.U).all()


def test_without_data_says_so(case):
    if pruner(case).passes == "none":
        pytest.skip("needs no data")
    with pytest.raises(ConfigError, match="needs calibration data, got none"):
        pruner(case).prune(LayerProblem(torch.ones(3, 2), None, None), Sparsity(0.5))


def test_nan_in_the_data_is_refused(case):
    if pruner(case).passes == "none":
        pytest.skip("looks at no data")
    A, W, b = layer()
    A = A.clone()
    A[3, 4] = float("nan")
    with pytest.raises((DataError, ConfigError, ModelError), match="finite"):
        pruner(case).prune(problem(A, W, b), Sparsity(0.5))


def test_unknown_option_is_named(case):
    name = case if case in METHODS else "feta"
    with pytest.raises(ConfigError, match="unknown option"):
        make(name, {"no-such-option": 1})


def test_text_options_are_converted():
    method = make(
        "feta", {"solver": "svrg", "outer": "5", "step": "0.01", "debias": "false", "theta": "none"}
    )
    assert (method.outer, method.step, method.debias, method.theta) == (5, 0.01, False, None)
    with pytest.raises(ConfigError, match=r"feta\.outer must be of type int, got 'many'"):
        make("feta", {"outer": "many"})
    with pytest.raises(ConfigError, match="true or false"):
        make("feta", {"debias": "maybe"})
    with pytest.raises(ConfigError, match="did you mean 'svrg'"):
        make("feta", {"solver": "svrgg"})


def test_smart_prune_on_tensors(case):
    A, W, _ = layer(bias=False)
    B = (A @ W).clamp_min(0)
    name = case if case in METHODS else "feta"
    solution = feta.smart_prune(W, A, B, sparsity=0.8, method=name, options=QUICK.get(case))
    assert int(torch.count_nonzero(solution.U)) <= Sparsity(0.8).count(W.numel())


def test_options_that_would_be_ignored_are_refused():
    with pytest.raises(ConfigError, match=r"Feta\.theta must go with solver='svrg'"):
        make("feta", {"theta": 10.0})
    with pytest.raises(ConfigError, match=r"Feta\.quality must go with solver='gram'"):
        make("feta", {"solver": "svrg", "quality": "best"})


def test_outer_is_an_option_of_both_solvers():
    p = problem(*layer())
    few, many = (make("feta", {"outer": n}).prune(p, Sparsity(0.7)) for n in (1, 8))
    assert len(few.stats["objectives"]) <= 2 < len(many.stats["objectives"])
    assert many.stats["objectives"][-1] <= few.stats["objectives"][-1]
