"""What a layer problem accepts, and what each kind of bad input is told."""

import math

import pytest
import torch

from feta.errors import ConfigError, ModelError
from feta.problem import LayerProblem, LayerSolution, Pruner, Status
from feta.pruners.threshold import Threshold

W, BIAS = torch.ones(3, 2), torch.ones(2)


@pytest.mark.parametrize(
    ("weights", "bias", "error", "message"),
    [
        (torch.ones(3), None, ConfigError, r"fc: W must be a 2-d float tensor, got \(3,\)"),
        (torch.ones(3, 2, dtype=torch.int64), None, ConfigError, r"got \(3, 2\) torch.int64"),
        (W, torch.ones(3), ConfigError, r"fc: bias must have shape \(2,\), got \(3,\)"),
        (W * math.nan, BIAS, ModelError, "fc: weights must be finite, got 6 NaN or infinite of 6"),
        (W, torch.tensor([1.0, -math.inf]), ModelError, "fc: bias must be finite, got 1 NaN or infinite of 2"),
    ],
)
def test_bad_layers(weights, bias, error, message):
    with pytest.raises(error, match=message):
        LayerProblem(weights, bias, None, name="fc")


def test_rows_without_data():
    with pytest.raises(ConfigError, match="fc: this method needs calibration data, got none; pass data="):
        _ = LayerProblem(W, BIAS, None, name="fc").rows


def test_report_reaches_the_trace_and_needs_none():
    seen = []
    LayerProblem(W, BIAS, None, trace=lambda phase, values: seen.append((phase, values))).report("fit", loss=1.0)
    LayerProblem(W, BIAS, None).report("fit", loss=1.0)
    assert seen == [("fit", {"loss": 1.0})]


def test_the_protocol_knows_a_pruner():
    assert isinstance(Threshold(), Pruner)
    assert not isinstance("threshold", Pruner)
    assert LayerSolution(W, BIAS).status is Status.OK
