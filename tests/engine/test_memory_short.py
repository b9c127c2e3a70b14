"""A device that runs out of memory in the middle of a walk: the model unharmed, an error that says what would fit."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import feta
from feta.pruners import feta as method

ROWS = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [
        nn.Linear(8, 9),
        nn.BatchNorm1d(9),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(9, 7),
        nn.ReLU(),
        nn.Linear(7, 3),
    ]
    return nn.Sequential(*blocks).train()


class Large:
    """Something that the failed work holds."""


@pytest.fixture
def held(monkeypatch):
    """Statistics of the second layer find the device full."""
    calls, held, gram = [], [], method.gram

    def full(*given, **more):
        calls.append(1)
        large = Large()
        held.append(weakref.ref(large))
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return gram(*given, **more)

    monkeypatch.setattr(method, "gram", full)
    return held


def test_the_model_is_unharmed_and_the_error_says_what_would_fit(held):
    model = network()
    hook = model[0].register_forward_hook(lambda *_: None)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(feta.FetaError) as raised:
        feta.prune(model, ROWS, 0.5, "feta")
    said = str(raised.value)
    assert said.startswith("the work must fit into the memory of cpu, got out of it; the model is as it was")
    for cure in ("feta.Settings(memory=", "batch_size=", "n_samples=", "Tried to allocate 20.00 GiB"):
        assert cure in said
    assert isinstance(raised.value, torch.OutOfMemoryError)  # whoever looks for torch's own finds it
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(model[0]._forward_hooks) == [hook.id]
    assert all(module.training for module in model.modules())
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_the_error_keeps_nothing_of_the_failed_work(held):
    with pytest.raises(feta.FetaError) as raised:
        feta.prune(network(), ROWS, 0.5, "feta")
    error = raised.value
    assert error.__context__ is None
    assert error.__cause__ is None
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_a_run_that_ran_out_of_memory_goes_on_from_the_finished_layers(held, tmp_path, monkeypatch):
    model, folder = network(), tmp_path / "kept"
    with pytest.raises(feta.FetaError):
        feta.prune(model, ROWS, 0.5, "feta", checkpoint=folder)
    started = []
    tell = lambda event: started.append(event.layer) if event.kind == "start" else None  # noqa: E731
    resumed = feta.prune(model, ROWS, 0.5, "feta", checkpoint=folder, callback=tell)
    assert started == ["4"]
    whole = feta.prune(model, ROWS, 0.5, "feta")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])
