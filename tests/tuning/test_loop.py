"""The loop under refining and retraining, the recorder of its steps, and what surrounds them."""

import gc
import threading
import time
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from tuned import Around, build, holds

import feta
from feta.gates import AT_WORK
from feta.tuning.recorder import Recorder, recordable
from feta.tuning.stepping import threads_for

X = torch.randn(80, 6, generator=torch.Generator().manual_seed(1))
Y, SIZES = torch.arange(80) % 3, (6, 5, 3)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_rates_as_numbers_and_as_tensors(rate):
    """The rate of each group decays with the epochs; a tensor is changed in place."""
    made = []

    def optimiser(parameters):
        groups = [{"params": [parameter], "lr": rate} for parameter in parameters]
        made.append(torch.optim.SGD(groups, 0.5, foreach=False))
        return made[0]

    feta.retrain(build(*SIZES), (X, Y), feta.Retraining(decay=0.5, max_epochs=3), optimiser=optimiser)
    now = [group["lr"] for group in made[0].param_groups]
    assert [float(value) for value in now] == pytest.approx([0.025] * 4)
    assert isinstance(rate, float) or all(value is rate for value in now)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (build(*SIZES), True),
        (nn.Sequential(build(*SIZES), nn.BatchNorm1d(3), nn.Dropout()), True),
        (Around(build(*SIZES), nn.Module.__call__), False),
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
        for model, threads in ((build(*SIZES), 1), (nn.Conv2d(1, 2, 3), 2), (nn.Linear(1000, 1000), 2)):
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
    def graph(graph, capture_error_mode):
        assert capture_error_mode == "thread_local"
        enter()
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
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


def test_a_recording_is_not_disturbed_by_one_of_another_thread(monkeypatch):
    """Whichever comes second records nothing, and must not switch collecting on while the other records."""
    seen, inside = [], threading.Semaphore(0)

    def enter():
        inside.release()
        time.sleep(0.1)  # long enough for the other to begin, if it may
        seen.append(gc.isenabled())
        time.sleep(0.1 * len(seen))
        seen.append(gc.isenabled())

    recorders = [recorder_of(monkeypatch, enter)[0] for _ in range(2)]
    threads = [threading.Thread(target=lambda r=r: [r(torch.ones(2)) for _ in range(2)]) for r in recorders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_a_recording_that_fails_leaves_the_function(monkeypatch):
    def refuse():
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    recorder, calls = recorder_of(monkeypatch, refuse)
    assert [float(recorder(torch.full((2,), float(i)))[0]) for i in range(4)] == [0, 1, 2, 3]
    assert (len(calls), recorder.graph, recorder.failure) == (4, None, "operation not permitted")
    assert gc.isenabled()


def test_a_recording_that_gives_something_else_leaves_the_function(monkeypatch):
    """What stands for a graph computes nothing: its result stays that of the recording."""
    recorder, calls = recorder_of(monkeypatch, lambda: None)
    recorder.function, recorder.checked = (lambda x: calls.append(x) or torch.full((2,), float(len(calls)))), 2
    assert [float(recorder(torch.ones(2))[0]) for _ in range(3)] == [1, 3, 4]  # a function that counts its calls
    assert (recorder.graph, recorder.failure) == (None, "a recorded call gave another result")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    "tune",
    [
        lambda model: feta.retrain(model, (X, Y), feta.Retraining(batch_size=30, max_epochs=4, decay=0.5)),
        lambda model: feta.refine(model, build(*SIZES).cuda(), X, feta.Refinement(12, learning_rate=1e-3)),
    ],
)
def test_a_recorded_step_is_the_step(tune, monkeypatch):
    """Rates that change, a smaller last batch of an epoch, zeros held: the same weights as without a graph."""
    recorders, record = [], Recorder._record
    monkeypatch.setattr(Recorder, "_record", lambda recorder: recorders.append(recorder) or record(recorder))
    model = feta.prune(build(*SIZES), sparsity=0.5, method="threshold").model.cuda()
    recorded = tune(model).model
    model[0].register_forward_hook(lambda *_: None)  # a model with a hook is not recorded
    plain = tune(model).model
    assert recorders
    assert not any(recorder.failure for recorder in recorders)
    for ours, theirs in zip(recorded.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
        assert torch.equal(ours == 0, theirs == 0)


@pytest.mark.gpu
@on_gpu
def test_on_a_gpu_as_on_a_cpu():
    x, y = torch.randn(600, 6), torch.randint(0, 3, (600,))
    pruned, found = feta.prune(build(*SIZES), sparsity=0.5, method="threshold"), []
    for device in ("cpu", "cuda"):
        retrained = feta.retrain(pruned.model, (x, y), validation=(x, y), max_epochs=2, device=device)
        refined = feta.refine(pruned.model, build(*SIZES), x, steps=30, learning_rate=1e-3, device=device)
        assert retrained.report.device == refined.report.device == device
        for result in (retrained, refined):
            assert {p.device.type for p in result.model.parameters()} == {"cpu"}
            assert holds(result.model, pruned.masks)
        found.append((retrained.model(x), refined.model(x)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)


def test_nothing_is_recorded_while_other_threads_are_at_work():
    inside, leave = threading.Event(), threading.Event()

    @AT_WORK
    def other() -> None:
        inside.set()
        leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    call = Recorder(lambda x: x + 1)
    assert [float(call(torch.ones(()))) for _ in range(3)] == [2.0] * 3  # by the function itself, without a GPU too
    assert (call.graph, call.failure) == (None, "")
    leave.set()
    thread.join()
