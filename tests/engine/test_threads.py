"""Several threads work on one model at once: same results as alone, and the model is as it was."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import feta
from feta.gates import gated
from feta.tuning.stepping import threads_for

ROWS = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    """In training mode, with what tells whether it was run so: batch-norm statistics and dropout."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def hooks(model: nn.Module) -> int:
    return sum(len(v) for m in model.modules() for k, v in vars(m).items() if k.endswith("_hooks") and v is not None)


def chained() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


SHORT = feta.Refinement(20, learning_rate=1e-3)
TASKS = {
    "prune": lambda model: feta.prune(model, ROWS, 0.7, "feta").model.state_dict(),
    "allocated": lambda model: feta.prune(model, ROWS, 0.7, effort="fast").model.state_dict(),
    "refined": lambda model: feta.prune(model, ROWS, 0.7, "alps", refine=SHORT).model.state_dict(),
    "refine": lambda model: feta.refine(THIN, model, ROWS, steps=20, learning_rate=1e-3).model.state_dict(),
    "certify": lambda model: feta.certify(model, model, ROWS[:8], samples=4, attack=None).to_dict(),
}
THIN = feta.prune(network(), ROWS, 0.7, "threshold").model


@pytest.mark.parametrize("task", TASKS)
def test_eight_threads_on_one_model(task):
    model = chained() if task == "certify" else network()
    model.train()
    before, expected = {name: t.clone() for name, t in model.state_dict().items()}, TASKS[task](model)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: TASKS[task](model), range(8)))
    for result in found:
        for name, value in expected.items():
            assert torch.equal(result[name], value) if isinstance(value, torch.Tensor) else result[name] == value
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_model_that_runs_while_another_thread_certifies_is_not_traced():
    """Not even nn.Module is changed meanwhile: fx.symbolic_trace would lead all threads through its tracer."""
    found, plain = [], nn.Module.__call__

    class Looking(nn.Sequential):
        def forward(self, x):
            found.append(nn.Module.__call__ is plain)
            return super().forward(x)

    model = Looking(*chained())
    feta.certify(model, model, ROWS[:8], samples=4, attack=None)
    assert found
    assert all(found)


def test_what_threads_share_is_put_back_by_the_last_of_them():
    """Each notes what it finds: the second would find what the first has changed, and leave that behind."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, second = threads_for(network()), threads_for(network())
        first.__enter__()
        second.__enter__()
        assert torch.get_num_threads() == 1
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_the_random_state_after_two_threads():
    begun, ended = threading.Event(), threading.Event()

    @gated
    def one() -> None:
        torch.rand(3)
        begun.set()
        assert ended.wait(60)  # until the other has come in

    @gated
    def other() -> None:
        ended.set()
        thread.join(60)
        torch.rand(3)

    torch.manual_seed(0)
    before, thread = torch.get_rng_state(), threading.Thread(target=one)
    thread.start()
    assert begun.wait(60)
    other()
    assert torch.equal(torch.get_rng_state(), before)
