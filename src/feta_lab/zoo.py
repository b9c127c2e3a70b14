"""The trained networks that experiments share: each is trained once, kept as a file, and found again.

python -m feta_lab.zoo FOLDER --presets dense-mnist conv-mnist --seeds 3 --jobs 6
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.devices import default_device
from feta_lab.training import Training, train


def network_path(folder: Path, preset: str, seed: int, data: str | None = None) -> Path:
    """Where a network is kept; one trained on another data set than the preset's own has a name of its own."""
    other = "" if data in (None, networks.preset(preset).data) else f"-{data}"
    return folder / f"{preset}{other}-seed{seed}.safetensors"


def trained(
    preset: str,
    seed: int,
    folder: Path,
    *,
    data: str | None = None,
    data_dir: Path | None = None,
    device: str = "cpu",
) -> store.Network:
    """The network of a preset and seed, from its file or trained now."""
    path = network_path(folder, preset, seed, data)
    if path.exists():
        return store.load(path)
    known = networks.preset(preset)
    loaded = datasets.load(data or known.data, data_dir)
    partial = path.with_name(path.name + ".partial")
    network = train(
        known.specification, loaded, Training(seed=seed), preset=preset, device=device, checkpoint=partial
    )
    store.save(network, path)
    partial.unlink(missing_ok=True)
    return network


def train_missing(
    presets: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    data: str | None = None,
    data_dir: Path | None,
    device: str,
    jobs: int,
) -> Iterator[str]:
    """Train what is not there yet, several at once; a line on each as it is done."""
    cells = [(p, s) for p in presets for s in seeds if not network_path(folder, p, s, data).exists()]
    # Spawned, not forked: a forked process cannot use CUDA, and threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_train_one, p, s, folder, data, data_dir, device): (p, s) for p, s in cells}
        for done in as_completed(waiting):
            preset, seed = waiting[done]
            seconds, epochs, test = done.result()
            yield f"{preset} seed {seed}: {test:.2f} % test, {epochs} epochs, {seconds:.1f} s"


def _train_one(
    preset: str, seed: int, folder: Path, data: str | None, data_dir: Path | None, device: str
) -> tuple[float, int, float]:
    started = time.perf_counter()
    torch.set_num_threads(1)
    info = trained(preset, seed, folder, data=data, data_dir=data_dir, device=device).info
    return time.perf_counter() - started, info.epochs, info.accuracy["test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--presets", nargs="+", default=list(networks.PRESETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    lines = train_missing(
        given.presets,
        range(given.seeds),
        given.folder,
        data_dir=given.data_dir,
        device=given.device,
        jobs=given.jobs,
    )
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
