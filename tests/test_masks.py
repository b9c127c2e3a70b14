"""Zeros stay exactly zero through any optimiser, copy, state and file, and the rest learns as it should."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.optim.optimizer import _global_optimizer_post_hooks

import feta
from feta.errors import ConfigError, ModelError
from feta.masks import _LIVE, ZeroHold, _after_step, masks_of, torch_masks
from nets import mlp

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.5, max_iter=4),
    "wolfe": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
}


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 9), nn.ReLU(), nn.Linear(9, 3))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 1, 6, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator)


def random_masks(model: nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    weights = {name: model.get_submodule(name).weight for name in ("0", "3")}
    return {name: torch.rand(w.shape, generator=generator) > 0.6 for name, w in weights.items()}


def masked() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = build()
    return model, random_masks(model)


def same(found: dict[str, torch.Tensor], masks: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[layer], mask) for layer, mask in masks.items())


def step(model: nn.Module, optimiser: torch.optim.Optimizer) -> float:
    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(rows()[0].to(next(model.parameters()).dtype)), rows()[1])
        loss.backward()
        return loss

    return float(optimiser.step(closure).detach())


def dead(model: nn.Module, masks: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([model.get_submodule(name).weight.detach()[~mask] for name, mask in masks.items()])


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_zeros_stay_zero(name, warm):
    """Also with momentum and moving averages from before the mask."""
    model = build()
    optimiser = OPTIMISERS[name](model.parameters())
    for _ in range(warm):
        step(model, optimiser)
    masks = random_masks(model)
    with feta.hold_zeros(model, masks):
        losses = [step(model, optimiser) for _ in range(6) if not dead(model, masks).any()]
    assert len(losses) == 6
    assert not dead(model, masks).any()
    assert losses[-1] < losses[0]
    assert same(feta.masks_of(model), masks)


def test_warm_momentum_would_move_them():
    """Guards the test above: without the hold the zeros are lost."""
    model = build()
    optimiser = OPTIMISERS["momentum"](model.parameters())
    for _ in range(3):
        step(model, optimiser)
    masks = random_masks(model)
    feta.hold_zeros(model, masks).remove()
    assert not dead(model, masks).any()
    step(model, optimiser)
    assert dead(model, masks).all()


@pytest.mark.parametrize("name", ["momentum", "adamw", "wolfe"])
def test_the_others_learn_as_in_a_model_without_those_weights(name):
    """Against a reference whose weight is a product with the mask, in float64."""

    class Masked(nn.Module):
        def __init__(self, mask: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("mask", mask)

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * self.mask

    model, reference = build().double(), build().double()
    masks = random_masks(model)
    for layer, mask in masks.items():
        torch.nn.utils.parametrize.register_parametrization(reference.get_submodule(layer), "weight", Masked(mask))
    with feta.hold_zeros(model, masks):
        for m in (model, reference):
            optimiser = OPTIMISERS[name](m.parameters())
            for _ in range(5):
                step(m, optimiser)
    data = rows()[0].double()
    assert torch.allclose(model(data), reference(data), rtol=1e-9, atol=1e-12)


def test_gradients_of_dead_weights_are_zero():
    """So that clipping by the norm sees the sparse model."""
    model, masks = masked()
    with feta.hold_zeros(model, masks):
        F.cross_entropy(model(rows()[0]), rows()[1]).backward()
    for name, mask in masks.items():
        gradient = model.get_submodule(name).weight.grad
        assert not gradient[~mask].any()
        assert gradient[mask].any()


def test_gradients_of_dead_weights_can_be_left_for_masks_that_change():
    model, masks = masked()
    adam = torch.optim.Adam(model.parameters(), 0.05)
    with ZeroHold(model, masks, gradients=True):
        for _ in range(3):
            step(model, adam)
            assert not dead(model, masks).any()
    for name, mask in masks.items():
        weight = model.get_submodule(name).weight
        assert weight.grad[~mask].any()
        assert adam.state[weight]["exp_avg"][~mask].any()


def test_other_zeros_are_held_once_masks_have_changed():
    """What dies is zero at once, what comes back starts from zero and learns; layers that are not named stay."""
    model, masks = masked()
    adam = torch.optim.Adam(model.parameters(), 0.05)
    others = {"3": ~masks["3"]}
    with ZeroHold(model, masks, gradients=True) as hold:
        step(model, adam)
        hold.change_(others)
        assert not model[3].weight.any()
        for _ in range(3):
            step(model, adam)
            assert not dead(model, masks | others).any()
        assert model[3].weight[others["3"]].any()
        assert same(hold.masks, masks | others)
        hold.change_(masks)
        assert not dead(model, masks).any()


@pytest.mark.parametrize("name", ["momentum", "adamw", "lbfgs"])
def test_a_deep_copy_in_the_middle_goes_on_the_same(name):
    model, masks = masked()
    optimiser = OPTIMISERS[name](model.parameters())
    with feta.hold_zeros(model, masks):
        step(model, optimiser)
        twin = copy.deepcopy(model)
        other = OPTIMISERS[name](twin.parameters())
        other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
        assert same(feta.masks_of(twin), masks)
        with feta.hold_zeros(twin):
            for _ in range(3):
                assert step(model, optimiser) == step(twin, other)
    assert not dead(twin, masks).any()


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_in_the_middle(assign):
    """The state of another model, without zeros, is loaded; after the next step they are back."""
    model, other = build(), build()
    masks = random_masks(model)
    saved = {key: value.clone() for key, value in other.state_dict().items()}
    with feta.hold_zeros(model, masks):
        step(model, OPTIMISERS["momentum"](model.parameters()))
        state = copy.deepcopy(model.state_dict())
        assert set(state) == set(saved)  # masks add nothing to it
        model.load_state_dict(saved, assign=assign)
        if assign:
            for parameter in model.parameters():
                parameter.requires_grad_()
        step(model, OPTIMISERS["momentum"](model.parameters()))
        assert not dead(model, masks).any()
    model.load_state_dict(state)
    assert same(feta.masks_of(model), masks)


def test_files_keep_them(tmp_path):
    model, masks = masked()
    with feta.hold_zeros(model, masks):
        step(model, OPTIMISERS["adamw"](model.parameters()))
    feta.save(model, tmp_path / "half.safetensors")
    again = feta.load_into(build(), tmp_path / "half.safetensors")
    with feta.hold_zeros(again) as hold:
        assert same(hold.masks, masks)
        step(again, OPTIMISERS["adamw"](again.parameters()))
    assert not dead(again, masks).any()


def test_a_hold_that_is_removed_lets_go():
    model, masks = masked()
    hold = feta.hold_zeros(model, masks)
    optimiser = OPTIMISERS["sgd"](model.parameters())
    step(model, optimiser)
    hold.remove()
    hold.remove()
    step(model, optimiser)
    assert dead(model, masks).any()
    assert not any(p._backward_hooks for p in model.parameters())


def test_other_models_and_frozen_weights_are_left_alone():
    model, other = build(), build()
    model.get_submodule("0").weight.requires_grad_(False)
    masks = random_masks(model)
    with feta.hold_zeros(model, masks):
        with torch.no_grad():
            model.get_submodule("3").weight.fill_(1.0)
        step(other, OPTIMISERS["momentum"](other.parameters()))
        assert dead(model, masks).any()  # a step of another optimiser is none of its business
        step(model, OPTIMISERS["momentum"]([p for p in model.parameters() if p.requires_grad]))
    assert not dead(model, masks).any()
    assert feta.masks_of(other) == {}


def test_nan_outside_the_mask_does_not_stay():
    model, masks = masked()
    with torch.no_grad():
        model.get_submodule("3").weight[~masks["3"]] = torch.nan
    feta.hold_zeros(model, masks).remove()
    assert not dead(model, masks).any()
    assert not torch.signbit(dead(model, masks)).any()


def test_a_model_that_is_gone_is_not_kept():
    model = build()
    feta.hold_zeros(model, random_masks(model))
    gone = weakref.ref(model)
    before = len(_LIVE)
    del model
    gc.collect()
    assert gone() is None
    assert len(_LIVE) == before - 1
    assert list(_global_optimizer_post_hooks.values()).count(_after_step) == 1


def test_masks_of_a_choice_of_layers():
    result = feta.prune(build(), sparsity=0.5, method="threshold", layers=["3"])
    assert list(feta.masks_of(result.model)) == ["3"]
    assert torch.equal(feta.masks_of(result.model)["3"], result.masks["3"])
    assert list(feta.masks_of(result.model, ["0", "3"])) == ["0", "3"]
    with pytest.raises(ConfigError, match="layers must name layers that can be pruned, got 'fc'"):
        feta.masks_of(result.model, "fc")


@pytest.mark.parametrize(
    ("masks", "kind", "message"),
    [
        ({"7": torch.ones(3, 3, dtype=torch.bool)}, ConfigError, "masks must name layers of the model, got '7'"),
        ({"3": torch.ones(9, 48)}, ConfigError, r"masks\['3'\] must be bool of shape \(9, 48\), got torch.float32"),
        ({"3": torch.ones(9, dtype=torch.bool)}, ConfigError, r"of shape \(9, 48\), got torch.bool \(9,\)"),
        ({"1": torch.ones(9, dtype=torch.bool)}, ModelError, "layer '1' must hold its weight"),
    ],
)
def test_masks_that_do_not_fit(masks, kind, message):
    model = build()
    with pytest.raises(kind, match=message):
        feta.hold_zeros(model, masks)
    assert not any(p._backward_hooks for p in model.parameters())


# Torch's own tool


def pruned_model():
    return feta.prune(mlp(6, 10, 8, 3), torch.randn(40, 6), 0.7, "threshold").model


def test_torch_masks_are_those_of_torchs_own_tool():
    model = pruned_model()
    x, zeros = torch.randn(5, 6), masks_of(model)
    before = model(x)
    torch_masks(model)
    assert prune.is_pruned(model)
    assert torch.equal(model(x), before)
    assert set(zeros) == {"fc1", "fc2"}
    for name, mask in zeros.items():
        assert torch.equal(model.get_submodule(name).weight_mask.bool(), mask)


def test_fine_tuning_under_torch_masks_keeps_the_zeros_and_remove_ends_them():
    model = pruned_model()
    zeros = masks_of(model)
    torch_masks(model)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    start = model.fc1.weight_orig.detach().clone()
    for _ in range(5):
        optimiser.zero_grad()
        model(torch.randn(20, 6)).square().mean().backward()
        optimiser.step()
    assert not torch.equal(model.fc1.weight_orig, start)
    model(torch.randn(2, 6))
    for name in zeros:
        prune.remove(model.get_submodule(name), "weight")
    assert not prune.is_pruned(model)
    assert all(torch.equal(mask, model.get_submodule(name).weight != 0) for name, mask in zeros.items())
    model(torch.randn(2, 6)).sum().backward()
    assert isinstance(model.fc1.weight, nn.Parameter)
    assert model.fc1.weight.grad is not None


@pytest.mark.parametrize("ran", [False, True])
def test_a_model_under_torch_masks_can_be_deep_copied(ran):
    model, x = torch_masks(pruned_model()), torch.randn(5, 6)
    if ran:
        model(x).sum().backward()
    other = copy.deepcopy(model)
    assert torch.equal(other(x), model(x))
    with torch.no_grad():
        other.fc1.weight_orig.zero_()
    assert not torch.equal(other(x), model(x))
    other(x).sum().backward()
    assert other.fc1.weight_orig.grad is not None


def test_torch_masks_for_weights_that_are_not_zero_yet():
    model = mlp(6, 10, 3)
    torch_masks(model, {"fc1": model.fc1.weight > 0})
    assert not bool((model.fc1.weight < 0).any())
    with pytest.raises(ConfigError, match="masks must name layers"):
        torch_masks(model, {"fc9": torch.ones(2, 2, dtype=torch.bool)})
