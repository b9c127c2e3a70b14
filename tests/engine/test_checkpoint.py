"""A run that is ended goes on from its last finished layers, to the bits of a run that was not."""

import json
import os
import signal
import time

import pytest
import torch

import feta
import job_tasks
import jobs
from feta.engine.checkpoint import Checkpoint, _signed
from feta.ranks import Ranks

METHODS = {
    "feta": {"method": "feta"},
    "fast": {"effort": "fast"},
    "parallel": {"method": "alps", "settings": feta.Settings(mode="parallel")},
    "a fit follows": {"method": "feta", "refine": feta.Refinement(steps=10)},
}


class Ended(Exception):
    pass


def prune(kind="deep", layers_first=None, count=60, **given):
    """The network; with `layers_first` the run is ended when the next layer would start."""
    started = []

    def tell(event):
        if event.kind == "start":
            if event.index == layers_first:
                raise Ended
            started.append(event.layer)

    result = feta.prune(job_tasks.network(kind), job_tasks.samples(kind, count), 0.7, callback=tell, **given)
    return result, started


def same(one, other):
    weights, others = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("given", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("after", [1, 4])
def test_the_same_bits_after_any_end(tmp_path, given, after):
    whole, order = prune(**given)
    with pytest.raises(Ended):
        prune(layers_first=after, checkpoint=tmp_path / "kept", **given)
    resumed, left = prune(checkpoint=tmp_path / "kept", **given)
    assert left == order[after:]  # the others were not solved again
    assert same(whole, resumed)
    assert [layer.name for layer in resumed.report.layers] == order
    assert resumed.report.compensated == whole.report.compensated
    assert not (tmp_path / "kept").exists()


def test_convolutions_batch_norms_and_several_ends(tmp_path):
    whole, _ = prune("conv", layers=["*"], method="feta")
    for after in (1, 1, 2):
        with pytest.raises(Ended):
            prune("conv", layers=["*"], method="feta", layers_first=after, checkpoint=tmp_path / "kept")
    assert same(whole, prune("conv", layers=["*"], method="feta", checkpoint=tmp_path / "kept")[0])


@pytest.fixture
def kept(tmp_path):
    with pytest.raises(Ended):
        prune(layers_first=2, method="feta", checkpoint=tmp_path / "kept")
    return tmp_path / "kept"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"count": 61}, "data"),
        ({"seed": 1}, "seed"),
        ({"settings": feta.Settings(mode="parallel")}, "samples, batches or mode"),
        ({"layers": ["*"], "seed": 1}, "sparsity or layers and seed"),
        ({"method": "alps"}, "method"),
        ({"options": {"outer": 2}}, "method"),
    ],
)
def test_another_run_is_refused(kept, given, what):
    with pytest.raises(feta.ConfigError, match=rf"must be of this run, got one that differs in {what}; .* delete"):
        prune(**{"method": "feta", "checkpoint": kept} | given)
    assert len(list(kept.iterdir())) == 3


def test_damaged_files_and_other_folders_are_refused(kept, tmp_path):
    layers = kept / "layers-0001.safetensors"
    content = bytearray(layers.read_bytes())
    content[-5] ^= 1
    layers.write_bytes(content)
    with pytest.raises(feta.FileError, match=r"layers-0001.* must be as feta wrote it, got a damaged file"):
        prune(method="feta", checkpoint=kept)
    (kept / "progress.json").write_text(json.dumps({"version": 1, "key": 3}))
    with pytest.raises(feta.FileError, match=r"progress.json must be as feta wrote it"):
        prune(method="feta", checkpoint=kept)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(feta.ConfigError, match=r"must be a folder of its own, got 'kept' in"):
        prune(method="feta", checkpoint=tmp_path)
    with pytest.raises(feta.ConfigError, match="must be a folder, got the file"):
        prune(method="feta", checkpoint=tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").exists()


def test_a_killed_job_goes_on(tmp_path):
    """kill -9 of one of two processes, somewhere in the middle; both start again."""
    folder = tmp_path / "job.resume"
    processes = jobs.start(2, "job_tasks:prune_and_keep", tmp_path, kept_in=str(folder))
    while not (folder / "layers-0001.safetensors").exists() and all(p.is_alive() for p in processes):
        time.sleep(0.02)
    os.kill(processes[1].pid, signal.SIGKILL)
    assert all(code != 0 for code, _ in jobs.finished(processes, tmp_path))
    assert (folder / "progress.json").exists()
    first, second = jobs.run(2, "job_tasks:prune_and_keep", kept_in=str(folder), whole=True)
    assert first["started"] < 5
    for key, weight in first["whole"].items():
        assert torch.equal(weight, first["weights"][key])
        assert torch.equal(weight, second["weights"][key])
    assert not folder.exists()


def test_any_flipped_bit_of_the_progress_is_an_error(kept):
    progress = kept / "progress.json"
    whole = progress.read_bytes()
    for place in range(0, len(whole), len(whole) // 60):
        changed = bytearray(whole)
        changed[place] ^= 2
        progress.write_bytes(changed)
        with pytest.raises((feta.FileError, feta.ConfigError), match="delete the folder to begin anew"):
            prune(method="feta", checkpoint=kept)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": [{"name": 3}]},
        {"layers": 5},
        {"compensated": [1]},
        {"files": [["pipe.safetensors", "0"]]},
        {"files": [["\x1b[2J", "0"]]},
        {"key": 1},
    ],
    ids=lambda change: str(next(iter(change.items()))),
)
def test_a_forged_progress_with_the_right_checksum_is_refused(kept, change):
    os.mkfifo(kept / "layers-9.safetensors")  # which nobody writes to: whoever reads it waits for ever
    progress = json.loads((kept / "progress.json").read_bytes())
    del progress["checksum"]
    for layer in change.get("layers") or [] if isinstance(change.get("layers"), list) else []:
        layer |= {**progress["layers"][0], **layer}
    change = json.loads(json.dumps(change).replace("pipe", "layers-9"))
    (kept / "progress.json").write_text(_signed(progress | change))
    with pytest.raises(feta.FileError, match="must be as feta wrote it") as caught:
        prune(method="feta", checkpoint=kept)
    assert str(caught.value).isprintable()


def test_a_kill_while_the_folder_is_removed_costs_nothing(kept, monkeypatch):
    """The files of layers are gone and the progress is not: that would be a damaged checkpoint."""
    removed = []

    def killed(path, **how):
        removed.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(kept), "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        Checkpoint(kept, {}, Ranks(torch.device("cpu"))).remove()
    assert removed == ["progress.json"]


def test_a_link_to_a_folder_serves_as_one(kept, tmp_path):
    (tmp_path / "link").symlink_to(kept)
    whole, _ = prune(method="feta")
    assert same(whole, prune(method="feta", checkpoint=tmp_path / "link")[0])
    assert not kept.exists()
