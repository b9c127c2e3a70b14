"""The options of the two FeTa methods, and the count that the published one meets."""

from dataclasses import dataclass, replace

import pytest
import torch

from correlated import problem, relu_layer
from feta.errors import ConfigError
from feta.objective.penalty import GroupLasso
from feta.pruners import options_of
from feta.pruners.feta import Feta
from feta.pruners.feta_svrg import FetaSvrg
from feta.sparsity import Sparsity


def layer(seed=0):
    return problem(*relu_layer(seed, 500, 30, 20), chunk_rows=150)


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("share", [0.6, 0.9])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_published_solver_meets_its_count(seed, share, debias):
    """A search that goes on from an iterate with too few non-zeros ends with a fraction of the count here."""
    keep = Sparsity(share).count(600)
    solution = FetaSvrg(step=0.01, search_steps=6, outer=4, debias=debias).prune(layer(seed), Sparsity(share))
    assert solution.stats["nonzeros_before_selection"] >= keep
    assert int(solution.U.count_nonzero()) == keep


def test_weights_that_are_zero_already_are_no_obstacle():
    given = replace(layer(), W=layer().W.where(layer().W.abs() > 0.5, 0))
    found = FetaSvrg(step=0.01, search_steps=4, outer=2, debias=False).prune(given, Sparsity(0.1))
    assert int(found.U.count_nonzero()) <= Sparsity(0.1).count(600)
    assert found.U.any()


def test_a_penalty_by_name_or_as_an_object():
    options = {"step": 0.01, "search_steps": 4, "outer": 2}
    by_name, as_object = (FetaSvrg(given, **options) for given in ("columns", GroupLasso(dim=0)))
    assert torch.equal(*(method.prune(layer(), Sparsity(0.5)).U for method in (by_name, as_object)))
    assert options_of(by_name)["regulariser"] == "columns"
    assert options_of(as_object)["regulariser"] == "GroupLasso(dim=0)"


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


def test_an_unknown_quality():
    with pytest.raises(ConfigError, match=r"unknown Feta.quality 'bset'; did you mean 'best'"):
        Feta(quality="bset")
