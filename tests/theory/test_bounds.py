"""The whole comparison: from two models and samples to a report that is plain JSON."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from feta.errors import ConfigError
from feta.theory.bounds import generalisation_bounds
from feta.theory.robustness import Manifold

FORMS = (("paper", "measured"), ("sound", "measured"), ("sound", "box"))
X = torch.randn(150, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def pair(share: float = 0.5) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4))
    pruned = copy.deepcopy(dense)
    for layer in (pruned[0], pruned[4]):
        weight = layer.weight.data
        weight[weight.abs() < weight.abs().quantile(share)] = 0
    return dense, pruned


@pytest.fixture(scope="module")
def report():
    labels = torch.arange(150) % 4
    return generalisation_bounds(*pair(), X, labels=labels, input_width=6.0, dimension_rows=100)


def test_everything_is_there(report):
    assert [layer.name for layer in report.layers] == ["0", "4"]
    assert (report.samples, report.classes) == (150, 4)
    assert report.largest_input == pytest.approx(float(X.flatten(1).norm(dim=1).max()))
    wanted = {(t, f, m) for t in ("5.1", "5.2", "pruned", "dense") for f, m in FORMS}
    assert {(b.theorem, b.form, b.manifold) for b in report.bounds} == wanted
    assert report.manifold.dimension == report.dimension.two_nn
    assert report.layers[0].dimension.two_nn == pytest.approx(report.dimension.two_nn)
    assert report.layers[1].dimension.ambient == 27
    assert report.largest_shift <= math.exp(report.log_largest_shift)
    assert report.bound("5.2", "sound", manifold="box").manifold == "box"
    assert len(report.procedure.starts) == 3
    assert report.procedure.starts[0].accuracy is not None


def test_the_box_is_never_better_than_the_estimate(report):
    for theorem in ("pruned", "dense"):
        measured, box = (report.bound(theorem, "sound", manifold=m) for m in ("measured", "box"))
        assert measured.log_margin == box.log_margin
        assert measured.log_bound < box.log_bound


def test_norms_come_from_the_weights(report):
    dense, pruned = pair()
    change = (pruned[4].weight - dense[4].weight).detach().double()
    assert report.layers[1].change.value == pytest.approx(torch.linalg.svdvals(change)[0].item())
    assert report.layers[1].bias_change == 0
    assert report.layers[0].log_gain == pytest.approx(math.log(report.layers[1].norm.upper))


def test_plain_json(report):
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["vacuous"] is True
    assert plain["layers"][0]["norm"]["upper"] == report.layers[0].norm.upper
    assert {"vacuous", "exponent", "log_bound"} <= set(plain["bounds"][0])
    assert plain["dimension"]["pca"].keys() == {"0.9", "0.95", "0.99"}


def test_batches_and_chunking_do_not_matter():
    settings = {"manifold": Manifold(5.0, 10.0), "dimension_rows": 0, "max_starts": 0}
    whole = generalisation_bounds(*pair(), X, **settings)
    assert (whole.dimension, whole.procedure) == (None, None)
    for data in ([(x, None) for x in X.split(40)], iter(X.split(40))):
        other = generalisation_bounds(*pair(), data, **settings)
        assert other.samples == 150
        for a, b in zip(whole.bounds, other.bounds, strict=True):
            assert (a.log_gamma, a.log_lost) == pytest.approx((b.log_gamma, b.log_lost), rel=1e-9)


def test_the_same_network_loses_nothing():
    dense, _ = pair()
    same = generalisation_bounds(dense, dense, X, manifold=Manifold(5.0, 10.0), dimension_rows=0)
    assert same.agree == 150
    assert same.largest_shift == 0
    assert same.bound("5.2", "sound").log_lost == -math.inf
    assert same.bound("5.2", "sound").log_bound == same.bound("dense", "sound").log_bound
    assert same.procedure.arrived
    json.dumps(same.to_dict(), allow_nan=False)


def test_bad_input(report):
    for data, options, words in (
        (X, {"labels": torch.zeros(3)}, "labels must be one per sample, 150, got a Tensor"),
        (X, {"dimension_rows": 0}, "manifold must be given where dimension_rows is 0"),
        ([{"x": X}], {}, "must yield tensors"),
    ):
        with pytest.raises(ConfigError, match=words):
            generalisation_bounds(*pair(), data, **options)
    with pytest.raises(ConfigError, match="bound must be one of those computed"):
        report.bound("5.1", "sound", "nothing")
