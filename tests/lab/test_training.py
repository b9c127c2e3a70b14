"""Training: the same weights every time, also after a kill; when it stops, and what it keeps."""

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
from feta.files import sparse_file
from feta_lab import networks
from feta_lab.judge import judge
from feta_lab.training import EpochEvent, Training, train

SPEC = "8FC-3SM"
SHORT = Training(max_epochs=4, batch_size=16)


class Killed(Exception):
    pass


@pytest.fixture
def run(tiny_data):
    """Trains a small network, if need be killed in an epoch; returns it and the events."""

    def run(settings=SHORT, *, data=tiny_data, specification=SPEC, kill_at=0, **options):
        events: list[EpochEvent] = []

        def callback(event: EpochEvent) -> None:
            events.append(event)
            if event.epoch == kill_at:
                raise Killed

        return train(specification, data, settings, callback=callback, **options), events

    return run


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "run.partial"


def equal(network, other) -> bool:
    pairs = zip(network.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and network.info == other.info


def test_the_same_seed_gives_the_same_weights(run):
    first, second, other = (run(replace(SHORT, seed=seed))[0] for seed in (0, 0, 1))
    assert equal(first, second)
    assert not equal(first, other)


def test_it_is_sgd_with_momentum_and_decay(tiny_data, run):
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
    _, events = run(Training(learning_rate=0.05, decay=0.5, batch_size=16, max_epochs=3, seed=3))
    assert [event.loss for event in events] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize(("epoch", "momentum"), [(1, 0.9), (3, 0.9), (4, 0.9), (3, 0.0)])
def test_a_killed_run_goes_on_to_the_same_weights(run, checkpoint, epoch, momentum):
    settings = replace(SHORT, momentum=momentum)
    with pytest.raises(Killed):
        run(settings, checkpoint=checkpoint, kill_at=epoch)
    resumed, events = run(settings, checkpoint=checkpoint)
    assert [event.epoch for event in events] == list(range(epoch + 1, 5))
    assert equal(resumed, run(settings)[0])


def test_saturation_is_counted_over_a_kill(run, checkpoint):
    settings = replace(SHORT, learning_rate=0.1, max_epochs=40, patience=3)
    whole, _ = run(settings)
    with pytest.raises(Killed):
        run(settings, checkpoint=checkpoint, kill_at=whole.info.epochs - 1)
    resumed, events = run(settings, checkpoint=checkpoint)
    assert equal(resumed, whole)
    assert len(events) == 1


SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
from feta_lab.training import Training, train

checkpoint, data = Path(sys.argv[1]), pickle.load(open(sys.argv[2], "rb"))
fsync, epochs = os.fsync, []

def die_in_the_third(handle):
    if len(epochs) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)

os.fsync = die_in_the_third
train("8FC-3SM", data, Training(max_epochs=4, batch_size=16), checkpoint=checkpoint, callback=epochs.append)
"""


def test_a_process_killed_while_it_writes_goes_on_to_the_same_weights(run, tiny_data, checkpoint, tmp_path):
    stored = tmp_path / "data.pickle"
    stored.write_bytes(pickle.dumps(tiny_data))
    command = [sys.executable, "-c", SCRIPT, str(checkpoint), str(stored)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    resumed, events = run(checkpoint=checkpoint)
    assert [event.epoch for event in events] == [3, 4]
    assert equal(resumed, run()[0])


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(run, checkpoint, monkeypatch):
    with pytest.raises(Killed):
        run(checkpoint=checkpoint, kill_at=2)

    def full(handle):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left on device"):
            run(checkpoint=checkpoint)
    assert equal(run(checkpoint=checkpoint)[0], run()[0])


def test_the_checkpoint_of_another_run_is_refused(run, tiny_data, checkpoint):
    run(checkpoint=checkpoint)
    fewer = replace(tiny_data, train=tiny_data.train.take(torch.arange(299)))
    changes = ({"seed": 1}, {"learning_rate": 0.02}, {"max_epochs": 5})
    others = [{"settings": replace(SHORT, **change)} for change in changes]
    for other in ({"specification": "9FC-3SM"}, {"data": fewer}, *others):
        with pytest.raises(FileError, match=r"run.partial must be this very run's checkpoint, .*delete it to start"):
            run(**other, checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"run.partial must be a whole safetensors file"):
        run(checkpoint=checkpoint)


def test_it_stops_when_validation_saturates_and_keeps_the_best(tiny_data, run):
    network, events = run(Training(learning_rate=0.3, max_epochs=60, patience=4, batch_size=16))
    scores = [event.validation for event in events]
    best = scores.index(max(scores))
    assert len(scores) == best + 1 + 4 < 60
    assert scores[-1] < max(scores)  # so that the last weights are not the best ones
    assert [event.best for event in events] == [max(scores[: i + 1]) for i in range(len(scores))]
    assert network.info.epochs == len(scores)
    assert network.info.accuracy["validation"] == max(scores)
    assert judge(network.model, tiny_data) == network.info.accuracy


@pytest.mark.parametrize("specification", [SPEC, "4C3-MP2-8FC-3SM"])
def test_a_learning_rate_that_diverges_is_an_error(run, specification):
    message = r"must keep a finite loss, got (nan|inf) at epoch \d.00; lower --learning-rate"
    with pytest.raises(ModelError, match=message):
        run(replace(SHORT, learning_rate=1e15), specification=specification)


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


def test_a_damaged_checkpoint_is_refused_with_its_cure(run, checkpoint):
    with pytest.raises(Killed):
        run(checkpoint=checkpoint, kill_at=2)
    whole = checkpoint.read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        changed = bytearray(whole)
        changed[place] ^= 4
        for damaged in (bytes(changed), whole[:place]):
            checkpoint.write_bytes(damaged)
            with pytest.raises(FileError, match="delete it to start anew"):
                run(checkpoint=checkpoint)


@pytest.mark.parametrize("wrong", ["progress", "lacks", "shape", "more"])
def test_a_checkpoint_of_another_content_is_refused(run, checkpoint, wrong):
    with pytest.raises(Killed):
        run(checkpoint=checkpoint, kill_at=2)
    tensors, metadata = sparse_file.read(checkpoint)
    name = next(key for key in tensors if key.startswith("momentum."))
    if wrong == "progress":
        metadata["progress"]["epoch"] = "2"
    elif wrong == "lacks":
        del tensors[name]
    elif wrong == "shape":
        tensors[name] = tensors[name][:1].clone()
    else:
        tensors["another.tensor"] = tensors[name].clone()
    sparse_file.write(checkpoint, tensors, metadata)
    with pytest.raises(FileError, match="delete it to start anew"):
        run(checkpoint=checkpoint)
