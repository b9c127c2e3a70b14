"""Options outside what they may be: every method refuses them when it is made, and names the option."""

from __future__ import annotations

import re

import pytest

from feta.errors import ConfigError
from feta.pruners.alps import Alps
from feta.pruners.corenet import Corenet
from feta.pruners.exact_obs import ExactObs
from feta.pruners.lobs import Lobs
from feta.pruners.net_trim import NetTrim
from feta.pruners.sparsegpt import SparseGpt
from feta.pruners.wanda import Wanda


@pytest.mark.parametrize(
    ("method", "field", "value", "must"),
    [
        (Alps, "ridge", -1, ">= 0"),
        (Alps, "rho", 0, "> 0"),
        (Alps, "max_iterations", 0, ">= 1"),
        (Alps, "refit", "none", "'pcg' or 'exact'"),
        (Alps, "refit_iterations", -1, ">= 0"),
        (Corenet, "sample_size", 0, ">= 1"),
        (Corenet, "sample_size", -3, ">= 1"),
        (ExactObs, "damping", -0.1, ">= 0"),
        (ExactObs, "max_cost", 0, "> 0"),
        (ExactObs, "batch_bytes", 0, ">= 1"),
        (Lobs, "damping", -1, ">= 0"),
        (NetTrim, "iterations", 0, ">= 1"),
        (NetTrim, "search_steps", 0, ">= 1"),
        (NetTrim, "rho", 0.0, "> 0"),
        (NetTrim, "tolerance", -1.0, "> 0"),
        (NetTrim, "epsilon", 0.0, "> 0"),
        (NetTrim, "search", "count", "'error' or 'constraint'"),
        (SparseGpt, "damping", -0.1, ">= 0"),
        (SparseGpt, "block", 0, ">= 1"),
        (Wanda, "scope", "row", "'output' or 'layer'"),
    ],
)
def test_bad_options_are_refused(method, field, value, must):
    message = f"{method.__name__}.{field} must be {must}, got {value!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        method(**{field: value})
