"""The table of methods, and options as they come from Python and from a command line."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from feta.errors import ConfigError
from feta.problem import Needs, Pruner
from feta.pruners import METHODS, make, options_of
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


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_in_the_table(name):
    method = METHODS[name]
    assert method.name == name
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name)
    pruner = make(name)
    assert isinstance(pruner, Pruner)
    assert pruner.needs.passes in ("none", "few", "many")
    assert options_of(pruner) == {f.name: getattr(pruner, f.name) for f in dataclasses.fields(pruner)}
    assert method.__doc__
    with pytest.raises(dataclasses.FrozenInstanceError):
        pruner.anything = 1


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
    ("given", "message"),
    [
        ({"nsteps": "7"}, "unknown option of sample 'nsteps'; did you mean 'n_steps'"),
        ({"n_steps": "7.5"}, "sample.n_steps must be of type int, got '7.5'"),
        ({"step": "fast"}, "sample.step must be of type float, got 'fast'"),
        ({"ridge": "big"}, "sample.ridge must be of type float, got 'big'"),
        ({"kind": "row"}, "unknown value of sample.kind 'row'; did you mean 'rows'"),
        ({"exact": "maybe"}, "sample.exact must be true or false, got 'maybe'"),
    ],
)
def test_options_that_are_refused(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make("sample", given)


def test_a_method_without_options_says_so():
    with pytest.raises(ConfigError, match=r"unknown option of threshold 'x'. Known: \(none\)"):
        make("threshold", {"x": 1})


def test_an_object_is_taken_as_it_is():
    pruner = Threshold()
    assert make(pruner) is pruner
    assert make(pruner, {}) is pruner
    with pytest.raises(ConfigError, match="options must be empty when method is a Threshold object"):
        make(pruner, {"x": 1})


@pytest.mark.parametrize("method", [Threshold, None, 3])
def test_what_is_no_method(method):
    with pytest.raises(ConfigError, match="method must be a name or a Pruner object"):
        make(method)


def test_an_unknown_name():
    with pytest.raises(ConfigError, match="unknown method 'treshold'; did you mean 'threshold'"):
        make("treshold")
