"""Net-Trim: the ADMM against a literal one and against a convex solver, then the method."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from correlated import extended, problem, stacked
from feta.calibration.stream import TensorStream
from feta.problem import Activation, LayerProblem, Status
from feta.pruners.net_trim import NetTrim, least_error, least_feasible
from feta.pruners.threshold import Threshold
from feta.solvers.net_trim_admm import Gap, NetTrimAdmm
from feta.sparsity import Sparsity


def layer(m=60, d_in=8, d_out=3, *, activation=Activation.RELU, cascaded=False, bias=True, chunk=17):
    """A small layer in float64; in the cascade its inputs differ from those that gave B."""
    g = torch.Generator().manual_seed(0)
    A0 = torch.randn(m, d_in, generator=g, dtype=torch.float64)
    W = torch.randn(d_in, d_out, generator=g, dtype=torch.float64) / math.sqrt(d_in)
    b = 0.3 * torch.randn(d_out, generator=g, dtype=torch.float64) if bias else None
    B = activation(extended(A0, bias) @ stacked(W, b))
    A = A0 + 0.2 * torch.randn(m, d_in, generator=g, dtype=torch.float64) if cascaded else A0
    return LayerProblem(W, b, TensorStream(A, B, chunk), activation, cascaded)


FORMS = [(rho, cascaded, bias) for rho in Activation for cascaded in (False, True) for bias in (True, False)]
# Two activations in every form, and each of the others in one of them: all pairs of what differs.
SOME = [
    form for i, form in enumerate(FORMS) if form[0] in (Activation.LINEAR, Activation.RELU) or i % 4 == i // 4 % 4
]


def named(form):
    return dict(zip(("activation", "cascaded", "bias"), form, strict=True))


@pytest.fixture(params=FORMS, ids=str)
def form(request):
    return named(request.param)


def held(problem):
    """A with a column for the bias, B, W with its bias row, Omega, and V."""
    A, B, W = extended(problem.stream.A, problem.bias is not None), problem.stream.B, problem.trained
    omega = torch.ones_like(B, dtype=torch.bool) if problem.activation is Activation.LINEAR else B > 1e-6
    return A, B, W, omega, A @ W if problem.cascaded else torch.zeros_like(B)


def literal_admm(A, B, V, omega, W3, epsilon, rho, has_bias):
    """Section 2 of ALGORITHMS.md, line by line, with all its arrays and on scaled data."""
    scale = 0.3 * (A.t() @ A).diagonal().max().sqrt()
    A, B, V, epsilon = A / scale, B / scale, V / scale, epsilon / scale
    inverse = torch.linalg.inv(A.t() @ A + torch.eye(A.shape[1], dtype=A.dtype))
    U1, U2 = torch.zeros_like(B), torch.zeros_like(W3)
    threshold = torch.full((A.shape[1], 1), 1 / rho, dtype=A.dtype)
    if has_bias:
        threshold[-1] = 0
    while True:
        Z = A @ W3 - U1
        ratio = min(1.0, float(epsilon / torch.linalg.norm((Z - B)[omega])))
        W1 = torch.where(omega, B + ratio * (Z - B), torch.minimum(Z, V))
        W2 = (W3 - U2).sign() * ((W3 - U2).abs() - threshold).clamp(min=0)
        W3 = inverse @ (A.t() @ (W1 + U1) + W2 + U2)
        U1 = U1 + W1 - A @ W3
        U2 = U2 + W2 - W3
        yield W2, W3


def test_iterates_are_those_of_the_literal_admm(form):
    problem = layer(**form)
    A, B, W, omega, V = held(problem)
    epsilon = 0.3 * float(B[omega].norm())
    admm = NetTrimAdmm(problem, W, 5.0)
    literal = literal_admm(A, B, V, omega, W, epsilon, 5.0, form["bias"])
    for _, (W2, W3) in zip(range(30), literal, strict=False):
        torch.testing.assert_close(admm.W2, W2, atol=1e-10, rtol=0)
        admm.run(1, epsilon)
        torch.testing.assert_close(admm.W3, W3, atol=1e-10, rtol=0)


def convex_optimum(A, B, V, omega, W, epsilon, has_bias):
    """The least l1 norm, by SLSQP on x = (p, n) with U = p - n and p, n >= 0, from the feasible W."""
    A, B, V, omega, W = (X.numpy() for X in (A, B, V, omega, W))
    cost = np.tile(np.repeat(np.arange(len(W)) < len(W) - has_bias, W.shape[1]), 2).astype(float)
    response = np.kron(A, np.eye(W.shape[1])) @ np.hstack([np.eye(W.size), -np.eye(W.size)])  # (A U) as a vector
    inside, outside = response[omega.reshape(-1)], response[~omega.reshape(-1)]

    def ball(x):
        return 1 - ((inside @ x - B[omega]) ** 2).sum() / epsilon**2

    constraints = [{"type": "ineq", "fun": ball, "jac": lambda x: -2 * (inside @ x - B[omega]) @ inside / epsilon**2}]
    if len(outside):
        constraints.append({"type": "ineq", "fun": lambda x: V[~omega] - outside @ x, "jac": lambda x: -outside})
    found = minimize(
        lambda x: cost @ x,
        np.concatenate([np.maximum(W, 0).reshape(-1), np.maximum(-W, 0).reshape(-1)]),
        jac=lambda x: cost,
        bounds=[(0, None)] * len(cost),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    # Status 8 is a line search that finds nothing better: the optimum, where no step is left to take.
    assert found.status in (0, 8), found.message
    assert ball(found.x) > -1e-6
    return found.fun


@pytest.mark.parametrize("form", [named(form) for form in SOME], ids=str)
def test_objective_is_the_convex_optimum(form):
    problem = layer(30, 6, 2, **form, chunk=30)
    A, B, W, omega, V = held(problem)
    floor = float((A @ W - B)[omega].norm())
    epsilon = max(0.3 * float(B[omega].norm()), 1.1 * floor)
    admm = NetTrimAdmm(problem, W, 10.0)
    admm.run(2000, epsilon)
    best = convex_optimum(A, B, V, omega, W, epsilon, form["bias"])
    assert float(admm.W2[:6].abs().sum()) == pytest.approx(best, rel=1e-4)
    assert best < float(W[:6].abs().sum()) * 0.99
    assert admm.gap(admm.W2).met(epsilon, 1e-4)
    assert max(admm.primal, admm.dual) < 1e-4


def test_start_does_not_matter():
    problem = layer(chunk=60)
    _, B, W, omega, _ = held(problem)
    epsilon = 0.3 * float(B[omega].norm())
    from_w, from_zero = (NetTrimAdmm(problem, start, 10.0) for start in (W, torch.zeros_like(W)))
    for admm in (from_w, from_zero):
        admm.run(1500, epsilon)
    torch.testing.assert_close(from_w.W2, from_zero.W2, atol=1e-5, rtol=0)


def test_gap_of_weights(form):
    problem = layer(**form)
    A, B, W, omega, V = held(problem)
    X = W * 0.7 + 0.1
    over = ((A @ X - V)[~omega]).clamp(min=0)
    norms = [(A @ X - B)[omega], over, problem.activation(A @ X) - B, B[omega]]
    expected = Gap(*(float(part.norm()) for part in norms), float(over.max()) if over.numel() else 0.0)
    assert vars(NetTrimAdmm(problem, W, 1.0).gap(X)) == pytest.approx(vars(expected))


def test_gap_met_in_both_constraints():
    gap = Gap(misfit=1.04, excess=0.04, error=1.0, size=2.0)
    assert gap.met(1.0, 0.05)
    assert not gap.met(1.0, 0.03)
    assert not gap.met(0.9, 0.05)
    assert not replace(gap, misfit=0.5, excess=0.06).met(1.0, 0.05)


def test_constraint_search_meets_the_constraints():
    problem = layer(m=200, d_in=20, d_out=10, chunk=200)
    A, B, _, omega, _ = held(problem)
    solution = NetTrim(search="constraint", rho=20).prune(problem, Sparsity(0.7))
    assert solution.status is Status.OK, solution.message
    response = A @ stacked(solution)
    epsilon = solution.stats["epsilon"]
    assert float((response - B)[omega].norm()) <= 1.1 * epsilon
    assert float(response[~omega].clamp(min=0).norm()) <= 0.1 * epsilon
    assert solution.stats["relative_epsilon"] == pytest.approx(epsilon / float(B[omega].norm()))


def test_error_search_is_no_worse_than_the_other_and_says_what_it_broke():
    problem = layer(m=200, d_in=20, d_out=10, chunk=200)
    ours, other = (NetTrim(search=search).prune(problem, Sparsity(0.8)) for search in ("error", "constraint"))
    assert ours.stats["misfit"] > 1.1 * ours.stats["epsilon"]
    assert ours.status is Status.INFEASIBLE
    assert "40 of the program's" in ours.message
    errors = [problem.fit.value(stacked(found), problem.stream.A, problem.stream.B) for found in (ours, other)]
    assert errors[0] <= errors[1]


def test_beats_thresholding_on_correlated_inputs():
    g = torch.Generator().manual_seed(1)
    A = torch.randn(400, 8, generator=g).double() @ torch.randn(8, 30, generator=g).double()
    given = problem(A, torch.randn(30, 10, generator=g).double(), None)
    ours, cut = (method.prune(given, Sparsity(0.7)).U for method in (NetTrim(), Threshold()))
    B = given.stream.B
    assert (torch.relu(A @ ours) - B).norm() < 0.6 * (torch.relu(A @ cut) - B).norm()


def test_given_epsilon_returns_the_program_as_it_is():
    problem = layer(m=200, d_in=20, d_out=10, chunk=200)
    solution = NetTrim(epsilon=0.2, iterations=1500, rho=10).prune(problem, Sparsity(0.99))
    assert solution.status is Status.OK, solution.message
    assert solution.stats["nonzeros"] == solution.stats["program_nonzeros"] > 2
    assert solution.stats["relative_epsilon"] == pytest.approx(0.2)
    assert solution.stats["misfit"] == pytest.approx(solution.stats["epsilon"], rel=1e-2)


def test_given_epsilon_in_the_cascade_keeps_the_trained_weights_feasible():
    problem = layer(cascaded=True, chunk=60)
    A, B, W, omega, _ = held(problem)
    solution = NetTrim(epsilon=1e-6, iterations=1000, rho=10).prune(problem, Sparsity(0.5))
    assert solution.stats["epsilon"] == pytest.approx(math.sqrt(1.1) * float((A @ W - B)[omega].norm()))
    assert solution.status is Status.OK, solution.message


def test_too_few_iterations_are_reported():
    solution = NetTrim(epsilon=0.5, iterations=3, tolerance=10).prune(layer(), Sparsity(0.5))
    assert solution.status is Status.NOT_CONVERGED
    assert "after 3 iterations" in solution.message


@pytest.mark.parametrize("epsilon", [None, 0.2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("columns", "value", "rows"), [(3, 0, 40), (12, 0, 40), (2, 1.5, 40), (0, 0, 5)])
def test_degenerate_inputs_and_silent_outputs(columns, value, rows, bias, epsilon):
    given = layer(m=rows, d_in=12, d_out=4, bias=bias)
    A = given.stream.A
    A[:, :columns] = value
    B = torch.relu(extended(A, bias) @ given.trained)
    for outputs in (B, 0 * B):
        given = replace(given, stream=TensorStream(A, outputs))
        U = NetTrim(iterations=80, epsilon=epsilon).prune(given, Sparsity(0.5)).U
        assert torch.isfinite(U).all()
        if epsilon is None and columns == 3 and outputs is B:
            assert not U[:3].any()


def test_progress_is_reported():
    seen = []
    traced = replace(layer(), trace=lambda phase, values: seen.append(phase))
    NetTrim(iterations=40, search_steps=5).prune(traced, Sparsity(0.5))
    assert seen == ["search"] * 5


def gap_of(error=1.0, misfit=1.0, excess=0.0):
    return Gap(misfit, excess, error, 1.0)


@pytest.mark.parametrize("best", [0.011, 0.05, 0.3, 0.9])
def test_least_error_finds_a_minimum(best):
    found = least_error(lambda e: gap_of(error=abs(math.log(e / best))), 0.01, 1.0, 14)
    assert found == pytest.approx(best, rel=0.1)


@pytest.mark.parametrize("start", [0.01, 1.0, 50.0])
def test_least_feasible_finds_the_least(start):
    found = least_feasible(lambda e: gap_of(misfit=e * 3 / min(e, 3)), start, 0.0, 60, 1e-3)
    assert found == pytest.approx(3, rel=0.01)


def test_least_feasible_keeps_above_its_floor():
    assert least_feasible(lambda e: gap_of(misfit=0.0), 8.0, 2.0, 20, 0.1) == pytest.approx(2.0, rel=1e-3)
    assert least_feasible(lambda e: gap_of(misfit=2 * e), 1.0, 0.0, 3, 0.1) == pytest.approx(8.0)
