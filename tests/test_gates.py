"""The gate: what every public function says of arguments that cannot be, and what it leaves as it was."""

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import feta
from feta.errors import ConfigError, DataError, FetaError, FileError, ModelError, printable, shown
from feta.files.exports import export
from feta.files.low_rank import low_rank
from feta.gates import AtWork, check_argument, gated
from feta.theory.bounds import generalisation_bounds
from feta.theory.dimension import intrinsic_dimension
from nets import mlp

ROWS = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3
W, A = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), ROWS
CALLS = {
    "prune": lambda **given: feta.prune(mlp(8, 8, 8, 3), ROWS, 0.5, effort="fast", **given),
    "refine": lambda **given: feta.refine(mlp(8, 8, 3), mlp(8, 8, 3), ROWS, steps=2, **given),
    "retrain": lambda **given: feta.retrain(mlp(8, 8, 3), (ROWS, LABELS), max_epochs=1, **given),
    "shrink": lambda **given: feta.shrink(mlp(8, 8, 8, 3), ROWS, effort="fast", **given),
}


SEEDS = {"None": None, "1.5": 1.5, "x": "x", "2**64": 2**64, "-1": -1, "True": True, "huge": 10**5000}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CALLS)
def test_seeds(name, seed):
    with pytest.raises(ConfigError, match=r"^seed must be a whole number"):
        CALLS[name](seed=SEEDS[seed])


def test_the_largest_seed_works():
    model = mlp(8, 8, 8, 3)
    assert feta.refine(model, model, ROWS, steps=2, seed=2**63 - 1).report.seed == 2**63 - 1
    feta.prune(model, ROWS, 0.5, "corenet", seed=2**63 - 1)


@pytest.mark.parametrize("device", ["meta", torch.device("meta"), "cuda:99", "nonsense", "", "\x1b[31mred"])
@pytest.mark.parametrize("name", CALLS)
def test_devices(name, device):
    with pytest.raises(ConfigError, match=r"^device must be a device torch can use here, got '") as raised:
        CALLS[name](device=device)
    assert str(raised.value).isprintable()


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.lock = nn.Linear(8, 8), nn.Linear(8, 3), threading.Lock()

    def forward(self, x):
        return self.two(self.one(x).relu())


ODD_MODELS = {
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)),
        "got '0.weight' without values; run",
    ),
    "meta": (lambda: mlp(8, 8, 3).to("meta"), "got 'fc1.weight' without values; make it on a device"),
    "uncopyable": (Locked, "copy.deepcopy can copy, got 'lock'"),
}


@pytest.mark.parametrize("kind", ODD_MODELS)
@pytest.mark.parametrize("name", ["prune", "refine", "reference", "retrain", "certify", "sparsify"])
def test_models_without_weights_and_models_that_cannot_be_copied(name, kind):
    make, said = ODD_MODELS[kind]
    good = mlp(8, 8, 3)
    calls = {
        "prune": lambda model: feta.prune(model, ROWS, 0.5),
        "refine": lambda model: feta.refine(model, good, ROWS, steps=2),
        "reference": lambda model: feta.refine(good, model, ROWS, steps=2),
        "retrain": lambda model: feta.retrain(model, (ROWS, LABELS), max_epochs=1),
        "certify": lambda model: feta.certify(model, good, ROWS),
        "sparsify": lambda model: feta.sparsify(model, ROWS[:2]),
    }
    with pytest.raises(ModelError) as raised:
        calls[name](make())
    assert said in str(raised.value)


def test_wrong_types_are_named_with_what_they_may_be():
    for value, hint, said in (
        (3, str | None, "x must be text, got 3"),
        ("y", Literal["a", "b"], "unknown x 'y'. Known: a, b"),
        (4, Literal["a", "b"] | None, "x must be 'a' or 'b', got 4"),
        ([1], Sequence[str] | str | None, "x must be a list of text or text, got [1]"),
        ({"a": "b"}, float | Mapping[str, float], "x must be a number or a mapping to a number, got {'a': 'b'}"),
        (True, int, "x must be a whole number, got True"),
        (nn.ReLU, nn.Module, "x must be a torch.nn.Module, got <class 'torch...ivation.ReLU'>; call it: ReLU(…)"),
        (
            SimpleNamespace(model=nn.ReLU()),
            nn.Module,
            "x must be a torch.nn.Module, got a SimpleNamespace; give its .model",
        ),
        (
            SimpleNamespace(model=nn.ReLU()),
            str | nn.Module,
            "x must be text or a torch.nn.Module, got a SimpleNamespace; give its .model",
        ),
        (
            mlp(8, 3).state_dict(),
            nn.Module,
            "x must be a torch.nn.Module, got an OrderedDict of 2, a state dict; give the model that it is loaded "
            "into: model.load_state_dict(…)",
        ),
        (2**63, int, "x must be a whole number below 2**63, got 9223372036854775808"),
    ):
        with pytest.raises(ConfigError) as raised:
            check_argument("x", value, hint)
        assert str(raised.value) == said


def test_what_is_as_good_passes():
    for value, hint in (
        (np.int64(3), int),
        (np.float32(3), float),
        (3, float),
        ({"fc1", "fc2"}, Sequence[str]),
        (np.array([0.1, 0.2]), Sequence[float]),
        (None, int | None),
        (print, Any),
    ):
        check_argument("x", value, hint)


def test_missing_and_unknown_arguments_are_pythons_own_business():
    with pytest.raises(TypeError, match=r"prune\(\) missing 1 required positional argument: 'model'"):
        feta.prune()
    with pytest.raises(TypeError, match=r"prune\(\) got an unexpected keyword argument 'spasity'"):
        feta.prune(mlp(8, 8, 3), spasity=0.5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'spasity'; did you mean 'sparsity'\?"):
        feta.prune(mlp(8, 8, 3), spasity=0.5)
    with pytest.raises(TypeError, match=r"shrink\(\) .* argument 'sparsity'; did you mean 'share'\?"):
        feta.shrink(mlp(8, 8, 3), torch.ones(4, 8), sparsity=0.5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyz'$"):
        feta.Refinement(xyz=3)


def test_values_are_shown_short_and_without_escapes():
    assert shown("\x1b[31m\n" + "x" * 500) == "'\\x1b[31m\\n" + "x" * 70 + "…'"
    assert shown(torch.zeros(3, 4)) == "a Tensor of shape (3, 4)"
    assert shown(10**5000) == "a number of thousands of digits"
    assert len(shown(list(range(10**6)))) < 90
    assert printable("a\x07b\ud800 é → \n", lines=True) == "a\\x07b\\ud800 é → \n"


def test_paths_that_no_file_can_have():
    for path in ("x" * 300, "a\0b", "", "\udfff" * 2 + "\ud800"):
        for call in (
            feta.load,
            lambda path: feta.load_into(mlp(8, 8, 3), path),
            lambda path: feta.save(mlp(8, 3), path),
        ):
            with pytest.raises(FileError, match=r"^path must be"):
                call(path)


def test_a_checkpoint_is_a_path_too():
    with pytest.raises(FileError, match=r"^checkpoint must be of names of 1 to 255 bytes"):
        CALLS["prune"](checkpoint="a\0b")


def test_batches_that_do_not_fit_the_model_are_the_datas_fault():
    pair = ROWS, torch.zeros(60, 1)  # labels beside them, read as a second batch
    model = mlp(8, 8, 3)
    with pytest.raises(DataError, match=r"data must be batches that the model can run on.*\(1,\)"):
        feta.refine(model, model, pair, steps=2)
    with pytest.raises(DataError, match=r"data must hold samples of one shape, got \(1,\) after \(8,\)"):
        generalisation_bounds(model, model, pair)


@pytest.mark.parametrize("name", ["prune", "shrink"])
def test_a_later_batch_that_does_not_fit(name):
    """What fails in the middle of a run is looked for in the data, before anybody blames the code."""
    call = {"prune": feta.prune, "shrink": feta.shrink}[name]
    with pytest.raises(DataError, match=r"data must be batches that the model can run on.*\(7,\)"):
        call(mlp(8, 8, 8, 3), [ROWS, torch.ones(30, 7)], 0.5, effort="fast")


@pytest.mark.parametrize(
    "example", [torch.tensor(1.0), torch.ones(2, 5), {"nothing": ROWS}, ROWS.to(torch.uint8), {}]
)
def test_examples_that_cannot_be_exported(example, tmp_path):
    with pytest.raises(DataError, match=r"data must be batches that the model can run on"):
        export(mlp(8, 3), example, safetensors=tmp_path / "out")


def test_labels_that_are_no_classes():
    with pytest.raises(DataError, match=r"a class below the number of scores.*\(32, 1\) torch\.float32"):
        feta.retrain(mlp(8, 8, 3), (ROWS, torch.zeros(60, 1)), max_epochs=1)
    with pytest.raises(ConfigError, match=r"labels must be in the order of the data, got a set"):
        feta.certify(mlp(8, 8, 3), mlp(8, 8, 3), ROWS, {1, 2})
    with pytest.raises(ConfigError, match=r"labels must be one per sample, 60, got a Tensor of shape \(\)"):
        generalisation_bounds(mlp(8, 8, 3), mlp(8, 8, 3), ROWS, labels=torch.tensor(1))


def test_data_that_bounds_and_certificates_cannot_use():
    model = mlp(8, 8, 3)
    with pytest.raises(ConfigError, match=r"data must yield tensors of samples.*got \(tensor\(1\.\), None\)"):
        feta.certify(model, model, torch.tensor(1.0))
    with pytest.raises(DataError, match=r"data must be batches that the model can run on"):
        generalisation_bounds(mlp(5, 8, 3), model, ROWS)
    assert generalisation_bounds(model, model, [ROWS[:0], ROWS], max_starts=0).samples == 60
    with pytest.raises(ConfigError, match=r"rows must be floats with samples as rows, got shape \(8, 0\)"):
        intrinsic_dimension(torch.zeros(8, 0))
    for neighbours in ((), (1, 2, 3), ("x", 2), (ROWS, ROWS)):
        with pytest.raises(ConfigError, match=r"neighbours must be a tuple, got"):
            intrinsic_dimension(ROWS, neighbours=neighbours)


@pytest.mark.filterwarnings("ignore:the dense layers stay")
def test_numbers_of_samples_of_numpy():
    assert feta.sparsify(mlp(8, 8, 3), ROWS, np.int64(2))
    with pytest.raises(ConfigError, match=r"sparsify\.batches must be whole numbers >= 1, got"):
        feta.sparsify(mlp(8, 8, 3), ROWS, np.int64(-3))
    with pytest.raises(ConfigError, match=r"batches must be an iterable or a whole number, got a Tensor"):
        feta.sparsify(mlp(8, 8, 3), ROWS, torch.tensor(2))


def test_weights_that_have_no_singular_values():
    model = mlp(8, 8, 3)
    nn.init.constant_(model[-1].weight, float("nan"))
    with pytest.raises(ConfigError, match=r"must name a layer of the model, got '.x1b\[31m'"):
        low_rank(model, "\x1b[31m", rank=2)
    with pytest.raises(ModelError, match=r"layer 'out' must have finite weights, got NaN"):
        low_rank(model, rank=2)


def test_files_of_an_export_have_names_too(tmp_path):
    with pytest.raises(FileError, match=r"^onnx must be of names"):
        export(mlp(8, 3), ROWS, onnx="x" * 300)
    with pytest.raises(ConfigError, match=r"^safetensors must be text or a path, got 3"):
        export(mlp(8, 3), ROWS, safetensors=3)


@pytest.mark.filterwarnings("ignore:the dense layers stay")
def test_the_random_state_is_the_callers(tmp_path):
    model, loader = mlp(8, 8, 8, 3), DataLoader(TensorDataset(ROWS), batch_size=7, shuffle=True)
    path = tmp_path / "net.safetensors"
    feta.save(model, path)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    feta.prune(model, loader, 0.5, effort="fast")
    feta.retrain(model, (ROWS, LABELS), max_epochs=1)
    feta.sparsify(model, ROWS[:2])
    feta.load_into(model, path)
    with pytest.raises(FetaError):
        feta.prune(model, ROWS[:, :5], 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_inference_mode_is_the_callers_and_off_inside():
    """Nothing can be fitted in it, and weights that are made in it can never be trained."""
    model, other = mlp(8, 8, 8, 3), mlp(8, 8, 8, 3, seed=1)
    with torch.inference_mode():
        rows = ROWS.clone()
        results = [
            feta.prune(model, rows, 0.5, effort="fast"),
            feta.refine(other, model, rows, steps=2),
            feta.retrain(model, (rows, LABELS), max_epochs=1),
            feta.shrink(model, rows),
        ]
        feta.certify(model, other, rows)
        made_inside = mlp(8, 8, 8, 3)
        feta.certify(made_inside, made_inside, rows)
        assert torch.is_inference_mode_enabled()
    assert all(parameter.is_inference() for parameter in made_inside.parameters())
    feta.certify(made_inside, made_inside, ROWS)
    assert not any(parameter.is_inference() for result in results for parameter in result.model.parameters())


def test_load_into_changes_nothing_unless_all_fits(tmp_path):
    path = tmp_path / "net.safetensors"
    feta.save(mlp(8, 8, 3, seed=1), path)
    for model, said in (
        (mlp(8, 8, 4), r"got tensors of other shapes: 'out.weight' with \(3, 8\) for \(4, 8\), 'out.bias'"),
        (
            nn.Sequential(mlp(8, 8, 3)),
            "got nothing for '0.fc1.weight', .*; tensors that the model does not have: 'fc1.weight', .* 'out.bias'$",
        ),
        (mlp(8, 8, 3).append(nn.Linear(3, 3)), "got nothing for '3.weight', '3.bias'$"),
        (mlp(8, 8, 3)[:2], "got tensors that the model does not have: 'out.weight', 'out.bias'$"),
    ):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(FileError, match=said):
            feta.load_into(model, path)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_gated_class_is_the_class():
    @gated
    class Kind:
        def __init__(self, seed: int = 0) -> None:
            self.seed = seed

    Kind.__annotations__ = {"seed": int}
    assert Kind(3).seed == 3
    with pytest.raises(ConfigError, match=r"Kind\.seed must be a whole number, got 'x'"):
        Kind("x")


# Threads


def test_one_thread_is_alone_until_it_is_done_and_others_wait_at_the_door():
    door, order = AtWork(), []
    begun, go = threading.Event(), threading.Event()

    def other() -> None:
        begun.set()
        with door:
            order.append("other")

    with door, door.alone() as alone:
        assert alone
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        with door:  # what is called from inside goes on
            thread.join(0.2)
            order.append("first")
    thread.join()
    assert order == ["first", "other"]

    def stay() -> None:
        with door:
            begun.set()
            go.wait()

    begun.clear()
    thread = threading.Thread(target=stay)
    thread.start()
    begun.wait()
    with door, door.alone() as alone:
        assert not alone
    go.set()
    thread.join()
    with door, door.alone() as alone:
        assert alone
