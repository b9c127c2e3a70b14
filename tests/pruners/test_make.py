"""The table of methods, and options as they come from Python and from a command line."""

import re
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from feta.errors import ConfigError
from feta.problem import Needs
from feta.pruners import METHODS, make
from feta.pruners.threshold import Threshold


@dataclass(frozen=True)
class Sample:
    """A method with an option of every type."""

    name: ClassVar[str] = "sample"
    needs: ClassVar[Needs] = Needs("none")
    n_steps: int = 3
    step: float = 0.5
    ridge: float | None = None
    kind: Literal["l1", "rows"] = "l1"
    exact: bool = False

    def prune(self, problem: Any, target: Any) -> Any:
        pytest.fail("these tests make methods, they never run one")


@pytest.fixture(autouse=True)
def with_sample(monkeypatch):
    monkeypatch.setitem(METHODS, "sample", Sample)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"n-steps": "7"}, "n_steps", 7),
        ({"n_steps": 7}, "n_steps", 7),
        ({"step": "1e-3"}, "step", 1e-3),
        ({"step": 2}, "step", 2),
        ({"ridge": "0.1"}, "ridge", 0.1),
        ({"ridge": "none"}, "ridge", None),
        ({"ridge": "auto"}, "ridge", None),
        ({"kind": "rows"}, "kind", "rows"),
        ({"exact": "true"}, "exact", True),
        ({"exact": "Yes"}, "exact", True),
        ({"exact": "0"}, "exact", False),
        ({"exact": True}, "exact", True),
    ],
)
def test_options(given, field, value):
    found = getattr(make("sample", given), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("method", "field", "value", "must"),
    [
        ("alps", "ridge", -1, ">= 0"),
        ("alps", "rho", 0, "> 0"),
        ("alps", "max_iterations", 0, ">= 1"),
        ("alps", "refit", "none", "'pcg' or 'exact'"),
        ("alps", "refit_iterations", -1, ">= 0"),
        ("corenet", "sample_size", 0, ">= 1"),
        ("corenet", "sample_size", -3, ">= 1"),
        ("exact-obs", "damping", -0.1, ">= 0"),
        ("exact-obs", "max_cost", 0, "> 0"),
        ("exact-obs", "batch_bytes", 0, ">= 1"),
        ("lobs", "damping", -1, ">= 0"),
        ("net-trim", "iterations", 0, ">= 1"),
        ("net-trim", "search_steps", 0, ">= 1"),
        ("net-trim", "rho", 0.0, "> 0"),
        ("net-trim", "tolerance", -1.0, "> 0"),
        ("net-trim", "epsilon", 0.0, "> 0"),
        ("net-trim", "search", "count", "'error' or 'constraint'"),
        ("sparsegpt", "damping", -0.1, ">= 0"),
        ("sparsegpt", "block", 0, ">= 1"),
        ("wanda", "scope", "row", "'output' or 'layer'"),
        ("feta", "outer", 0, ">= 1"),
        ("feta", "ridge", -1, ">= 0"),
        ("feta", "memory", 0.0, "> 0 GiB"),
        ("feta-svrg", "outer", 0, ">= 1"),
        ("feta-svrg", "strength", -1.0, ">= 0"),
        ("feta-svrg", "theta", 0, "> 0"),
        ("feta-svrg", "step", float("nan"), "> 0"),
        ("feta-svrg", "momentum", 1.0, "in [0, 1)"),
    ],
)
def test_values_out_of_range_are_refused_when_a_method_is_made(method, field, value, must):
    message = f"{METHODS[method].__name__}.{field} must be {must}, got {value!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        METHODS[method](**{field: value})


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("sample", {"nsteps": "7"}, "unknown option of sample 'nsteps'; did you mean 'n_steps'"),
        ("sample", {"n_steps": "7.5"}, "sample.n_steps must be of type int, got '7.5'"),
        ("sample", {"step": "fast"}, "sample.step must be of type float, got 'fast'"),
        ("sample", {"ridge": "big"}, "sample.ridge must be of type float, got 'big'"),
        ("sample", {"kind": "row"}, "unknown value of sample.kind 'row'; did you mean 'rows'"),
        ("sample", {"exact": "maybe"}, "sample.exact must be true or false, got 'maybe'"),
        ("threshold", {"x": 1}, "unknown option of threshold 'x'. Known: (none)"),
        ("feta", {"quality": "bset"}, "unknown value of feta.quality 'bset'; did you mean 'best'"),
        ("feta", {"theta": 10.0}, "unknown option of feta 'theta'"),
        ("feta", {"solver": "svrgg"}, "unknown option of feta 'solver'"),
        ("feta", {"outer": "many"}, "feta.outer must be of type int, got 'many'"),
        ("feta-svrg", {"quality": "best"}, "unknown option of feta-svrg 'quality'"),
        ("feta-svrg", {"regulariser": "row"}, "unknown FetaSvrg.regulariser 'row'; did you mean 'rows'"),
        ("treshold", {}, "unknown method 'treshold'; did you mean 'threshold'"),
        ("magnitude", {}, "got 'magnitude', which is called 'threshold' here"),
        ("fast", {}, "got 'fast', which is an effort: give it as effort"),
        (Threshold(), {"x": 1}, "options must be empty when method is a Threshold object"),
        (Threshold, {}, "method must be text or a feta.Pruner"),
        (None, {}, "method must be text or a feta.Pruner"),
        (3, {}, "method must be text or a feta.Pruner"),
    ],
)
def test_what_is_no_method_or_option(method, given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(method, given)


def test_an_object_is_taken_as_it_is():
    pruner = Threshold()
    assert make(pruner) is pruner
    assert make(pruner, {}) is pruner


def test_the_old_spelling_is_accepted_with_a_warning():
    with pytest.warns(FutureWarning, match='use method="feta-svrg"'):
        old = make("feta", {"solver": "svrg", "debias": "false"})
    with pytest.warns(FutureWarning, match='use method="feta"'):
        gram = make("feta", {"solver": "gram", "quality": "fast"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert old == make("feta-svrg", {"debias": False})
        assert gram == make("feta", {"quality": "fast"})
