"""A network as a chain: the same outputs, folded batch-norm, adjoints, rows, Lipschitz constants, refusals."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from feta.certificates.chain import chain_of
from feta.certificates.stages import Affine, AvgPool, Flatten, ReLU
from feta.errors import ConfigError, ModelError

IMAGES = torch.randn(3, 2, 9, 8, generator=torch.Generator().manual_seed(1))
CONV, DENSE = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(8, 3)


def network(*layers: nn.Module) -> nn.Module:
    """With batch-norms that do something: statistics and factors unlike the ones they start with."""
    torch.manual_seed(0)
    for module in layers:
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias)
    return nn.Sequential(*layers)


class Custom(nn.Module):
    """A layer, and a function of it and of the input."""

    def __init__(self, layer, function) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x):
        return self.function(self.layer, x)


def functional(layers, x):
    x = F.max_pool2d(F.relu(layers[0](x)), 2, stride=1)
    x = F.dropout(F.adaptive_avg_pool2d(F.avg_pool2d(x, 2, 2), 2), 0.5, layers.training)
    return layers[1](x.view(x.size(0), -1))


def normed() -> nn.Module:
    conv = nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    return network(*conv, nn.BatchNorm1d(48), nn.Linear(48, 6), nn.Dropout(), nn.BatchNorm1d(6))


def pooled() -> nn.Module:
    first = nn.Conv2d(2, 4, (2, 3), padding="same", padding_mode="reflect"), nn.MaxPool2d(3, stride=2, padding=1)
    second = nn.AvgPool2d(2, stride=1, padding=1, ceil_mode=True), nn.Conv2d(4, 4, 3, padding=1, groups=2)
    third = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.AvgPool2d(2, divisor_override=3)
    return network(*first, *second, *third, nn.Flatten())


NETWORKS = {
    "dense": lambda: network(nn.Flatten(), nn.Linear(144, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)),
    "norms": normed,
    "pools": pooled,
    "adaptive": lambda: network(nn.AdaptiveAvgPool2d((4, 3)), nn.Conv2d(2, 4, 2), nn.Sequential(nn.ReLU())),
    "functional": lambda: Custom(network(nn.Conv2d(2, 4, 3, padding=1), nn.Linear(16, 3)), functional),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_chain_does_what_the_network_does(name):
    model = NETWORKS[name]()
    chain = chain_of(model, IMAGES)
    expected = model.eval().double()(IMAGES.double())
    torch.testing.assert_close(chain.apply(IMAGES), expected, rtol=1e-9, atol=1e-9)
    assert chain.in_shape == (2, 9, 8)
    assert chain.out_shape == tuple(expected.shape[1:])
    for before, after in zip(chain.stages, chain.stages[1:], strict=False):
        assert before.out_shape == after.in_shape


def test_batch_norm_is_folded_where_it_can_be():
    chain = chain_of(NETWORKS["norms"](), IMAGES)
    assert [stage.name for stage in chain.stages] == ["0", "1", "3", "4", "5", "6"]
    assert [type(stage) for stage in chain.stages] == [Affine, Affine, ReLU, Flatten, Affine, Affine]


@pytest.mark.parametrize("name", NETWORKS)
def test_transposes_and_absolute_values(name):
    x = IMAGES.double()
    for stage in chain_of(NETWORKS[name](), IMAGES).stages:
        y = stage.apply(x)
        if isinstance(stage, Affine | AvgPool | Flatten):
            straight = stage.with_weight(stage.weight).apply(x) if isinstance(stage, Affine) else y
            other = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
            torch.testing.assert_close((straight * other).sum(), (x * stage.transpose(other)).sum())
        if isinstance(stage, Affine):
            absolute = stage.absolute
            torch.testing.assert_close((absolute.apply(x) * other).sum(), (x * absolute.transpose(other)).sum())
            assert (absolute.apply(x.abs()) >= straight.abs() - 1e-9).all()
        x = y


@pytest.mark.parametrize("name", NETWORKS)
def test_lipschitz_constants_hold(name):
    generator = torch.Generator().manual_seed(4)
    for stage in chain_of(NETWORKS[name](), IMAGES).stages:
        x = torch.randn(200, *stage.in_shape, dtype=torch.float64, generator=generator)
        # One pixel alone is where windows that overlap tell.
        step = torch.zeros_like(x).flatten(1)
        step[torch.arange(200), torch.randint(step.shape[1], (200,), generator=generator)] = 5
        moved = stage.apply(x + step.reshape(x.shape)) - stage.apply(x)
        ratio = moved.flatten(1).norm(dim=1) / step.norm(dim=1)
        assert float(ratio.max()) <= stage.lipschitz * (1 + 1e-9)


POOLS = {
    nn.MaxPool2d(2): 1,
    nn.MaxPool2d(2, stride=3): 1,
    nn.MaxPool2d(3, stride=2, padding=1): 4,
    nn.MaxPool2d(3, stride=1): 9,
    nn.MaxPool2d((1, 2), stride=1): 2,
    nn.MaxPool2d(2, stride=2, dilation=2): 4,
}


@pytest.mark.parametrize(("pool", "overlap"), POOLS.items(), ids=str)
def test_overlap_of_max_pooling(pool, overlap):
    assert chain_of(network(CONV, pool), IMAGES).stages[1].lipschitz == math.sqrt(overlap)


def test_lipschitz_constants_of_pools_are_reached():
    """One bright pixel that is in four windows moves four outputs; means are exact."""
    stage = chain_of(network(nn.Conv2d(2, 1, 1), nn.MaxPool2d(3, 2, 1)), IMAGES).stages[1]
    x = torch.zeros(1, 1, 9, 8, dtype=torch.float64)
    x[0, 0, 3, 3] = 1
    assert float(stage.apply(x).norm()) == stage.lipschitz == 2
    mean = chain_of(network(nn.AvgPool2d(2), nn.Conv2d(2, 1, 1)), IMAGES).stages[0]
    assert mean.lipschitz == pytest.approx(0.5)
    torch.testing.assert_close(mean.row_norms, torch.full((4, 4), 0.5, dtype=torch.float64))


LINEAR = [
    (nn.Linear(7, 5), (7,)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 5, 6)),
    (nn.Conv2d(2, 4, (3, 2), stride=2, padding=(0, 1), dilation=(2, 1)), (2, 7, 6)),
    (nn.Conv2d(4, 4, 3, groups=2, padding="same"), (4, 4, 4)),
    (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), LINEAR, ids=str)
def test_rows_are_those_of_the_operator_as_a_matrix(layer, shape):
    (stage,) = chain_of(nn.Sequential(layer), torch.randn(2, *shape)).stages
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    matrix = stage.with_weight(stage.weight).apply(units).flatten(1).t()
    draw = torch.Generator().manual_seed(0)
    units = torch.stack([torch.randperm(len(matrix), generator=draw)[:4] for _ in range(2)])
    rows, bias = stage.rows(units)
    assert rows.shape == (2, 4, *shape)
    torch.testing.assert_close(rows.flatten(2), matrix[units])
    at_zero = stage.apply(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
    torch.testing.assert_close(bias, at_zero[units])
    assert stage.bias_norm == pytest.approx(float(at_zero.norm()))
    norms, exact = stage.row_norms.flatten(), matrix.norm(dim=1)
    if getattr(layer, "padding_mode", "zeros") == "zeros":
        torch.testing.assert_close(norms, exact)
    assert (norms >= exact * (1 - 1e-12)).all()


def test_the_model_is_left_alone():
    model = NETWORKS["norms"]().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    chain_of(model, IMAGES)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model[1].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Custom(CONV, lambda conv, x: x + conv(x)), "must be a chain, got 'add' which reads x and layer"),
        (Custom(DENSE, lambda dense, x: dense(x if x.sum() > 0 else -x)), "cannot be traced"),
        (Custom(DENSE, lambda dense, x: dense(x) * 2), r"got 'mul' \(a function\)"),
        (network(nn.Conv2d(2, 2, 1), nn.Sigmoid()), r"got '1' \(Sigmoid\)"),
        (nn.Sequential(CONV, nn.BatchNorm2d(2, track_running_stats=False)), "'1' must have running"),
        (network(nn.ReLU()), "at least one Linear or Conv2d"),
    ],
)
def test_what_is_not_a_chain_is_refused(model, words):
    with pytest.raises(ModelError, match=words):
        chain_of(model, IMAGES)


def test_bad_example():
    with pytest.raises(ConfigError, match="example must be a batch of float inputs"):
        chain_of(DENSE, torch.zeros(8))
    with pytest.raises(ModelError, match="finite outputs on the example"):
        chain_of(network(DENSE), torch.full((2, 8), float("nan")))
