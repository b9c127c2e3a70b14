"""Models and data that are out of the ordinary: what is fitted is right, and nothing of the caller's is changed."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from tuned import Around, build, same

import feta
from feta.calibration.inputs import places_of
from feta.errors import ConfigError, FileError, ModelError
from feta.tuning.batches import right_answers

X = torch.randn(330, 12, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] * X[:, 3:6].sign()).argmax(1)
SHORT = feta.Refinement(steps=40, learning_rate=1e-3)


def network(*tail: nn.Module) -> nn.Sequential:
    return nn.Sequential(*build(12, 24, 16, 3), *tail).eval()


def pruned(model: nn.Module) -> nn.Module:
    return feta.prune(model.eval(), sparsity=0.7, method="threshold", layers="*").model


@pytest.mark.parametrize("kind", ["tensor", "batches"])
def test_a_model_that_changes_its_input(kind):
    """It is fitted as its twin that does not, and the data stay as they were."""
    before, labelled = X.clone(), list(zip(X.split(50), Y.split(50), strict=True))
    inputs, labelled = (X, (X, Y)) if kind == "tensor" else (list(X.split(50)), labelled)
    found = []
    for change in (lambda body, x: body(x.sub_(0.5).mul_(2.0)), lambda body, x: body((x - 0.5) * 2.0)):
        model = Around(network(), change).eval()
        refined = feta.refine(pruned(model), model, inputs, SHORT)
        retrained = feta.retrain(pruned(model), labelled, validation=labelled, max_epochs=2)
        found.append((refined.report.loss_after, retrained.report.accuracy))
    assert found[0] == found[1]
    assert torch.equal(X, before)


SCORES = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])


@pytest.mark.parametrize(
    "labels", [[0, 1, 1], [0.0, 1.0, 1.0], [[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]], ids=["classes", "floats", "shares"]
)
def test_right_answers(labels):
    assert right_answers(SCORES, torch.tensor(labels)).tolist() == [True, True, False]
    maps = torch.randn(4, 3, 5, 6)  # classes in dimension 1, as cross-entropy has them
    assert bool(right_answers(maps, maps.argmax(1)).all())


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [
        (SCORES, torch.tensor([[0], [1], [1]])),  # would be compared with everything
        (SCORES, torch.tensor([0.0, 1.0, 0.5])),
        (SCORES[:, 0], torch.tensor([0, 1, 1])),
        (torch.randn(4, 5, 3), torch.zeros(4, 5, dtype=torch.long)),
        (SCORES, [0, 1, 1]),
    ],
)
def test_answers_that_cannot_be_judged(outputs, labels):
    with pytest.raises(ConfigError, match=r"classes in dimension 1, got labels .*; or pass a function"):
        right_answers(outputs, labels)


@pytest.mark.parametrize("refine", [{"steps": 5}, "kl", 3])
def test_refine_is_a_flag_or_settings(refine):
    with pytest.raises(ConfigError, match=r"refine must be True, False or a feta.Refinement, got"):
        feta.prune(network(), X, refine=refine)


SCRIPT = """
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


@pytest.mark.parametrize(
    "call", ["feta.retrain(model, (x, y), max_epochs=1)", "feta.refine(model, model, x, steps=3)"]
)
def test_what_torch_loads_is_no_part_of_a_budget(call):
    """In a process of its own: torch's compiler is there when the clock starts."""
    subprocess.run([sys.executable, "-c", SCRIPT.replace("CALL", call)], check=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_trained_in_float32(dtype):
    start = pruned(network()).to(dtype)
    wide, narrow = (
        feta.retrain(model, (X, Y), max_epochs=2, learning_rate=1e-4).model
        for model in (copy.deepcopy(start).float(), start)
    )
    assert same(narrow, wide.to(dtype))


def test_narrow_weights_are_judged_as_they_are_handed_back():
    model = pruned(network()).bfloat16()

    def score(model: nn.Module) -> float:
        with torch.no_grad():
            return 100 * float((model(X.bfloat16()).argmax(1) == Y).double().mean())

    for validation in (score, (X, Y)):
        result = feta.retrain(model, (X, Y), validation=validation, max_epochs=4, learning_rate=0.05)
        assert result.report.accuracy == pytest.approx(score(result.model))
        assert result.report.accuracy > result.report.start
    casting = Around(network().bfloat16(), lambda body, x: body(x.bfloat16()).float())
    trained = feta.retrain(casting, (X, Y), max_epochs=1).model
    assert {p.dtype for p in trained.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("training", [False, True])
def test_a_model_in_eval_mode_is_trained_all_the_same(training):
    """In whatever it is wrapped: only layers beside others in training mode are frozen."""
    inner = pruned(network(nn.BatchNorm1d(3)))
    model = nn.Sequential(nn.Identity(), inner)
    model.training = training
    trained = feta.retrain(model, (X, Y), max_epochs=1).model[1]
    assert not torch.equal(trained[5].running_mean, inner[5].running_mean)


def test_a_frozen_batch_norm_stays_frozen():
    model = pruned(nn.Sequential(nn.BatchNorm1d(12), *network(nn.BatchNorm1d(3)))).train()
    model[0].eval()
    result = feta.retrain(model, (X, Y), max_epochs=1)
    assert torch.equal(result.model[0].running_mean, model[0].running_mean)
    assert not torch.equal(result.model[6].running_mean, model[6].running_mean)
    assert [module.training for module in result.model] == [False, *[True] * 6]


def test_a_last_batch_of_one_row():
    model, rows = pruned(network(nn.BatchNorm1d(3))), []
    model[0].register_forward_hook(lambda module, args, output: rows.append(len(output)))
    feta.retrain(model, (X[:65], Y[:65]), max_epochs=1)
    assert rows == [32, 32]


both = pytest.mark.parametrize(
    "tune",
    [
        lambda model, **options: feta.refine(model, network(), X, SHORT, **options),
        lambda model, **options: feta.retrain(model, (X, Y), max_epochs=1, **options),
    ],
    ids=["refine", "retrain"],
)


@both
def test_frozen_parameters_stay(tune):
    model = pruned(network())
    model[0].requires_grad_(False)
    result = tune(model)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[2].weight, model[2].weight)
    with pytest.raises(ModelError, match="must have parameters with requires_grad, got none"):
        tune(model.requires_grad_(False))


@both
def test_the_same_seed_gives_the_same_weights(tune):
    model = pruned(nn.Sequential(*network()[:4], nn.Dropout(0.5), network()[4]))
    runs = []
    for seed in (1, 1, 2):
        torch.rand(7)  # the caller's own draws do not matter, also for dropout
        runs.append(tune(model, seed=seed).model[0].weight)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert all(weight.grad is None for weight in runs)


class Counting(Around):
    """Has a state that is no tensor."""

    note = None

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 0}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.note = state


def test_states_that_are_no_tensors(tmp_path):
    model = Counting(network(), nn.Module.__call__).eval()
    small = pruned(model)
    assert feta.retrain(small, (X, Y), validation=(X, Y), max_epochs=1).model.note == {"seen": 0}
    assert same(
        feta.refine(small, model, X, SHORT).model.inner, feta.refine(small.inner, model.inner, X, SHORT).model
    )
    with pytest.raises(FileError, match="state must hold tensors alone, got a dict in '_extra_state'"):
        feta.save(small, tmp_path / "net.safetensors")


def test_a_weight_that_is_computed_is_not_held():
    model = network()
    parametrizations.spectral_norm(model[4])
    small = feta.prune(model, sparsity=0.7, method="threshold", layers="0").model
    assert list(feta.masks_of(small)) == ["0"]
    feta.retrain(small, (X, Y), max_epochs=1)
    with pytest.raises(ModelError, match="must hold its weight as a plain parameter"):
        feta.masks_of(small, ["4"])


def test_values_that_are_not_finite_are_named():
    bad = X.clone()
    bad[places_of(len(X)) == 0, 0] = torch.nan  # a row that is held out
    with pytest.raises(ModelError, match="got nan; look for it in the data and the models"):
        feta.refine(pruned(network()), network(), bad, SHORT)
    with pytest.raises(ModelError, match="or look for values in the data that are not finite"):
        feta.retrain(pruned(network()), (bad, Y))


class Counted(list):
    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


def test_a_loader_of_one_shape_is_read_to_look_and_once_to_fit():
    few, many = Counted(X.split(30)), Counted(X.split(30))
    for data, steps in ((few, 5), (many, 80)):
        report = feta.refine(pruned(network()), network(), data, SHORT, steps=steps).report
        assert report.steps == steps
        whole = feta.refine(pruned(network()), network(), X, SHORT, steps=steps).report
        assert [point.loss for point in report.history] == [point.loss for point in whole.history]
    assert few.reads == many.reads <= 10


def test_a_loader_of_several_shapes_is_read_once_per_pass():
    """297 rows are fitted in batches of those alike: eleven steps, three of 90 rows at the most, are a pass."""
    batches = [torch.cat([x, torch.zeros(len(x), i % 2)], 1) for i, x in enumerate(X.split(30))]
    call = lambda body, x: body(x[:, :12])  # noqa: E731
    reads = []
    for steps in (11, 55):
        data = Counted(batches)
        feta.refine(Around(pruned(network()), call), Around(network(), call), data, SHORT, steps=steps)
        reads.append(data.reads)
    assert reads[1] - reads[0] == 4
    assert reads[0] <= 1 + 9  # before that to look twice, to count, for the held-out rows


def test_dicts_whose_first_entry_is_a_number():
    batches = [{"scale": torch.tensor(2.0), "x": part} for part in X.split(50)]
    model = Around(network(), lambda body, scale, x: body(scale * x)).eval()
    result = feta.prune(model, batches, 0.5, "wanda", refine=SHORT, settings=feta.Settings(n_samples=120))
    assert result.report.refinement.loss_after <= result.report.refinement.loss_before
    with pytest.raises(ConfigError, match=r"must yield .* x a tensor or a dict of tensors, .* got a tuple as x"):
        feta.retrain(result.model, [((X[:5], X[:5]), Y[:5])])


def test_recurrent_layers_run_backwards_in_eval_mode():
    """cuDNN runs them backwards in training mode alone; without dropout that is the same function."""
    seen = set()

    def call(parts: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.add((parts["gru"].training, parts["gru"].dropout))
        return parts["body"](parts["gru"](x.unflatten(1, (3, 4)))[0][:, -1])

    gru = nn.GRU(4, 8, num_layers=2, dropout=0.5, batch_first=True)
    model = Around(nn.ModuleDict({"gru": gru, "body": build(8, 16, 3)}), call).eval()
    refined = feta.prune(model, X, 0.5, "feta", refine=SHORT).model
    for found in (gru, refined.inner["gru"]):
        assert (found.training, found.dropout) == (False, 0.5)
    assert seen == {(True, 0.0)}
