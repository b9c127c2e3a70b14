"""A support that moves: its schedule and scores against the formulas, and exact counts however a fit ends."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from tuned import build

import feta
import nets
from feta.errors import ConfigError
from feta.masks import ZeroHold
from feta.sparsity import top_k_mask
from feta.tuning import loop
from feta.tuning.fitting import EVERY
from feta.tuning.support import END, POWER, USE, MovingSupport, largest

X = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(60, 2, 4, 4, generator=torch.Generator().manual_seed(2))


class Setting:
    """Layers without biases, all their weights alive, and Adam on them."""

    def __init__(self, *weights: list[list[float]], counts: list[int], rate: float = 0.1, free: bool = False) -> None:
        self.model = nn.Sequential(*(nn.Linear(len(w[0]), len(w), bias=False).double() for w in weights))
        for layer, w in zip(self.model, weights, strict=True):
            layer.weight.data = torch.tensor(w, dtype=torch.float64)
        masks = {str(i): torch.ones_like(layer.weight, dtype=torch.bool) for i, layer in enumerate(self.model)}
        self.hold = ZeroHold(self.model, masks, gradients=True)
        self.adam = torch.optim.Adam(self.model.parameters(), rate)
        kept = {str(i): count for i, count in enumerate(counts)}
        self.support = MovingSupport(self.hold, self.adam, kept, None if free else largest)

    def step(self, *gradients: list[list[float]]) -> None:
        for layer, gradient in zip(self.model, gradients, strict=True):
            layer.weight.grad = torch.tensor(gradient, dtype=torch.float64)
        self.adam.step()

    def weight(self, index: int = 0) -> Tensor:
        return self.model[index].weight.detach()

    def alive(self, index: int = 0) -> list[int]:
        """The places of the first row that are alive."""
        mask = self.hold.masks[str(index)]
        assert not self.weight(index)[~mask].any()
        return mask[0].nonzero()[:, 0].tolist()


ALMOST = 0.99 * END
LINE = [[1.0, 0.9, 0.8, 0.01]]


def rows(high: int, wide: int, seed: int = 0) -> list[list[float]]:
    return torch.randn(high, wide, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


@settings(max_examples=20)
@given(st.integers(0, 35), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_schedule_is_that_of_the_formula(count, shares):
    setting = Setting(rows(5, 7), rows(3, 5), counts=[count, 4])
    for over in sorted(shares):
        setting.support.move(over)
        gone = 1 - (1 - min(1.0, over / END)) ** POWER
        for index, (size, last) in enumerate(((35, count), (15, 4))):
            assert int(setting.hold.masks[str(index)].sum()) == round(size - (size - last) * gone)
            assert torch.equal(setting.weight(index) != 0, setting.hold.masks[str(index)])
        assert setting.support.settled == (over >= END)
    setting.support.move(1.0)
    assert [int(setting.hold.masks[name].sum()) for name in "01"] == [count, 4]


@settings(max_examples=20)
@given(st.integers(0, 50), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_a_free_support_keeps_as_many_in_all_layers_together(count, shares):
    setting = Setting(rows(5, 7), rows(3, 5), counts=[count // 2, count - count // 2], free=True)
    for over in sorted(shares):
        setting.support.move(over)
        gone = 1 - (1 - min(1.0, over / END)) ** POWER
        assert sum(int(mask.sum()) for mask in setting.hold.masks.values()) == round(50 - (50 - count) * gone)
    setting.support.move(1.0)
    assert sum(int(mask.sum()) for mask in setting.hold.masks.values()) == count


@pytest.mark.parametrize("free", [False, True])
def test_a_free_support_goes_to_the_layer_with_the_higher_scores(free):
    setting = Setting([[1.0, 0.1, 0.1, 0.1]], [[3.0, 2.0, 1.5, 0.2]], counts=[2, 2], free=free)
    setting.support.move(1.0)
    assert [int(setting.hold.masks[name].sum()) for name in "01"] == ([1, 3] if free else [2, 2])


def test_most_go_early():
    kept = []
    for part in (0.0, 0.25, 0.5, 1.0):
        setting = Setting(rows(40, 25), counts=[100])
        setting.support.move(part * END)
        kept.append(int(setting.hold.masks["0"].sum()))
    assert (kept[0], kept[-1]) == (1000, 100)
    assert kept[0] - kept[1] > kept[1] - kept[2] > kept[2] - kept[3]


def test_the_largest_stay_as_long_as_nothing_is_known_of_gradients():
    setting = Setting(rows(5, 7), counts=[9])
    before = setting.weight().clone()
    setting.support.move(1.0)
    assert torch.equal(setting.weight(), before.where(top_k_mask(before.abs(), 9), 0))


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_the_formula(seed):
    """Adam's moments by hand; some weights are dead before."""
    setting = Setting(rows(6, 8, seed), counts=[11], rate=0.3)
    setting.support.move(END / 3)
    before = setting.hold.masks["0"].clone()
    assert 11 < int(before.sum()) < 40
    m = v = torch.zeros(6, 8, dtype=torch.float64)
    for turn in range(4):
        gradient = torch.tensor(rows(6, 8, 100 * seed + turn + 1)) * torch.logspace(-3, 1, 8, dtype=torch.float64)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        setting.step(gradient.tolist())
    size = torch.where(before, setting.weight(), 0.3 * m / (v.sqrt() + 1e-12)).abs()
    setting.support.move(ALMOST)  # as few as at the end, and not settled yet
    assert torch.equal(setting.hold.masks["0"], top_k_mask(size * (v + 1e-30) ** USE, 11))


def test_a_dead_weight_with_a_large_gradient_comes_back():
    setting = Setting(LINE, counts=[2])
    setting.support.move(ALMOST)
    assert setting.alive() == [0, 1]
    for _ in range(3):
        setting.step([[1e-4, 1e-4, 1e-4, 1e3]])
        assert setting.alive() == [0, 1]  # held at zero until it is chosen
    setting.support.move(ALMOST)
    assert setting.alive() == [0, 3]
    assert float(setting.weight()[0, 3]) == 0  # it starts from there
    setting.step([[1e-4, 1e-4, 1e-4, 1e3]])
    assert float(setting.weight()[0, 3]) < 0


def test_nothing_moves_once_it_is_settled():
    setting = Setting(LINE, counts=[2])
    setting.support.move(END)
    assert setting.support.settled
    for over in (END, 0.9, 1.0, 0.1):
        setting.step([[1e-4, 1e-4, 1e-4, 1e3]])
        setting.support.move(over)
        assert setting.alive() == [0, 1]


# In a fit


def conv() -> nn.Sequential:
    return nets.convnet(24).eval()


def dense() -> nn.Sequential:
    return build(6, 10, 8, 3)


CASES = {
    "dense": (dense, X, {"0": 0.83, "2": 0.55}),
    "convolutions": (conv, IMAGES, {"conv1": 0.6, "conv2": 0.7, "fc1": 0.9}),
}
each = pytest.mark.parametrize("name", CASES)


def pruned(name: str) -> tuple[nn.Module, Tensor, feta.PruneResult]:
    make, data, shares = CASES[name]
    model = make()
    return model, data, feta.prune(model, data, shares, "threshold", layers=list(shares))


def exact(result, given) -> None:
    """As many in each layer as the given model has, and the masks are the model's zeros."""
    assert {name: int(mask.sum()) for name, mask in result.masks.items()} == {
        name: int(mask.sum()) for name, mask in given.masks.items()
    }
    for name, mask in result.masks.items():
        assert torch.equal(result.model.get_submodule(name).weight != 0, mask)


@each
@pytest.mark.parametrize("steps", [3, 19, 20, 35, 60, 200])
def test_counts_are_exact_in_each_layer(name, steps):
    model, data, start = pruned(name)
    before = copy.deepcopy(model.state_dict()), copy.deepcopy(start.model.state_dict())
    how = feta.Refinement(steps=steps, support="moving", learning_rate=3e-3)
    result = feta.refine(start.model, model, data, how)
    exact(result, start)
    assert (result.report.support, result.report.stopped, result.report.steps) == ("moving", "steps", steps)
    for module, state in zip((model, start.model), before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def test_it_moves_and_comes_nearer_than_the_survivors_alone():
    model, data, start = pruned("dense")
    fixed, moving = (
        feta.refine(start.model, model, data, feta.Refinement(400, support, learning_rate=6e-3))
        for support in ("fixed", "moving")
    )
    assert any(not torch.equal(moving.masks[name], mask) for name, mask in start.masks.items())
    assert all(torch.equal(fixed.masks[name], mask) for name, mask in start.masks.items())
    assert moving.report.loss_before == fixed.report.loss_before
    assert moving.report.loss_after < fixed.report.loss_after < fixed.report.loss_before


@each
def test_without_time_it_is_the_original_cut_to_as_many(name):
    model, data, start = pruned(name)
    how = feta.Refinement(support="moving", learning_rate=1e-3, seconds=1e-9)
    result = feta.refine(start.model, model, data, how)
    exact(result, start)
    assert (result.report.stopped, result.report.steps) == ("seconds", 0)
    for layer, mask in start.masks.items():
        assert torch.equal(result.masks[layer], mask)  # of thresholding, too
        assert torch.equal(result.model.get_submodule(layer).weight, start.model.get_submodule(layer).weight)


@each
@pytest.mark.parametrize("time", [21, 45, 90])
def test_counts_are_exact_where_the_time_ends_on_the_way(name, time, monkeypatch):
    """A clock of its own, that stops before the rate and the support say so."""
    model, data, start = pruned(name)
    ticks = iter(range(1000))
    monkeypatch.setattr(loop.Loop, "_spent", lambda run: float(next(ticks) >= time))
    how = feta.Refinement(steps=1000, support="moving", learning_rate=3e-2, seconds=1)
    result = feta.refine(start.model, model, data, how)
    assert (result.report.stopped, result.report.steps) == ("seconds", time)
    exact(result, start)


def test_what_is_kept_has_the_final_counts():
    """Looks from before the support has settled are those of denser networks: lower losses that do not count."""
    model, data, start = pruned("dense")
    report = feta.refine(start.model, model, data, feta.Refinement(400, "moving", learning_rate=1e-3)).report
    assert report.history[0].loss == pytest.approx(0, abs=1e-9)  # it starts from the original, whole
    settled = [point.loss for point in report.history if point.steps > END * 400 + EVERY]
    assert report.loss_after == min(settled)
    assert report.loss_after > min(point.loss for point in report.history)


def test_frozen_layers_are_cut_to_size():
    model, data, start = pruned("dense")
    model[0].requires_grad_(False)
    start.model[0].requires_grad_(False)
    result = feta.refine(start.model, model, data, feta.Refinement(100, "moving", learning_rate=1e-3))
    exact(result, start)
    assert torch.equal(result.model[0].weight, start.model[0].weight)
    assert not torch.equal(result.model[2].weight, start.model[2].weight)


def test_batch_norms_start_as_the_originals():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    start = feta.prune(model, X, 0.6, "threshold", layers="0", settings=feta.Settings(batchnorm=True))
    assert not torch.equal(start.model[1].running_mean, model[1].running_mean)
    for support, expected in (("fixed", start.model), ("moving", model)):
        result = feta.refine(start.model, model, X, feta.Refinement(60, support, learning_rate=1e-3))
        assert torch.equal(result.model[1].running_mean, expected[1].running_mean)
        assert torch.equal(result.model[1].running_var, expected[1].running_var)


def test_an_original_of_another_kind_is_refused():
    start = feta.prune(dense(), X, 0.6, "threshold").model
    with pytest.raises(ConfigError, match="reference must have the weights of the model"):
        feta.refine(start, build(6, 12, 3), X, feta.Refinement(20, "moving", learning_rate=1e-3))
    report = feta.refine(start, build(6, 12, 3), X, feta.Refinement(20, learning_rate=1e-3)).report
    assert report.loss_after <= report.loss_before
