"""Models and data that are out of the ordinary: what is fitted is right, and nothing of the caller's is changed."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import feta
from feta.errors import ConfigError, FileError, ModelError
from feta.tuning.batches import right_answers

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(330, 12, generator=GENERATOR)
Y = (X[:, :3] * X[:, 3:6].sign()).argmax(1)


def layers(*tail: nn.Module) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3), *tail]


class Normalising(nn.Module):
    """Normalises its input, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.body, self.in_place = nn.Sequential(*layers()), in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.sub_(0.5).mul_(2.0) if self.in_place else (x - 0.5) * 2.0)


def pruned(model: nn.Module) -> nn.Module:
    return feta.prune(model.eval(), sparsity=0.7, method="threshold", layers="*").model


@pytest.mark.parametrize("kind", ["tensor", "batches"])
def test_a_model_that_changes_its_input(kind):
    """It is fitted as its twin that does not, and the data stay as they were."""
    data = X if kind == "tensor" else list(X.split(50))
    before = copy.deepcopy(data)
    found = []
    for in_place in (True, False):
        model = Normalising(in_place)
        refined = feta.refine(pruned(model), model.eval(), data, passes=4)
        labelled = (X, Y) if kind == "tensor" else list(zip(X.split(50), Y.split(50), strict=True))
        retrained = feta.retrain(pruned(model), labelled, validation=labelled, max_epochs=2)
        found.append((refined.report.loss_after, retrained.report.accuracy))
    assert found[0] == found[1]
    assert torch.equal(X, before if kind == "tensor" else torch.cat(before))


def test_right_answers():
    scores = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    assert right_answers(scores, torch.tensor([0, 1, 1])).tolist() == [True, True, False]
    assert right_answers(scores, torch.tensor([0.0, 1.0, 1.0])).tolist() == [True, True, False]
    shares = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
    assert right_answers(scores, shares).tolist() == [True, True, False]
    maps = torch.randn(4, 3, 5, 6)  # classes in dimension 1, as cross-entropy has them
    assert bool(right_answers(maps, maps.argmax(1)).all())
    for outputs, labels in (
        (scores, torch.tensor([[0], [1], [1]])),  # would be compared with everything
        (scores, torch.tensor([0.0, 1.0, 0.5])),
        (scores[:, 0], torch.tensor([0, 1, 1])),
        (torch.randn(4, 5, 3), torch.zeros(4, 5, dtype=torch.long)),
        (scores, [0, 1, 1]),
    ):
        with pytest.raises(ConfigError, match=r"classes in dimension 1, got labels .*; or pass a function"):
            right_answers(outputs, labels)


def test_divergence_is_for_scores_of_classes():
    model = nn.Sequential(*layers()[:-1], nn.Linear(16, 1), nn.Flatten(0)).eval()
    for settings in (feta.Refinement(), feta.Refinement(loss="mse")):
        run = lambda how=settings: feta.prune(model, X, 0.5, "threshold", layers="0", refine=how)  # noqa: E731
        if settings.loss == "kl":
            with pytest.raises(ConfigError, match="loss must be 'mse' for a model with one output"):
                run()
        else:
            assert run().report.refinement.loss_after > 0


@pytest.mark.parametrize("refine", [{"passes": 5}, "kl", 3])
def test_refine_is_a_flag_or_settings(refine):
    with pytest.raises(ConfigError, match=r"refine must be True, False or a feta.Refinement, got"):
        feta.prune(nn.Sequential(*layers()), X, refine=refine)


def test_what_torch_loads_is_no_part_of_a_budget():
    """In a process of its own: torch's compiler is there when the clock starts."""
    script = """
import sys, torch, feta
import feta.tuning.refine, feta.tuning.retrain
seen = []
for name in ("refine", "retrain"):
    module = sys.modules[f"feta.tuning.{name}"]
    inner = module.clock
    module.clock = lambda device, inner=inner: seen.append("torch._dynamo" in sys.modules) or inner(device)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x, y = torch.randn(20, 4), torch.zeros(20, dtype=torch.long)
CALL
assert seen and all(seen), seen
"""
    for call in ("feta.retrain(model, (x, y), max_epochs=1)", "feta.refine(model, model, x)"):
        subprocess.run([sys.executable, "-c", script.replace("CALL", call)], check=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_trained_in_float32(dtype):
    start = pruned(nn.Sequential(*layers())).to(dtype)
    wide = feta.retrain(copy.deepcopy(start).float(), (X, Y), max_epochs=2, learning_rate=1e-4)
    narrow = feta.retrain(start, (X, Y), max_epochs=2, learning_rate=1e-4)
    for ours, theirs in zip(narrow.model.parameters(), wide.model.parameters(), strict=True):
        assert torch.equal(ours, theirs.to(dtype))


class Own(nn.Module):
    """Casts its input by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers()).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.bfloat16()).float()


def test_narrow_weights_are_judged_as_they_are_handed_back():
    model = pruned(nn.Sequential(*layers())).bfloat16()

    def score(model: nn.Module) -> float:
        with torch.no_grad():
            return 100 * float((model(X.bfloat16()).argmax(1) == Y).double().mean())

    for validation in (score, (X, Y)):
        result = feta.retrain(model, (X, Y), validation=validation, max_epochs=4, learning_rate=0.05)
        assert result.report.accuracy == pytest.approx(score(result.model))
        assert result.report.accuracy > result.report.start
    assert {p.dtype for p in feta.retrain(Own(), (X, Y), max_epochs=1).model.parameters()} == {torch.bfloat16}


def test_a_model_in_eval_mode_is_trained_all_the_same():
    """In whatever it is wrapped: only layers beside others in training mode are frozen."""
    inner = pruned(nn.Sequential(*layers(), nn.BatchNorm1d(3))).eval()
    for model in (
        inner,
        nn.Sequential(nn.Identity(), inner).train(mode=False),
        nn.Sequential(nn.Identity(), inner),
    ):
        norm = [
            m
            for m in feta.retrain(model, (X, Y), max_epochs=1).model.modules()
            if isinstance(m, nn.BatchNorm1d)
        ]
        assert not torch.equal(norm[0].running_mean, inner[5].running_mean)


def test_a_frozen_batch_norm_stays_frozen():
    model = pruned(nn.Sequential(nn.BatchNorm1d(12), *layers(), nn.BatchNorm1d(3))).train()
    model[0].eval()
    result = feta.retrain(model, (X, Y), max_epochs=1)
    assert torch.equal(result.model[0].running_mean, model[0].running_mean)
    assert not torch.equal(result.model[6].running_mean, model[6].running_mean)
    assert [module.training for module in result.model] == [False, *[True] * 6]


def test_a_last_batch_of_one_row():
    model = pruned(nn.Sequential(*layers(), nn.BatchNorm1d(3)))
    rows = []
    hook = model[0].register_forward_hook(lambda module, args, output: rows.append(len(output)))
    feta.retrain(model, (X[:65], Y[:65]), max_epochs=1)
    hook.remove()
    assert rows == [32, 32]


def test_the_seed_is_that_of_the_dropout_too():
    model = pruned(nn.Sequential(*layers()[:4], nn.Dropout(0.5), *layers()[4:]))
    runs = []
    for seed in (1, 1, 2):
        torch.rand(7)  # the caller's own draws do not matter
        runs.append(feta.retrain(model, (X, Y), max_epochs=1, seed=seed).model[0].weight)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert all(weight.grad is None for weight in runs)


class Counting(nn.Module):
    """Has a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.note = nn.Sequential(*layers()), {"seen": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def get_extra_state(self) -> dict[str, int]:
        return self.note

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.note = state


def test_states_that_are_no_tensors(tmp_path):
    model = Counting().eval()
    small = pruned(model)
    assert feta.retrain(small, (X, Y), validation=(X, Y), max_epochs=1).model.note == {"seen": 0}
    assert feta.refine(small, model, X).model.note == {"seen": 0}
    with pytest.raises(FileError, match="state must hold tensors alone, got a dict in '_extra_state'"):
        feta.save(small, tmp_path / "net.safetensors")


def test_a_weight_that_is_computed_is_not_held():
    model = nn.Sequential(*layers()).eval()
    parametrizations.spectral_norm(model[4])
    small = feta.prune(model, sparsity=0.7, method="threshold", layers="0").model
    assert list(feta.masks_of(small)) == ["0"]
    feta.retrain(small, (X, Y), max_epochs=1)
    with pytest.raises(ModelError, match="must hold its weight as a plain parameter"):
        feta.masks_of(small, ["4"])


def test_a_score_must_be_a_number():
    model = pruned(nn.Sequential(*layers()))
    with pytest.raises(ConfigError, match="validation must give a finite number, got nan"):
        feta.retrain(model, (X, Y), validation=lambda model: float("nan"))


def test_values_that_are_not_finite_are_named():
    model = nn.Sequential(*layers()).eval()
    bad = X.clone()
    bad[0, 0] = torch.nan  # the first row is held out
    with pytest.raises(ModelError, match="got nan; look for it in the data and the models"):
        feta.refine(pruned(model), model, bad)
    with pytest.raises(ModelError, match="or look for values in the data that are not finite"):
        feta.retrain(pruned(model), (bad, Y))


def test_a_loader_is_read_once_per_pass():
    class Counted(list):
        reads = 0

        def __iter__(self):
            self.reads += 1
            return super().__iter__()

    model, data = nn.Sequential(*layers()).eval(), Counted(X.split(30))
    small = pruned(model)
    often = feta.Refinement(passes=3, check_every=0.1, patience=100)
    report = feta.refine(small, model, data, often).report
    assert len(report.history) > 25
    assert data.reads <= 3 + 5  # once for each pass; before that to look, to count, for the held-out rows
    whole = feta.refine(small, model, X, often).report
    assert report.loss_before == pytest.approx(whole.loss_before)


def test_dicts_whose_first_entry_is_a_number():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*layers())

        def forward(self, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.body(scale * x)

    batches = [{"scale": torch.tensor(2.0), "x": part} for part in X.split(50)]
    model = Scaled().eval()
    result = feta.prune(model, batches, 0.5, "wanda", refine=True, settings=feta.Settings(n_samples=120))
    assert result.report.refinement.loss_after <= result.report.refinement.loss_before
    with pytest.raises(ConfigError, match="must yield x as a tensor or a dict of tensors, got a tuple"):
        feta.retrain(result.model, [((X[:5], X[:5]), Y[:5])])


def test_recurrent_layers_run_backwards_in_eval_mode():
    """cuDNN runs them backwards in training mode alone; without dropout that is the same function."""
    seen = set()

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gru = nn.GRU(4, 8, num_layers=2, dropout=0.5, batch_first=True)
            self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                seen.add((self.gru.training, self.gru.dropout))
            return self.out(torch.relu(self.hidden(self.gru(x.unflatten(1, (3, 4)))[0][:, -1])))

    model = Tagger().eval()
    refined = feta.prune(model, X, 0.5, refine=True).model
    assert (refined.gru.training, refined.gru.dropout) == (False, 0.5)
    assert (model.gru.training, model.gru.dropout) == (False, 0.5)
    assert seen == {(True, 0.0)}
