"""Weights with a second use or in several places, experts that get their rows from a router, and what is refused.

References are worked out by hand in float64, from plain runs of the original network.
"""

import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import feta
import nets
from feta import ConfigError, DataError, LayerProblem, LayerSolution, ModelError, Needs, Settings, Sparsity
from feta.calibration.inputs import places_of
from feta.sparsity import top_k_mask

X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FITTED = X[places_of(len(X)) % 10 != 0]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def least_squares(W: Tensor, A: Tensor, T: Tensor, keep: int) -> Tensor:
    """The largest weights stay, and are fitted to A U = T, output by output."""
    mask, U = top_k_mask(W.abs(), keep), torch.zeros_like(W)
    for j in range(W.shape[1]):
        rows = mask[:, j].nonzero()[:, 0]
        U[rows, j] = torch.linalg.lstsq(A[:, rows], T[:, j : j + 1]).solution[:, 0]
    return U.where(~mask | (U != 0), W)  # an input that is never on leaves its weights as they are


@dataclass(frozen=True)
class Fitting:
    """The same as a method, which keeps what it was shown."""

    name: ClassVar[str] = "fitting"
    needs: ClassVar[Needs] = Needs()
    seen: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        A, B = (torch.cat(parts) for parts in zip(*problem.rows.chunks(), strict=True))
        self.seen[problem.name] = A, B
        T = B if problem.bias is None else B - problem.bias
        U = least_squares(problem.W, A, T, target.count(problem.W.numel()))
        return LayerSolution(U, problem.bias)


def reasons(result: feta.PruneResult) -> dict[str, str]:
    return {entry.name: entry.reason for entry in result.report.skipped}


# A second use of a weight


class Autoencoder(nn.Module):
    """The weight of the encoder is the decoder's too, in one way or another."""

    def __init__(self, decode) -> None:
        super().__init__()
        self.e, self.m, self.decode = nn.Linear(6, 4), nn.Linear(4, 4), decode

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.relu(self.m(torch.relu(self.e(x)))), self.e.weight)


SECOND = {
    "t": lambda h, w: F.linear(h, w.t()),
    "T": lambda h, w: F.linear(h, w.T),
    "matmul": lambda h, w: h @ w,
    "einsum": lambda h, w: torch.einsum("bi,ij->bj", h, w),
    "detach": lambda h, w: h @ w.detach(),
    "norm": lambda h, w: h * w.norm(),
}


@pytest.mark.parametrize("name", SECOND)
def test_a_weight_that_another_function_reads_is_spared(name):
    model = Autoencoder(SECOND[name]).double()
    result = feta.prune(model, X, 0.5, "feta")
    assert reasons(result) == {"e": f"its weight is read by {name} too"}
    assert torch.equal(result.model.e.weight, model.e.weight)
    assert list(result.masks) == ["m"]


def test_it_can_be_pruned_by_name_and_the_report_says_so():
    report = feta.prune(Autoencoder(SECOND["t"]).double(), X, 0.5, "threshold", layers="e").report
    assert "its weight is read by t too" in report.layers[0].message
    plain = feta.prune(Autoencoder(lambda h, w: h).double(), X, 0.5, "threshold", layers="e").report
    assert plain.layers[0].message == ""


def test_a_cast_that_changes_nothing_is_no_second_use():
    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.to(x.dtype).contiguous(), self.bias)

    result = feta.prune(nn.Sequential(Cast(6, 8), nn.ReLU(), nn.Linear(8, 2)).double(), X, 0.5, "feta")
    assert list(result.masks) == ["0"]


def test_compensation_leaves_such_a_weight_alone():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.fc, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.relu(self.fc(self.words(ids))))

    model = Tied()
    result = feta.prune(model, torch.randint(9, (80, 3)), 0.5, "feta", compensate=True)
    assert torch.equal(result.model.words.weight, model.words.weight)
    assert result.report.compensated == {}


# One weight in several places


@torch.no_grad()
@pytest.mark.parametrize("own_bias", [True, False])
def test_one_weight_in_two_modules_against_a_fit_by_hand(own_bias):
    """What the weight alone gives is fitted, on the inputs of both; their biases stay as they are."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    model[2].weight = model[0].weight
    if not own_bias:
        model[2].bias = model[0].bias
    method = Fitting()
    result = feta.prune(model, X, 0.5, method, layers="0")
    A = torch.cat([FITTED, model[:2](FITTED)])
    W = model[0].weight.t()
    torch.testing.assert_close(method.seen["0"][0], A)
    torch.testing.assert_close(result.model[0].weight.t(), least_squares(W, A, A @ W, 18))
    assert result.model[0].weight is result.model[2].weight
    assert all(torch.equal(result.model[i].bias, model[i].bias) for i in (0, 2))


@torch.no_grad()
def test_biases_of_their_own_cost_nothing():
    """Far apart, they would be taken for a part of what the weight must explain."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    model[2].weight = model[0].weight
    model[0].bias.fill_(4.0)
    model[2].bias.fill_(-4.0)
    for settings in (Settings(), Settings(activation="relu")):
        result = feta.prune(model, X, 0.3, "feta", layers="0", settings=settings)
        (layer,) = result.report.layers
        assert layer.status == "ok"
        A = torch.cat([X, model[:2](X)])
        wrong = A @ (result.model[0].weight - model[0].weight).t()
        assert wrong.norm() / (A @ model[0].weight.t()).norm() < 0.3
        assert all(torch.equal(result.model[i].bias, model[i].bias) for i in (0, 2))


# Experts


class Experts(nn.Module):
    """Each sample goes to the expert that a router picks for it; an expert without samples may not be called."""

    def __init__(self, skips: bool, count: int = 3) -> None:
        super().__init__()
        self.stem, self.router, self.skips = nn.Linear(6, 8), nn.Linear(8, count), skips
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 8)) for _ in range(count))
        self.out = nn.Linear(8, 2)
        with torch.no_grad():  # each expert gets its share
            mean = torch.relu(self.stem(X.float())).mean(0)
            self.router.bias.copy_(-(nn.init.normal_(self.router.weight) @ mean))

    def picks(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.stem(x))
        return h, self.router(h).argmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        h, picked = self.picks(x)
        y = torch.zeros_like(h)
        for index, expert in enumerate(self.experts):
            rows = (picked == index).nonzero()[:, 0]
            if len(rows) or not self.skips:
                y.index_add_(0, rows, expert(h[rows]))
        return self.out(torch.relu(h + y))


CASES = [{}, {"batch_size": 2}, {"batch_size": 2, "cache": "replay"}, {"cache": "disk"}, {"mode": "parallel"}]


@torch.no_grad()
@pytest.mark.parametrize("how", CASES, ids=str)
@pytest.mark.parametrize("skips", [True, False])
def test_experts_are_fitted_to_the_rows_they_have_in_the_original(skips, how):
    model, method = Experts(skips).double().eval(), Fitting()
    result = feta.prune(model, X, 0.4, method, settings=Settings(**how))
    pruned: Any = result.model
    assert not torch.equal(model.picks(X)[1], pruned.picks(X)[1])  # the pruned network routes otherwise
    h, picked = model.picks(FITTED)
    messages = {layer.name: layer.message for layer in result.report.layers}
    found = [index for index in range(3) if f"experts.{index}.0" in messages]
    assert found == [0, 1, 2] if "batch_size" not in how else found  # the first two samples go to two of them at most
    for index in found:
        A = h[picked == index]
        expert = model.experts[index]
        torch.testing.assert_close(method.seen[f"experts.{index}.0"], (A, torch.relu(expert[0](A))))
        middle = expert[:2](A)
        torch.testing.assert_close(method.seen[f"experts.{index}.2"], (middle, expert[2](middle)))
        for layer in (0, 2):
            said = "fitted to inputs and outputs of the original" in messages[f"experts.{index}.{layer}"]
            assert said == ("mode" not in how)
    assert "original" not in messages["router"]


@pytest.mark.parametrize("method", ["feta", "alps", "threshold"])
@pytest.mark.parametrize("compensate", [True, False])
def test_an_expert_that_no_sample_reaches_is_thresholded_and_said_to_be(method, compensate):
    model = Experts(skips=False).double().eval()
    with torch.no_grad():
        model.router.bias[1] = -1e6
    layers = ["stem", "experts.*.0"] if compensate else None
    result = feta.prune(model, X, 0.5, method, layers=layers, compensate=compensate)
    (lost,) = (layer for layer in result.report.layers if layer.name == "experts.1.0")
    assert (lost.status, lost.relative_error, lost.nonzeros) == ("few-rows", None, 36)
    assert lost.message.startswith("no sample reaches this layer")
    kept = top_k_mask(model.experts[1][0].weight.abs(), 36)
    assert torch.equal(result.model.experts[1][0].weight, model.experts[1][0].weight.where(kept, 0))
    if compensate:
        assert torch.equal(result.model.experts[1][2].weight, model.experts[1][2].weight)
        assert "experts.0.2" in result.report.compensated


def test_an_allocation_that_measures_names_such_an_expert():
    model = Experts(skips=False).double().eval()
    with torch.no_grad():
        model.router.bias[1] = -1e6
    with pytest.raises(
        DataError, match=r"layer 'experts.1.0' must be reached by some sample, got none; leave it out"
    ):
        feta.prune(model, X, 0.5, "feta", allocation="sensitivity")


def test_a_layer_that_only_one_of_the_networks_calls_is_fitted_as_the_original_does():
    """No index tells that this layer may have other rows: it is found out as they come."""

    class Doubts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            while h.norm() < 100:
                h = h * 2
            return self.out(torch.relu(self.b(h[: int(h.norm()) % 7 + 2])))

    method = Fitting()
    result = feta.prune(Doubts().double(), X, 0.5, method, layers=["a", "b"])
    assert [layer.name for layer in result.report.layers] == ["a", "b"]
    assert "fitted to inputs and outputs of the original" in result.report.layers[1].message


# Data of models with several inputs


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(torch.relu(self.a(x) + self.b(y)))


BOTH = X, X.flip(0)
TWO = {
    "pairs": [*zip(*(part.split(70) for part in BOTH), strict=True)],
    "an iterator of pairs": None,
    "pairs and labels": [
        (x, y, torch.zeros(len(x))) for x, y in zip(*(part.split(70) for part in BOTH), strict=True)
    ],
    "dicts": [{"x": x, "y": y} for x, y in zip(*(part.split(70) for part in BOTH), strict=True)],
    "one pair": BOTH,
    "one dict": {"x": X, "y": X.flip(0), "labels": torch.zeros(300)},
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"refine": feta.Refinement(steps=50)},
        {"allocation": "sensitivity"},
        {"settings": Settings(cache="replay")},
    ],
)
def test_both_inputs_reach_a_model_that_needs_two(name, more):
    method, data = Fitting(), TWO[name] if TWO[name] is not None else iter(TWO["pairs"])
    feta.prune(Sum().double(), data, 0.5, method, **more)
    fitted = BOTH[1][places_of(300) % 10 != 0]
    torch.testing.assert_close(method.seen["b"][0], fitted)


def test_labels_that_forward_can_do_without_are_dropped():
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets.mlp(6, 8, 2)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            assert labels is None
            return self.net(x)

    for data in ([(X, torch.zeros(300))], {"x": X, "labels": torch.zeros(300)}):
        assert list(feta.prune(Trains().double(), data, 0.5, "feta").masks) == ["net.fc1"]


def test_a_dict_is_cut_and_drawn_from_as_a_tensor_is():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets.mlp(6, 8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    how, seen = Settings(n_samples=40, batch_size=7), [Fitting(), Fitting()]
    for data, method in zip((X, {"x": X}), seen, strict=True):
        feta.prune(Named().double(), data, 0.5, method, settings=how, seed=3)
    assert torch.equal(seen[0].seen["net.fc1"][0], seen[1].seen["net.fc1"][0])


# What is refused


def with_lock() -> nn.Module:
    model = nets.mlp(6, 8, 2).double()
    model.fc1.lock = threading.Lock()
    return model


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc, self.out = nn.Embedding(9, 6), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.relu(self.fc(self.words(ids))))


REFUSED = {
    "width": (
        nets.mlp(6, 8, 2),
        X[:, :5],
        DataError,
        r"samples of \(5,\) torch.float32, on which layer 'fc1' fails: RuntimeError: mat1",
    ),
    "bytes": (
        nets.mlp(6, 8, 2),
        X.byte(),
        DataError,
        r"torch.uint8, on which layer 'fc1' fails: .*; it takes floats: images / 255, or data.float\(\)$",
    ),
    "one input of two": (
        Sum(),
        X,
        DataError,
        "on which the model fails: .*missing 1 required positional argument: 'y'",
    ),
    "another key": (
        Sum(),
        {"x": X, "z": X},
        DataError,
        r"samples of x \(6,\) .* z \(6,\) .*, on which the model fails",
    ),
    "one sample less": (
        Sum(),
        {"x": X, "y": X[:-1]},
        DataError,
        r"samples of x \(6,\) .*, y \(\d+, 6\) \(all of it, as it has no row for each sample\) .*, on which",
    ),
    "words it does not know": (
        Text(),
        torch.full((8, 3), 9),
        DataError,
        "on which layer 'words' fails: IndexError: index out of range",
    ),
    "(X, y)": (
        nets.mlp(6, 8, 2),
        (X, torch.zeros(300)),
        DataError,
        "floats of 2 dimensions, then floats of 1 .*pass the inputs alone",
    ),
    "a dict without tensors": (
        Sum(),
        {"train": [X]},
        ConfigError,
        r"data must hold tensors .*, got a dict of \['train'\]",
    ),
    "a lock": (
        with_lock(),
        X,
        ModelError,
        "copy.deepcopy can copy, got 'fc1.lock': TypeError: cannot pickle .*take locks, files",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_said_in_words(name):
    model, data, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        feta.prune(model, data, 0.5, "feta")


def test_settings_of_another_kind():
    with pytest.raises(ConfigError, match=r"settings must be a feta.Settings, got 3; write settings=feta.Settings"):
        feta.prune(nets.mlp(6, 8, 2), X, 0.5, settings=3)


def test_an_empty_first_batch_does_no_harm():
    for cache in ("auto", "replay"):
        how = Settings(cache=cache, batch_size=50)
        found = feta.prune(nets.mlp(6, 8, 2).double(), [X[:0], X], 0.5, "feta", settings=how)
        assert list(found.masks) == ["fc1"]
