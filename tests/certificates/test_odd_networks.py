"""Networks that would get a wrong certificate if they were taken for what they look like."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from feta.certificates.certificate import certify
from feta.certificates.chain import chain_of
from feta.errors import ConfigError, DataError, ModelError

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layers or (nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))).eval()


class Custom(nn.Module):
    """Layers, and a function of them and of the input."""

    def __init__(self, function, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = net(*layers), function
        self.eval()

    def forward(self, x: torch.Tensor):
        return self.function(self.layers, x)


def both(model: nn.Module, x: torch.Tensor = X, **options):
    return certify(model, copy.deepcopy(model), x, samples=len(x), **options)


def cancelling(seed: int) -> nn.Module:
    """Two batch-norms in a row: the first adds 1e5 and takes it away, the second multiplies by a thousand."""
    linear, first, second = nn.Linear(1, 2, bias=False), nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    torch.manual_seed(seed)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        first.running_var.uniform_(0.5, 2)
        first.running_mean.uniform_(1e5, 2e5)
        first.weight.uniform_(0.5, 2)
        deviation = (first.running_var.double() + first.eps).sqrt()
        shift = first.running_mean.double() * first.weight.double() / deviation
        first.bias.copy_(shift)
        second.running_mean.copy_(first.bias.double() - shift)
        second.weight.fill_(1e3)
    return nn.Sequential(linear, first, second).eval()


def test_batch_norm_after_batch_norm():
    """What the first one rounds the second one multiplies: the constants cancel, their errors do not."""
    x = torch.tensor([[s * v] for v in (1.0, 0.05, 0.02, 0.01, 0.005) for s in (1, -1)])
    for seed in range(5):
        model = cancelling(seed)
        found = both(model, x, attack=None)
        for form in found.forms.values():
            for centre, radius, classes in zip(x, form.radius, found.classes, strict=True):
                ball = centre + (1 - 1e-6) * radius * torch.linspace(-1, 1, 4001)[:, None]
                assert radius == 0 or bool((model(ball).argmax(1) == classes[0]).all())
    assert len(chain_of(model, x).affines) == 2


def in_half(layers, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layers(x).float()


@torch.fx.wrap
def relu(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0, 6)


def filled(layer: int, name: str, value: float) -> nn.Module:
    """The plain network with one parameter of one value."""
    model = net()
    nn.init.constant_(getattr(model[layer], name), value)
    return model


@pytest.mark.parametrize(
    ("model", "x", "error", "words"),
    [
        (Custom(in_half), X, ModelError, r"compute in float32 or float64, got aten\..* in bfloat16"),
        (Custom(lambda layers, x: layers[2](relu(layers[0](x)))), X, ModelError, "got 'clamp'"),
        (
            net(nn.AvgPool2d(2, divisor_override=-2), nn.Flatten(), nn.ReLU(), nn.Linear(4, 3)),
            torch.ones(6, 1, 4, 4),
            ModelError,
            "must have a divisor > 0, got -2",
        ),
        (net(), torch.cat([X, X / 0]), DataError, f"finite inputs, .* in held-out sample {len(X)}; leave"),
        (filled(2, "weight", 3e38), X, DataError, "finite scores, got inf or NaN in held-out sample 0$"),
        (Custom(lambda layers, x: (layers(x), x)), X, ModelError, "two or more scores for each sample"),
        (net().to(torch.bfloat16), X, ModelError, "float32 networks"),
        (net(nn.Linear(4, 1)), X, ModelError, "two or more scores for each sample"),
        (net(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3)), X, ModelError, "two or more scores for each sample"),
        (Custom(torch.no_grad()(lambda layers, x: layers(x))), X, ModelError, "must have gradients in its input"),
    ],
)
def test_what_cannot_be_certified_is_refused(model, x, error, words):
    """A function is known by what it is, not by its name; what is not finite agrees with nothing."""
    with pytest.raises(error, match=words):
        both(model, x)


def test_a_caller_s_autocast_is_kept_out():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = both(net())
    assert inside.to_dict() == both(net()).to_dict()


@pytest.mark.parametrize("place", ["0", "1", ""])
def test_hooks_are_refused(place):
    after, before = net(), net()
    after.get_submodule(place).register_forward_hook(lambda module, args, output: output.clamp(max=6.0))
    before.get_submodule(place).register_forward_pre_hook(lambda module, args: None)
    for model in (after, before):
        with pytest.raises(ModelError, match="must have no forward hooks, got one on"):
            both(model)


def test_torch_s_own_pruning_is_made_permanent_first():
    model = net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.raises(ModelError, match=r"under torch.nn.utils.prune or an old weight_norm plain first"):
        certify(net(), model, X)
    prune.remove(model[0], "weight")
    assert both(model).forms["local"].any_certified == len(X)


def test_values_beyond_float32_are_not_certified():
    """The ball as well as the sample must be in range: that of 8 reaches sums of 3e38."""
    model = net(nn.Linear(1, 2, bias=False))
    model[0].weight.data = torch.tensor([[2e37], [1e37]])
    x = torch.tensor([[10.0], [8.0], [1.0]])
    forms = both(model, x, attack=None).forms
    for form in forms.values():
        for centre, radius in zip(x, form.radius, strict=True):
            scores = model(centre + radius * torch.linspace(-1, 1, 2001)[:, None])
            assert bool((scores.argmax(1) == 0).all())
            assert bool(torch.isfinite(scores).all())
    assert forms["global"].radius[1] == 0
    assert forms["global"].radius[2] > 0.9


def test_the_local_radius_of_a_deep_network():
    """Thousands of times the global one: the search must not begin at what the other form says."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(16) for layer in (nn.Linear(24, 24), nn.ReLU())]
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), *hidden, nn.Linear(24, 3)).double().eval()
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = X[:5].double()
    found = certify(model, copy.deepcopy(model), x, samples=5, attack=None, refined=64)
    x.requires_grad_()
    top = model(x).topk(2, dim=1).values
    (slope,) = torch.autograd.grad((top[:, 0] - top[:, 1]).sum(), x)
    linear = ((top[:, 0] - top[:, 1]) / slope.norm(dim=1)).tolist()
    assert all(local > 0.02 * scale for local, scale in zip(found.forms["local"].radius, linear, strict=True))


def test_what_the_attack_refutes_is_not_certified(monkeypatch):
    from feta.certificates import radius

    wrong = lambda chain, inputs, classes, rounding, norm: torch.full((len(inputs),), 1e3).double()  # noqa: E731
    monkeypatch.setattr(radius, "global_radius", wrong)
    form = both(net(), forms=("global",)).forms["global"]
    assert form.certified_but_changed > 30
    assert form.any_certified == len(X) - form.certified_but_changed


@pytest.mark.parametrize(
    ("data", "labels", "error", "words"),
    [
        (X, torch.zeros(40, 1, dtype=torch.long), DataError, r"labels must be a class .* got \(40, 1\)"),
        (X, torch.zeros(3, dtype=torch.long), DataError, r"labels must be a class for each of 40 inputs, got \(3,\)"),
        (X, torch.zeros(40), DataError, r"labels must be a class .*\.float32"),
        ([(X, torch.zeros(40, 3))], None, DataError, "labels must be a class"),
        ([X], torch.zeros(40, dtype=torch.long), ConfigError, "labels must come with the batches"),
        ([{"x": X}], None, ConfigError, "data must be batches .* got dict"),
        (X[:0], None, ConfigError, "at least one sample"),
        ([], None, DataError, "at least one held-out sample"),
    ],
)
def test_data_of_another_kind(data, labels, error, words):
    with pytest.raises(error, match=words):
        certify(net(), net(), data, labels)


def test_networks_of_two_kinds():
    for other, words in (
        (net(nn.Linear(4, 2)), r"same number of scores, got \(3,\) and \(2,\)"),
        (net(nn.Linear(4, 3), nn.Sigmoid()), "Sigmoid"),
        (net().double(), "of one type, got"),
    ):
        with pytest.raises(ModelError, match=words):
            certify(net(), other, X)


def test_labels_as_a_list_and_batches_without_them_as_a_loader_gives_them():
    assert certify(net(), net(), X, [0] * 40, forms=("global",)).agreement.both_right is not None
    loader = [[part] for part in X.split(10)]
    assert certify(net(), net(), loader, forms=("global",), attack=None).agreement.samples == len(X)


def test_the_caller_s_data_stay_as_they_are():
    before = X.clone()
    both(net(nn.ReLU(inplace=True), nn.Linear(4, 3)))
    assert torch.equal(X, before)


def pooled(layers, x):
    x = F.relu(layers[0](x))
    return layers[1](torch.flatten(F.avg_pool2d(x, x.size()[2:]), 1))


def test_sizes_read_from_the_values():
    model = Custom(pooled, nn.Conv2d(1, 4, 3), nn.Linear(4, 3))
    assert both(model, torch.randn(5, 1, 6, 6)).forms["local"].any_certified == 5


def test_local_is_never_less_than_global():
    """Where all hidden units are dead the slope is zero, and says nothing of how far to look."""
    found = both(filled(0, "bias", -8.0))
    pairs = zip(found.forms["local"].radius, found.forms["global"].radius, strict=True)
    assert all(local >= everywhere for local, everywhere in pairs)
    assert min(found.forms["local"].radius) > 0
    form = found.to_dict()["forms"]["global"]
    assert form["certified_any_in_exact_arithmetic"] >= form["certified_any"]


def test_a_sample_without_a_slope_does_not_mislead_the_next(monkeypatch):
    from feta.certificates import radius

    monkeypatch.setattr(radius, "BATCH_VALUES", 1)  # a batch for each sample
    model, dead = filled(0, "bias", -2.0), torch.full((1, 4), 1e-3)
    assert not bool((model[0](dead) > 0).any())
    alone = both(model, X[:3]).forms["local"].radius
    after = both(model, torch.cat([dead, X[:3]])).forms["local"].radius
    assert after[0] > 0
    assert after[1:] == pytest.approx(alone, rel=0.1)
