"""The loop under refining and retraining, the recorder of its steps, and what surrounds them."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import contextmanager
from dataclasses import dataclass

import nets
import pytest
import torch
import torch.nn.functional as F
from nets import Around
from torch import nn

import feta
from feta.tuning.batches import labelled
from feta.tuning.loop import Loop
from feta.tuning.ranks import Ranks
from feta.tuning.stepping import Recorder, rate_on, recordable, threads_for

CPU = torch.device("cpu")
X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def build() -> nn.Module:
    return nets.build(6, 5, 3)


@dataclass(kw_only=True)
class Plain(Loop):
    """Judges by given scores; tells of passes and losses."""

    scores: list[float | None]

    def judge(self) -> float | None:
        return self.scores.pop(0)

    def after(self, seconds: float, passes: float, loss: float, score: float | None) -> str | None:
        self.tell((passes, loss))
        return "bad" if self.stale == 2 and score is not None else None


def loop_of(model, scores, *, batch_size=8, optimiser=None, device=CPU, **options) -> Plain:
    options.setdefault("passes", 3)
    options["optimiser"] = optimiser or torch.optim.SGD(model.parameters(), 0.1)
    options["batches"] = labelled((X, Y), Ranks(device), torch.float32, batch_size, seed=0)
    return Plain(model=model, loss=F.cross_entropy, ranks=Ranks(device), started=0.0, scores=scores, **options)


def test_a_step_is_the_optimisers_and_tells_the_loss_before():
    model, expected = build(), build()
    loss = F.cross_entropy(expected(X), Y)
    gradients = torch.autograd.grad(loss, list(expected.parameters()))
    found = loop_of(model, []).update(X, Y)
    assert not found.requires_grad
    assert found == loss.detach()
    for new, old, gradient in zip(model.parameters(), expected.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - 0.1 * gradient)


def test_looks_and_the_best_weights():
    model = build()
    loop = loop_of(model, [1.0, 3.0, 2.0, 2.0], batch_size=2, check_every=0.5)
    assert loop.run() == "bad"
    assert [passes for passes, _ in loop.history] == [0.5, 1.0, 1.5, 2.0]
    assert (loop.best, loop.best_at, loop.stale) == (3.0, 1.0, 2)
    assert all(loss > 0 for _, loss in loop.history)
    last = copy.deepcopy(model.state_dict())
    loop.restore_best()
    assert not torch.equal(model.state_dict()["0.weight"], last["0.weight"])


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_rates_as_numbers_and_as_tensors(rate):
    model = build()
    groups = [{"params": model[i].parameters(), "lr": rate} for i in (0, 2)]
    optimiser = torch.optim.SGD(groups, 0.5, foreach=False)
    held = [group["lr"] for group in optimiser.param_groups]
    assert loop_of(model, [None] * 3, optimiser=optimiser, decay=0.5).run() == "passes"
    now = [group["lr"] for group in optimiser.param_groups]
    assert [float(value) for value in now] == pytest.approx([0.025, 0.025])
    assert isinstance(rate, float) or all(a is b for a, b in zip(held, now, strict=True))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (build(), True),
        (nn.Sequential(build(), nn.BatchNorm1d(3), nn.Dropout()), True),
        (Around(build(), nn.Module.__call__), False),
        (nn.BatchNorm1d(3, momentum=None), False),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), False),
    ],
)
def test_only_torchs_own_modules_are_recorded(model, expected):
    assert recordable(model) is expected
    hook = next(model.modules()).register_forward_hook(lambda *_: None)
    assert not recordable(model)  # a hook may do anything
    hook.remove()
    assert recordable(model) is expected


def test_small_dense_networks_get_one_thread():
    torch.set_num_threads(2)
    try:
        for model, threads in ((build(), 1), (nn.Conv2d(1, 2, 3), 2), (nn.Linear(1000, 1000), 2)):
            with threads_for(model):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)  # as in all tests


class Graph:
    """Stands for a CUDA graph."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1


def recorder_of(monkeypatch, enter) -> tuple[Recorder, list[torch.Tensor]]:
    """A recorder, and the calls of its function; `enter` is called when a recording begins."""

    @contextmanager
    def graph(graph):
        enter()
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    calls: list[torch.Tensor] = []
    return Recorder(lambda x: calls.append(x) or x), calls


def test_a_recorder_replays_what_has_the_first_shape(monkeypatch):
    old = Graph()
    old.cycle, gone, collecting = old, weakref.ref(old), []
    del old
    recorder, calls = recorder_of(monkeypatch, lambda: collecting.append((gone(), gc.isenabled())))
    results = [recorder(torch.full((size,), float(i))) for i, size in enumerate((2, 3, 2, 2, 2))]
    assert [len(x) for x in calls] == [2, 3, 2]  # to warm up, of another shape, recorded
    assert recorder.graph.replays == 3
    assert torch.equal(results[-1], torch.full((2,), 4.0))  # the inputs that the graph reads are the last ones
    assert collecting == [(None, False)]  # older graphs are freed before a recording, none during it
    assert gc.isenabled()


def test_a_recording_that_fails_leaves_the_function(monkeypatch):
    def refuse():
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    recorder, calls = recorder_of(monkeypatch, refuse)
    assert [float(recorder(torch.full((2,), float(i)))[0]) for i in range(4)] == [0, 1, 2, 3]
    assert (len(calls), recorder.graph, recorder.failure) == (4, None, "operation not permitted")
    assert gc.isenabled()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("adam", [False, True])
def test_a_recorded_step_is_the_step(adam):
    """Rates that change, a smaller last batch, zeros held: the same weights as without a graph."""
    models, gpu = [], torch.device("cuda")
    for record in (False, True):
        model = feta.prune(build(), sparsity=0.5, method="threshold").model.cuda()
        kind, more = (torch.optim.Adam, {"capturable": True}) if adam else (torch.optim.SGD, {"momentum": 0.9})
        optimiser = kind(model.parameters(), rate_on(gpu, 0.1), fused=True, **more)
        options = {"batch_size": 3, "device": gpu, "record": record, "passes": 4, "decay": 0.5}
        loop = loop_of(model, [None] * 4, optimiser=optimiser, **options)
        step = loop.step
        assert isinstance(step, Recorder) is record
        with feta.hold_zeros(model):
            loop.run()
        assert not record or step.graph is not None
        models.append(model)
    for plain, recorded in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(plain, recorded, atol=1e-6)
        assert torch.equal(plain == 0, recorded == 0)


@pytest.mark.gpu
@on_gpu
def test_on_a_gpu_as_on_a_cpu():
    x, y = torch.randn(600, 6), torch.randint(0, 3, (600,))
    pruned = feta.prune(build(), sparsity=0.5, method="threshold")
    for device in ("cpu", "cuda"):
        retrained = feta.retrain(pruned.model, (x, y), validation=(x, y), max_epochs=2, device=device)
        refined = feta.refine(pruned.model, build(), x, device=device)
        assert retrained.report.device == refined.report.device == device
        for result in (retrained, refined):
            assert {p.device.type for p in result.model.parameters()} == {"cpu"}
            assert nets.holds(result.model, pruned.masks)
        if device == "cpu":
            expected = (retrained.model, refined.model)
    for found, wanted in zip((retrained.model, refined.model), expected, strict=True):
        assert torch.allclose(found(x), wanted(x), atol=1e-3)
