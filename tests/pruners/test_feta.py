"""The options of the two FeTa methods, the count that the published one meets, and the old spelling."""

import dataclasses
import warnings
from dataclasses import dataclass

import pytest
import torch

from feta.calibration.stream import TensorStream
from feta.errors import ConfigError
from feta.objective.group_lasso import GroupLasso
from feta.problem import LayerProblem
from feta.pruners import make, options_of
from feta.pruners.feta import Feta
from feta.pruners.feta_svrg import FetaSvrg
from feta.sparsity import Sparsity


def layer(seed=0, m=500, d_in=30, d_out=20, bias=True):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d_in, d_in, generator=generator, dtype=torch.float64)
    A = (torch.randn(m, d_in, generator=generator, dtype=torch.float64) @ mix).clamp_min(0) / 4
    W = torch.randn(d_in, d_out, generator=generator, dtype=torch.float64) / 2
    b = torch.randn(d_out, generator=generator, dtype=torch.float64) if bias else None
    return LayerProblem(W, b, TensorStream(A, (A @ W if b is None else A @ W + b).clamp_min(0), 150))


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("share", [0.6, 0.9])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_published_solver_meets_its_count(seed, share, debias):
    """A search that goes on from an iterate with too few non-zeros ends with a fraction of the count here."""
    problem = layer(seed)
    keep = Sparsity(share).count(problem.W.numel())
    method = FetaSvrg(step=0.01, search_steps=6, outer=4, debias=debias)
    solution = method.prune(problem, Sparsity(share))
    assert solution.stats["nonzeros_before_selection"] >= keep
    assert int(solution.U.count_nonzero()) == keep


def test_weights_that_are_zero_already_are_no_obstacle():
    problem = layer()
    problem = dataclasses.replace(problem, W=problem.W.where(problem.W.abs() > 0.5, 0))
    found = FetaSvrg(step=0.01, search_steps=4, outer=2, debias=False).prune(problem, Sparsity(0.1))
    assert int(found.U.count_nonzero()) <= Sparsity(0.1).count(problem.W.numel())
    assert found.U.any()


def test_a_penalty_by_name_or_as_an_object():
    options = {"step": 0.01, "search_steps": 4, "outer": 2}
    by_name, as_object = (
        make("feta-svrg", {**options, "regulariser": given}) for given in ("columns", GroupLasso(dim=0))
    )
    assert torch.equal(*(method.prune(layer(), Sparsity(0.5)).U for method in (by_name, as_object)))
    assert options_of(by_name)["regulariser"] == "columns"
    assert options_of(as_object)["regulariser"] == "GroupLasso(dim=0)"
    with pytest.raises(ConfigError, match=r"unknown FetaSvrg.regulariser 'row'; did you mean 'rows'"):
        FetaSvrg(regulariser="row")


def test_a_penalty_of_ones_own():
    @dataclass(frozen=True)
    class Ridge:
        grouped: bool = False

        def value(self, U):
            return U.square().sum() / 2

        def prox(self, U, step):
            return U / (1 + step)

        def sizes(self, U):
            return U.abs()

    solution = FetaSvrg(regulariser=Ridge(), step=0.01, search_steps=4, outer=2).prune(layer(), Sparsity(0.9))
    assert int(solution.U.count_nonzero()) == 60


def test_a_given_strength_is_used_as_it_is():
    method = FetaSvrg(strength=0.05, step=0.01, outer=3)
    found = [method.prune(layer(), Sparsity(share)) for share in (0.5, 0.9)]
    assert torch.equal(found[0].U, found[1].U)
    assert found[0].stats["strength"] == 0.05
    assert found[0].stats["searched"] == []


def test_more_retargets_lower_the_objective():
    few, many = (Feta(outer=n).prune(layer(), Sparsity(0.7)).stats["objectives"] for n in (1, 8))
    assert len(few) <= 2 < len(many)
    assert many[-1] <= few[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Feta(quality="bset"), "unknown Feta.quality 'bset'; did you mean 'best'"),
        (lambda: Feta(outer=0), "Feta.outer must be >= 1, got 0"),
        (lambda: Feta(ridge=-1), "Feta.ridge must be >= 0, got -1"),
        (lambda: FetaSvrg(outer=0), "FetaSvrg.outer must be >= 1, got 0"),
        (lambda: FetaSvrg(strength=-1.0), "FetaSvrg.strength must be >= 0, got -1.0"),
        (lambda: FetaSvrg(theta=0), "FetaSvrg.theta must be > 0, got 0"),
        (lambda: FetaSvrg(step=float("nan")), "Svrg.step must be > 0, got nan"),
        (lambda: FetaSvrg(momentum=1.0), r"Svrg.momentum must be in \[0, 1\), got 1.0"),
        (lambda: make("feta", {"theta": 10.0}), "unknown option of feta 'theta'"),
        (lambda: make("feta-svrg", {"quality": "best"}), "unknown option of feta-svrg 'quality'"),
        (lambda: make("feta", {"solver": "svrgg"}), "unknown option of feta 'solver'"),
        (lambda: make("feta", {"outer": "many"}), "feta.outer must be of type int, got 'many'"),
        (lambda: make("feta-svrg", {"debias": "maybe"}), "debias must be true or false, got 'maybe'"),
    ],
)
def test_options_that_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        given()


def test_text_options_are_converted():
    method = make("feta-svrg", {"outer": "5", "step": "0.01", "debias": "false", "theta": "none"})
    assert (method.outer, method.step, method.debias, method.theta) == (5, 0.01, False, None)


def test_the_old_spelling_is_accepted_with_a_warning():
    with pytest.warns(DeprecationWarning, match='use method="feta-svrg"'):
        old = make("feta", {"solver": "svrg", "debias": "false"})
    with pytest.warns(DeprecationWarning, match='use method="feta"'):
        gram = make("feta", {"solver": "gram", "quality": "fast"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert old == make("feta-svrg", {"debias": False})
        assert gram == make("feta", {"quality": "fast"})
