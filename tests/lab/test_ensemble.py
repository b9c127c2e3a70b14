"""Networks trained together: against plain SGD, alone or in company, on a GPU, and bad settings."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from feta.errors import ConfigError, ModelError
from feta.tuning.recorder import Recorder
from feta_lab import ensemble, networks
from feta_lab.ensemble import Sprint, train_together
from feta_lab.judge import accuracy

SPEC = "4C3-MP2-8FC-3SM"
SHORT = Sprint(epochs=3, batch_size=32, learning_rate=0.05)


@pytest.fixture
def inputs(tiny_data):
    return tiny_data.normalisation.apply(tiny_data.train.images, "cpu"), tiny_data.train.labels


def reference(images, labels, seed, settings):
    """SGD with Nesterov momentum, weight decay and clipping, written out in float64."""
    model = networks.build(SPEC, tuple(images.shape[1:]), seed=seed).double()
    weights = list(model.parameters())
    velocity = [torch.zeros_like(weight) for weight in weights]
    steps, losses = len(images) // settings.batch_size, []
    for epoch in range(settings.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        total = 0.0
        for index in range(steps):
            rows = order[index * settings.batch_size : (index + 1) * settings.batch_size]
            loss = F.cross_entropy(model(images[rows].double()), labels[rows])
            gradients = torch.autograd.grad(loss, weights)
            norm = float(sum(gradient.square().sum() for gradient in gradients)) ** 0.5
            rate = settings.rate((epoch * steps + index + 0.5) / (settings.epochs * steps))
            with torch.no_grad():
                for weight, gradient, v in zip(weights, gradients, velocity, strict=True):
                    gradient = gradient * min(1, settings.clip / norm) + settings.weight_decay * weight
                    v.mul_(settings.momentum).add_(gradient)
                    weight -= rate * (gradient + settings.momentum * v)
            total += float(loss.detach())
        losses.append(total / steps)
    return model, losses


@pytest.mark.parametrize("changes", [{}, {"clip": 0.05}, {"weight_decay": 0.1, "rise": 0.5}])
def test_it_is_nesterov_sgd_with_clipping(inputs, changes):
    settings, events = replace(SHORT, **changes), []
    (model,) = train_together(SPEC, *inputs, [3], settings, callback=events.append)
    expected, losses = reference(*inputs, 3, settings)
    assert [event.losses[0] for event in events] == pytest.approx(losses, rel=1e-4)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.double(), expected.get_parameter(name), atol=2e-5, rtol=1e-3, msg=name)


def test_a_member_alone_is_the_same_network(inputs):
    together = train_together(SPEC, *inputs, [0, 1, 2], SHORT)
    (alone,) = train_together(SPEC, *inputs, [1], SHORT)
    for name, weight in alone.named_parameters():
        assert torch.equal(weight, together[1].get_parameter(name))
    assert not torch.equal(together[0].conv1.weight, together[2].conv1.weight)


def test_they_learn_and_come_back_ready_to_use(inputs, tiny_data):
    models = train_together(SPEC, *inputs, [0, 1], replace(SHORT, epochs=15))
    test = tiny_data.normalisation.apply(tiny_data.test.images, "cpu")
    for model in models:
        assert not model.training
        assert model.conv1.weight.is_contiguous()
        assert accuracy(model, test, tiny_data.test.labels) > 60  # of three classes


def test_half_precision_is_close(inputs):
    (full,) = train_together(SPEC, *inputs, [0], SHORT)
    (half,) = train_together(SPEC, *inputs, [0], replace(SHORT, precision="bfloat16"))
    assert half.conv1.weight.dtype == torch.float32
    assert 0 < (half.fc1.weight - full.fc1.weight).abs().max() < 0.05


def test_a_batch_larger_than_the_data_is_all_of_it(inputs):
    events = []
    train_together(SPEC, *inputs, [0], replace(SHORT, epochs=1, batch_size=1000), callback=events.append)
    images, labels = inputs
    model = networks.build(SPEC, (1, 6, 6), seed=0)
    assert events[0].losses[0] == pytest.approx(float(F.cross_entropy(model(images), labels).detach()), rel=1e-5)


def test_the_rate_rises_and_falls():
    settings = Sprint(learning_rate=2.0, rise=0.25)
    assert [settings.rate(share) for share in (0, 0.125, 0.25, 0.625, 1)] == [0, 1, 2, 1, 0]
    assert Sprint(learning_rate=2.0, rise=0).rate(0) == 2


def test_a_loss_that_is_not_finite(inputs):
    with pytest.raises(ModelError, match=r"finite loss, got nan for seed 0 in epoch 1; lower the learning rate"):
        train_together(SPEC, inputs[0] * float("nan"), inputs[1], [0], SHORT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "Sprint.epochs must be > 0 and finite, got 0"),
        ({"weight_decay": float("nan")}, "Sprint.weight_decay must be >= 0 and finite, got nan"),
        ({"rise": 1.0}, r"Sprint.rise must be in \[0, 1\), got 1.0"),
        ({"precision": "half"}, "Sprint.precision must be auto, float32 or bfloat16, got 'half'"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ConfigError, match=message):
        Sprint(**changes)


def test_bad_input(inputs):
    images, labels = inputs
    for seeds in ([], [1, 1]):
        with pytest.raises(ConfigError, match="seeds must be one or more different numbers"):
            train_together(SPEC, images, labels, seeds, SHORT)
    with pytest.raises(ConfigError, match="images must be"):
        train_together(SPEC, images, labels[:-1], [0], SHORT)


def test_a_graph_that_cannot_be_recorded(inputs, monkeypatch):
    """Tried with streams and without; then steps are taken as they come, none is lost, the event says why."""
    tried = []

    def refuse(graph, **how):
        tried.append(len(crew.streams))
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    stand_ins = {"CUDAGraph": object, "graph": refuse, "stream": lambda stream: nullcontext()}
    stand_ins |= dict.fromkeys(("current_stream", "set_stream", "synchronize"), Mock())
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    crew = ensemble._Crew(SPEC, *inputs, [0], SHORT)
    crew.recorder, crew.streams = Recorder(crew._step, 3), [Mock()]
    events = [crew.one_epoch(epoch) for epoch in range(SHORT.epochs)]
    expected = []
    train_together(SPEC, *inputs, [0], SHORT, callback=expected.append)
    assert [event.losses for event in events] == [event.losses for event in expected]
    assert tried == [1, 0]
    assert events[0].note == "no CUDA graph: operation not permitted"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_step_is_the_step(inputs):
    runs = []
    for graph in (True, False):
        events, settings = [], replace(SHORT, precision="float32", graph=graph)
        images, labels = (tensor.cuda() for tensor in inputs)
        runs.append(train_together(SPEC, images, labels, [0, 1], settings, callback=events.append))
        assert [event.graph for event in events] == [graph] * 3
        assert not events[-1].note
    for recorded, plain in zip(*runs, strict=True):
        torch.testing.assert_close(recorded.state_dict(), plain.state_dict(), atol=1e-3, rtol=1e-3)
