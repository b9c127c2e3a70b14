"""Training: the same weights every time, also after a kill; when it stops, and what it keeps."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from feta.errors import ConfigError, FileError, ModelError
from feta_lab import networks
from feta_lab.judge import judge
from feta_lab.training import EpochEvent, Training, train

SPEC = "8FC-3SM"
SHORT = Training(max_epochs=4, batch_size=16)


class Killed(Exception):
    pass


def kill_at(epoch: int):
    def callback(event: EpochEvent) -> None:
        if event.epoch == epoch:
            raise Killed

    return callback


def equal(network, other) -> bool:
    pairs = zip(network.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and network.info == other.info


def test_the_same_seed_gives_the_same_weights(tiny_data):
    first, second = (train(SPEC, tiny_data, SHORT) for _ in range(2))
    assert equal(first, second)
    assert not equal(first, train(SPEC, tiny_data, replace(SHORT, seed=1)))


def test_it_is_sgd_with_momentum_and_decay(tiny_data):
    """A reference in a few lines; the network returned is that of the best epoch, so each is compared."""
    model = networks.build(SPEC, tiny_data.shape, seed=3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = tiny_data.normalisation.apply(tiny_data.train.images, "cpu")
    losses = []
    for epoch in range(3):
        optimiser.param_groups[0]["lr"] = 0.05 * 0.5**epoch
        order = torch.randperm(300, generator=torch.Generator().manual_seed(3 * 1_000_003 + epoch))
        total = 0.0
        for rows in order.split(16):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(images[rows]), tiny_data.train.labels[rows])
            loss.backward()
            optimiser.step()
            total += loss.item() * len(rows)
        losses.append(total / 300)
    events = []
    settings = Training(learning_rate=0.05, decay=0.5, batch_size=16, max_epochs=3, seed=3)
    train(SPEC, tiny_data, settings, callback=events.append)
    assert [event.loss for event in events] == pytest.approx(losses, rel=1e-4)


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "run.partial"


@pytest.mark.parametrize(("epoch", "momentum"), [(1, 0.9), (3, 0.9), (4, 0.9), (3, 0.0)])
def test_a_killed_run_goes_on_to_the_same_weights(tiny_data, checkpoint, epoch, momentum):
    settings = replace(SHORT, momentum=momentum)
    with pytest.raises(Killed):
        train(SPEC, tiny_data, settings, checkpoint=checkpoint, callback=kill_at(epoch))
    events = []
    resumed = train(SPEC, tiny_data, settings, checkpoint=checkpoint, callback=events.append)
    assert [event.epoch for event in events] == list(range(epoch + 1, 5))
    assert equal(resumed, train(SPEC, tiny_data, settings))


def test_saturation_is_counted_over_a_kill(tiny_data, checkpoint):
    settings = replace(SHORT, learning_rate=0.1, max_epochs=40, patience=3)
    whole, events = train(SPEC, tiny_data, settings), []
    with pytest.raises(Killed):
        train(SPEC, tiny_data, settings, checkpoint=checkpoint, callback=kill_at(whole.info.epochs - 1))
    assert equal(train(SPEC, tiny_data, settings, checkpoint=checkpoint, callback=events.append), whole)
    assert len(events) == 1


SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
from feta_lab.training import Training, train

moment, checkpoint, data = sys.argv[1], Path(sys.argv[2]), pickle.load(open(sys.argv[3], "rb"))
epoch, fsync = 0, os.fsync

def die_writing(handle):
    if moment == "writing" and epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)

def callback(event):
    global epoch
    epoch = event.epoch
    if moment == "between" and epoch == 3:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = die_writing
train("8FC-3SM", data, Training(max_epochs=4, batch_size=16), checkpoint=checkpoint, callback=callback)
"""


@pytest.mark.parametrize(("moment", "left"), [("between", [4]), ("writing", [3, 4])])
def test_a_process_that_was_killed_goes_on_to_the_same_weights(tiny_data, checkpoint, tmp_path, moment, left):
    stored, events = tmp_path / "data.pickle", []
    stored.write_bytes(pickle.dumps(tiny_data))
    command = [sys.executable, "-c", SCRIPT, moment, str(checkpoint), str(stored)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    resumed = train(SPEC, tiny_data, SHORT, checkpoint=checkpoint, callback=events.append)
    assert [event.epoch for event in events] == left
    assert equal(resumed, train(SPEC, tiny_data, SHORT))


def test_the_checkpoint_of_another_run_is_refused(tiny_data, checkpoint):
    train(SPEC, tiny_data, SHORT, checkpoint=checkpoint)
    others = [
        ("9FC-3SM", tiny_data, SHORT),
        (SPEC, replace(tiny_data, train=tiny_data.train.take(range(299))), SHORT),
    ]
    changes = ({"seed": 1}, {"learning_rate": 0.02}, {"max_epochs": 5})
    for other in (*others, *((SPEC, tiny_data, replace(SHORT, **change)) for change in changes)):
        with pytest.raises(FileError, match=r"run.partial must be this very run's checkpoint, .*delete it to start"):
            train(*other, checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"run.partial must be a whole safetensors file"):
        train(SPEC, tiny_data, SHORT, checkpoint=checkpoint)


def test_it_stops_when_validation_saturates_and_keeps_the_best(tiny_data):
    events = []
    settings = Training(learning_rate=0.3, max_epochs=60, patience=4, batch_size=16)
    network = train(SPEC, tiny_data, settings, callback=events.append)
    scores = [event.validation for event in events]
    best = scores.index(max(scores))
    assert len(scores) == best + 1 + 4 < 60
    assert scores[-1] < max(scores)  # so that the last weights are not the best ones
    assert [event.best for event in events] == [max(scores[: i + 1]) for i in range(len(scores))]
    assert network.info.epochs == len(scores)
    assert network.info.accuracy["validation"] == max(scores)
    assert judge(network.model, tiny_data) == network.info.accuracy


@pytest.mark.parametrize("specification", [SPEC, "4C3-MP2-8FC-3SM"])
def test_a_learning_rate_that_diverges_is_an_error(tiny_data, specification):
    message = r"must keep a finite loss, got (nan|inf) at epoch \d.00; lower --learning-rate"
    with pytest.raises(ModelError, match=message):
        train(specification, tiny_data, replace(SHORT, learning_rate=1e15))


def test_what_comes_back(tiny_data):
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    network = train("4C3-MP2-8FC-3SM", tiny_data, SHORT, preset="mine")
    info = network.info
    assert (info.specification, info.shape, info.data) == ("4C3-MP2-8FC-3SM", (1, 6, 6), "tiny")
    assert (info.preset, info.seed, info.pruning) == ("mine", 0, None)
    assert info.normalisation == tiny_data.normalisation
    assert set(info.accuracy) == {"validation", "test"}
    assert not network.model.training
    assert {p.device.type for p in network.model.parameters()} == {"cpu"}
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(tiny_data, checkpoint, monkeypatch):
    with pytest.raises(Killed):
        train(SPEC, tiny_data, SHORT, checkpoint=checkpoint, callback=kill_at(2))

    def full(handle):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left on device"):
            train(SPEC, tiny_data, SHORT, checkpoint=checkpoint)
    assert equal(train(SPEC, tiny_data, SHORT, checkpoint=checkpoint), train(SPEC, tiny_data, SHORT))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *((name, value, "must be > 0 and finite") for name in ("decay", "patience") for value in (0, float("nan"))),
        *(("momentum", value, r"must be in \[0, 1\)") for value in (-0.1, 1.0, float("nan"))),
    ],
)
def test_bad_settings(name, value, message):
    with pytest.raises(ConfigError, match=f"Training.{name} {message}, got {value}"):
        Training(**{name: value})
