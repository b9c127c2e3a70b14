"""feta.certify: never wrong, over networks, methods and sparsities; the numbers it reports; what it refuses."""

import json
from functools import cache

import pytest
import torch
from torch import nn

import feta
from feta.certificates.agreement import lower_limit
from feta.certificates.attack import Attack
from feta.certificates.certificate import Form, certify
from feta.errors import ConfigError

SHAPE, CLASSES = (1, 8, 8), 4
ATTACK = Attack(points=10, restarts=2, steps=12, beyond=(50.0,))


@cache
def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy copies of four patterns, easy enough to learn and hard enough to get some wrong."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, *SHAPE, generator=generator)
    labels = torch.randint(0, CLASSES, (900,), generator=generator)
    return patterns[labels] + 1.8 * torch.randn(900, *SHAPE, generator=generator), labels


@cache
def trained(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "dense":
        body = nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16)
    else:
        first = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        second = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
        body = *first, *second, nn.Flatten(), nn.Linear(24, 16)
    model = nn.Sequential(*body, nn.ReLU(), nn.Linear(16, CLASSES))
    images, labels = data()
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(12):
        for x, y in zip(images[:500].split(50), labels[:500].split(50), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model.eval()


@cache
def pruned(name: str, method: str, sparsity: float) -> nn.Module:
    dense = [layer for layer, module in trained(name).named_modules() if isinstance(module, nn.Linear)]
    return feta.prune(trained(name), data()[0][:500], sparsity, method, layers=dense[:-1]).model


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = data()
    return images[500:], labels[500:]


@pytest.mark.parametrize("sparsity", [0.5, 0.9])
@pytest.mark.parametrize("method", ["threshold", "feta", "wanda"])
@pytest.mark.parametrize("name", ["dense", "conv"])
def test_no_certificate_is_wrong(name, method, sparsity):
    norm = "linf" if method == "wanda" else "l2"
    networks = trained(name), pruned(name, method, sparsity)
    found = certify(*networks, *held_out(), samples=15, attack=ATTACK, norm=norm)
    for form in found.forms.values():
        assert form.any_certified >= 7
        assert form.certified_but_changed == 0
        # The same search finds changes further out, so it would have found one inside.
        assert dict(form.changed_beyond)[50.0] >= 0.6 * form.any_certified
    local, world = (torch.tensor(found.forms[key].radius) for key in ("local", "global"))
    assert local.median() > 1.2 * world.median()


def test_the_numbers():
    images, labels = held_out()
    first, second = trained("dense"), pruned("dense", "threshold", 0.9)
    a, b = (model(images).argmax(1) for model in (first, second))
    found = certify(first, second, images, labels, samples=30, attack=ATTACK, radii=(0.1, 1.0))
    said = found.to_dict()
    json.dumps(said, allow_nan=False)
    assert said["samples"] == 400
    assert said["agree"] == int((a == b).sum()) < 400
    assert said["agreement_lower_bound"] == lower_limit(said["agree"], 400, 1 - 0.99)
    lost = int((a == labels).sum()) - int((b == labels).sum())
    assert said["accuracy_lost"] == pytest.approx(lost / 400)
    assert said["accuracy_lost"] < said["accuracy_lost_upper_bound"] < 1
    assert set(said["forms"]) == {"global", "local"}
    for name, form in said["forms"].items():
        assert form["samples"] == len(form["radius"]) == 30
        apart = (a != b)[:30]
        assert apart.any()
        assert (torch.tensor(form["radius"])[apart] == 0).all()
        for row in form["certified"]:
            assert row["samples"] == sum(r >= row["radius"] for r in form["radius"])
            assert row["share"] == row["samples"] / 30
        assert [row["times"] for row in form["changed_beyond"]] == [50]
        assert found.forms[name].certified(0.1) == form["certified"][0]["samples"]


def test_batches_are_as_good_as_tensors_and_labels_may_be_missing():
    images, labels = held_out()
    first, second = trained("dense"), pruned("dense", "threshold", 0.9)
    options = {"samples": 12, "attack": None, "forms": ("global",)}
    whole = certify(first, second, images, labels, **options)
    batches = list(zip(images.split(7), labels.split(7), strict=True))
    assert certify(first, second, batches, **options) == whole
    assert certify(first, second, images.double(), labels, **options) == whole
    unlabelled = certify(first, second, images.split(7), **options)
    assert unlabelled.forms == whole.forms
    assert unlabelled.agreement.lower_bound == whole.agreement.lower_bound
    assert unlabelled.to_dict()["accuracy_lost_upper_bound"] is None
    assert whole.forms["global"].certified_but_changed is None


def test_a_network_agrees_with_itself_and_is_left_alone():
    model = trained("conv").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = certify(model, model, held_out()[0], samples=5, attack=ATTACK)
    assert found.agreement.agree == found.agreement.samples == 400
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()


def test_a_vacuous_form_says_so():
    model = trained("dense")
    found = certify(model, model, held_out()[0], samples=5, attack=None, forms=("global",), radii=(99,))
    assert found.to_dict()["forms"]["global"]["vacuous"] is True
    assert Form((0.0, 0.0)).to_dict((1.0,))["median_radius"] == 0


def test_progress_is_told():
    told, model = [], trained("dense")
    certify(model, model, held_out()[0], samples=5, attack=ATTACK, callback=lambda *news: told.append(news))
    assert ("local radius", 5, 5) in told
    assert {text for text, _, _ in told} >= {"agreement", "global radius", "attack on local"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, r"certify.confidence must be in \(0, 1\), got 1.0"),
        ({"radii": (0.1, -1)}, "certify.radii must be numbers > 0"),
        ({"samples": 0}, "certify.samples must be >= 1, got 0"),
        ({"norm": "l1"}, "unknown norm 'l1'. Known: l2, linf"),
        ({"forms": ("world",)}, r"forms must be a list of 'global' or 'local', got \('world',\)"),
        ({"refined": -1}, "certify.refined must be >= 0, got -1"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ConfigError, match=message):
        certify(trained("dense"), trained("dense"), held_out()[0], **options)


def test_it_is_printed_in_a_few_lines(capsys, monkeypatch):
    monkeypatch.setattr("feta.progress.SELDOM", 0.0)
    given = (trained("dense"), pruned("dense", "threshold", 0.5), *held_out())
    found = certify(*given, samples=30, attack=None, progress=True)
    first, *forms = repr(found).splitlines()
    assert first == str(found.agreement)
    assert f"same class on {found.agreement.agree} of 400 held-out samples" in first
    assert f"at most {-(-10000 * found.agreement.accuracy_lost_upper_bound // 1) / 100:.2f} (99 % sure)" in first
    assert [form.split()[0] for form in forms] == ["global", "local"]
    assert f"{found.forms['local'].any_certified} of 30 samples certified" in forms[1]
    assert len(repr(found.forms["local"])) < 120
    assert found._repr_html_().count("<div>") == 3
    assert "feta: local radius: 30 of 30" in capsys.readouterr().err
