"""Retraining: zeros held, the best weights kept, stopped for the reason it gives; alone and in two processes."""

import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tuned import Around, build, holds, same

import feta
from feta.errors import ConfigError, DataError, ModelError


def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=generator)
    noise = 0.5 * torch.randn(n, 3, generator=generator)
    return x, (x[:, :3] * x[:, 3:6].sign() + noise).argmax(1)


SIZES, TRAIN, HELD_OUT = (12, 16, 10, 3), draw(320, 1), draw(150, 2)


@pytest.fixture(scope="module")
def pruned():
    dense = feta.retrain(build(*SIZES), TRAIN, max_epochs=15, learning_rate=0.05).model
    return feta.prune(dense, sparsity=0.7, method="threshold")


def percent(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor] = HELD_OUT) -> float:
    with torch.no_grad():
        return 100 * float((model(data[0]).argmax(1) == data[1]).double().mean())


def test_it_is_sgd_on_the_surviving_weights(pruned):
    """A reference in float64 that projects after each step."""
    model = copy.deepcopy(pruned.model).double()
    weights = [(model.get_submodule(name).weight, mask) for name, mask in pruned.masks.items()]
    buffers = [torch.zeros_like(p) for p in model.parameters()]
    x, y = TRAIN[0].double(), TRAIN[1]
    for epoch in range(2):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3 * 1_000_003 + epoch))
        for rows in order.split(50):
            gradients = torch.autograd.grad(F.cross_entropy(model(x[rows]), y[rows]), list(model.parameters()))
            with torch.no_grad():
                for p, g, b in zip(model.parameters(), gradients, buffers, strict=True):
                    b.mul_(0.8).add_(g + 0.01 * p)
                    p -= 0.02 * 0.5**epoch * b
                for weight, mask in weights:
                    weight.mul_(mask)
    settings = feta.Retraining(0.02, momentum=0.8, weight_decay=0.01, decay=0.5, max_epochs=2, batch_size=50)
    result = feta.retrain(copy.deepcopy(pruned.model).double(), TRAIN, settings, seed=3)
    for found, expected in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_what_comes_back(pruned):
    before, points = copy.deepcopy(pruned.model), []
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    settings = feta.Retraining(max_epochs=3, learning_rate=0.05)
    result = feta.retrain(pruned.model, TRAIN, settings, validation=HELD_OUT, callback=points.append)
    report = result.report
    assert same(pruned.model, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert holds(result.model, pruned.masks)
    assert not any(module.training for module in result.model.modules())
    assert (report.recovered, report.goal, report.stopped, report.epochs) == (None, None, "epochs", 3.0)
    assert tuple(points) == report.history
    looks = (0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30)
    assert [epoch for _, epoch, _ in report.history] == pytest.approx([tenths / 10 for tenths in looks])
    assert 0 < report.evaluation_seconds <= report.history[-1].seconds <= report.seconds
    scores = [accuracy for *_, accuracy in report.history]
    assert (report.start, report.accuracy) == (percent(pruned.model), max(scores))
    assert percent(result.model) == report.accuracy > report.start
    assert report.to_dict()["history"][0] == list(report.history[0])
    assert repr(result).startswith(f"retrained: {report.start:.2f} → {report.accuracy:.2f}, 3.00 epochs")


def test_it_stops_at_the_first_look_that_is_good_enough(pruned):
    options = {"validation": HELD_OUT, "learning_rate": 0.05, "max_epochs": 4}
    whole = feta.retrain(pruned.model, TRAIN, **options).report
    settings = feta.Retraining(goal=whole.accuracy, tolerance=(whole.accuracy - whole.start) / 2)
    enough = settings.goal - settings.tolerance
    first = next(i for i, point in enumerate(whole.history) if point.accuracy >= enough)
    assert 0 < first < len(whole.history) - 1
    result = feta.retrain(pruned.model, TRAIN, settings, **options)
    report = result.report
    assert (report.stopped, report.recovered, len(report.history)) == ("recovered", True, first + 1)
    assert report.epochs == whole.history[first].epoch
    assert percent(result.model) == report.accuracy == whole.history[first].accuracy


def test_a_network_that_lost_nothing_needs_no_epoch(pruned):
    result = feta.retrain(pruned.model, TRAIN, validation=HELD_OUT, goal=percent(pruned.model) + 0.1)
    assert (result.report.stopped, result.report.epochs, len(result.report.history)) == ("recovered", 0.0, 1)
    assert same(result.model, pruned.model)


def test_it_stops_when_it_gets_no_better(pruned):
    scores = iter([50.0, 60.0, 60.0, 59.0, 61.0, 60.0, 61.0, 60.0, 60.5] + [0.0] * 99)
    settings = feta.Retraining(patience=1, goal=90)
    report = feta.retrain(pruned.model, TRAIN, settings, validation=lambda model: next(scores)).report
    assert (report.stopped, report.recovered, report.accuracy) == ("saturated", False, 61.0)
    assert report.epochs == 2.0  # the best look was at one epoch


def test_time_is_up(pruned):
    for data in (TRAIN, DataLoader(TensorDataset(*TRAIN), batch_size=64)):
        report = feta.retrain(pruned.model, data, validation=HELD_OUT, seconds=1e-9).report
        assert (report.stopped, report.epochs) == ("seconds", 0.0)


def batches(size: int = 32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(TRAIN[0].split(size), TRAIN[1].split(size), strict=True))


class Stream:
    """As a loader of an iterable data set: without a length."""

    def __iter__(self):
        return iter(batches())


def test_every_form_of_data_gives_the_same_weights(pruned):
    expected = feta.retrain(pruned.model, batches(), max_epochs=2).model
    loader = DataLoader(TensorDataset(*TRAIN), batch_size=32)
    for data in (Stream(), loader):
        assert same(feta.retrain(pruned.model, data, max_epochs=2).model, expected)
    report = feta.retrain(pruned.model, loader, max_epochs=1).report  # without validation
    assert (report.start, report.accuracy, report.recovered) == (None, None, None)
    assert repr(report).startswith("retrained: 1.00 epochs")
    dicts = [{"input": x, "labels": y} for x, y in batches()]
    model = Around(pruned.model, lambda inner, input: {"logits": inner(input)})
    # Steps of a model with code of its own are not fused, and so may differ in the last bit.
    alike = Around(pruned.model, lambda inner, x: inner(x))
    unfused = feta.retrain(alike, batches(), max_epochs=2).model.inner
    assert same(feta.retrain(model, dicts, max_epochs=2).model.inner, unfused)
    for one, other in zip(unfused.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    judged = feta.retrain(model, dicts, max_epochs=2, validation=dicts).report
    assert judged.accuracy >= judged.start == pytest.approx(percent(pruned.model, TRAIN))


def test_a_stream_is_looked_at_more_often_once_its_length_is_known(pruned):
    report = feta.retrain(pruned.model, Stream(), max_epochs=2, validation=HELD_OUT).report
    assert [round(epoch, 6) for _, epoch, _ in report.history] == [0, 1, 1.3, 1.5, 1.8, 2]


@pytest.mark.parametrize(
    "optimiser",
    [
        lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.5),
        lambda p: torch.optim.LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"),
    ],
)
def test_any_optimiser(pruned, optimiser):
    settings = feta.Retraining(max_epochs=2, batch_size=160)
    result = feta.retrain(pruned.model, TRAIN, settings, validation=HELD_OUT, optimiser=optimiser)
    assert holds(result.model, pruned.masks)
    assert result.report.accuracy > result.report.start


def test_a_loss_and_a_judge_of_the_users_own(pruned):
    x, targets = TRAIN[0], pruned.model(TRAIN[0]).detach() + 1

    def closeness(model: nn.Module) -> float:
        assert not model.training
        return -float(F.mse_loss(model(x), targets).detach())

    settings = feta.Retraining(goal=-0.1, tolerance=0, learning_rate=0.05)
    result = feta.retrain(pruned.model, (x, targets), settings, loss=F.mse_loss, validation=closeness)
    assert result.report.recovered
    assert closeness(result.model) >= -0.1


def test_masks_that_are_given_are_the_ones_that_are_held(pruned):
    given = {"0": pruned.masks["0"].clone()}
    given["0"][:, 4:] = False
    result = feta.retrain(pruned.model, TRAIN, masks=given, max_epochs=1)
    assert not result.model[0].weight[~given["0"]].any()
    assert feta.masks_of(result.model, "2")["2"].sum() > pruned.masks["2"].sum()  # zeros that grew back


def test_batch_norm_and_dropout_train_and_come_back_in_their_modes(pruned):
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).eval()
    model[2].train()
    result = feta.retrain(model, TRAIN, max_epochs=1)
    assert int(result.model[1].num_batches_tracked) == 10
    assert [module.training for module in result.model] == [module.training for module in model]


def test_a_model_whose_parameters_wake_up_late(pruned):
    """Its second part has a gradient from the second batch on."""
    calls = []

    def call(parts: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return parts[0](x) + (parts[1](x) if len(calls) > 1 else 0)

    model = Around(nn.Sequential(pruned.model, nn.Linear(12, 3)), call)
    result = feta.retrain(model, TRAIN, max_epochs=1)
    assert calls == [32] * 10
    assert not torch.equal(result.model.inner[1].weight, model.inner[1].weight)


@pytest.mark.parametrize(
    ("data", "options", "kind", "message"),
    [
        (TRAIN, {"goal": 90}, ConfigError, "validation must be given with a goal, got None"),
        (TRAIN, {"learning_rate": 0}, ConfigError, "learning_rate must be > 0 and finite, got 0"),
        (TRAIN, {"settings": 3}, ConfigError, "settings must be a feta.Retraining, got 3"),
        (TRAIN, {"seconds": math.nan}, ConfigError, "seconds must be > 0 and finite, got nan"),
        (TRAIN, {"optimiser": torch.optim.SGD([torch.zeros(1)], 1)}, ConfigError, "must be a function, got a SGD"),
        (TRAIN, {"learning_rate": 1e20}, ModelError, "must keep a finite loss, got (nan|inf) at epoch"),
        ((TRAIN[0], TRAIN[1][:-1]), {}, ConfigError, "as many inputs as labels, got 320 and 319"),
        (3, {}, ConfigError, "data must be a pair of tensors, or a loader .* got int"),
        (iter(batches()), {}, ConfigError, "to read in every epoch, got list_iterator"),
        ([TRAIN[0]], {}, ConfigError, r"must yield \(x, y\) pairs.* or dicts with labels, got a Tensor"),
        ([{"input": TRAIN[0]}], {}, ConfigError, "dicts with labels, got a dict without"),
        ([], {}, DataError, "data must give batches in every epoch, got none in epoch 1"),
        (TRAIN, {"validation": lambda model: math.nan}, ConfigError, "give a finite number, got nan"),
        (TRAIN, {"validation": []}, DataError, "validation must hold at least one sample"),
        (TRAIN, {"validation": 3}, ConfigError, "validation must be a pair of tensors, or a loader"),
    ],
)
def test_bad_input(pruned, data, options, kind, message):
    with pytest.raises(kind, match=message):
        feta.retrain(pruned.model, data, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1}, r"momentum must be in \[0, 1\), got 1"),
        ({"tolerance": -1}, "tolerance must be >= 0 and finite, got -1"),
        ({"goal": math.inf}, "goal must be finite, got inf"),
        ({"check_every": 2}, r"check_every must be in \(0, 1\], got 2"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        feta.Retraining(**options)


# Several processes

SCRIPT = """
import os
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, sys.argv[1])
from tuned import build, holds
from test_retraining import HELD_OUT, SIZES, TRAIN, batches, percent
import feta

rank, where = int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=2)
pruned = feta.prune(build(*SIZES), sparsity=0.7, method="threshold")
model = DistributedDataParallel(pruned.model)
mine = [batch for i, batch in enumerate(batches(40)) if i % 2 == rank]
half = tuple(part[rank::2] for part in HELD_OUT)
settings = feta.Retraining(goal=101, learning_rate=0.1, max_epochs=2, weight_decay=0.01, tolerance=0.0)
result = feta.retrain(model, mine, settings, masks=pruned.masks, validation=half)
assert isinstance(result.model, DistributedDataParallel)
twice = feta.retrain(pruned.model, batches(80), settings, validation=HELD_OUT)
for (name, ours), theirs in zip(result.model.module.named_parameters(), twice.model.parameters()):
    assert torch.allclose(ours, theirs, atol=1e-5), name
assert holds(result.model, pruned.masks)
assert abs(result.report.accuracy - percent(result.model.module)) < 1e-9
stopped = feta.retrain(model, mine, settings, validation=half, goal=result.report.accuracy).report
assert stopped.stopped == "recovered", stopped
pair = feta.retrain(model, TRAIN, feta.Retraining(batch_size=80), validation=half, max_epochs=1).report
limit = 1e-9 if rank else 1e9  # the clock of one process stops both
late = feta.retrain(model, [b for b in batches(16) for _ in range(4)], seconds=limit, max_epochs=2).report
assert late.stopped == "seconds", late
short = feta.retrain(model, mine, seconds=limit, max_epochs=500).report
assert short.stopped == "seconds" and short.epochs < 20, short  # also where an epoch is but a few steps
try:
    feta.retrain(model, mine[: len(mine) - rank])
except feta.DataError as error:
    uneven = str(error)
seen = [[(e, a) for _, e, a in report.history] for report in (result.report, stopped, pair, late)]
torch.save([seen, result.model.module.state_dict(), uneven], f"{where}/rank{rank}.pt")
dist.barrier()
os._exit(0)  # all is done: gloo's threads, torn down with the interpreter, may end it by an abort
"""


def test_two_processes_train_one_model_and_stop_together(tmp_path):
    """Two halves of each batch in two processes against whole batches in one."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(Path(__file__).parent)]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    answers = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], [error for _, error in answers]
    stored = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    (seen, state, uneven), (other, twin, _) = stored
    assert seen == other
    assert all(torch.equal(state[name], twin[name]) for name in state)
    assert "must give as many batches in every process, got 4 in process 0" in uneven
    assert len(seen[3]) == 1  # before the first step, when the time was up already
