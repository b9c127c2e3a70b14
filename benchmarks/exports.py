"""The forms a network leaves feta in: bytes of their files, and milliseconds of running them side by side.

    PYTHONPATH=src python benchmarks/exports.py                      # the demo's network, trained and pruned now
    PYTHONPATH=src python benchmarks/exports.py --network FILE

Forms take turns, so that all meet the same machine; a time is the least of --repeats rounds. One thread. Needs onnx,
onnxscript and onnxruntime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

import feta
from feta.files.exports import export
from feta_lab import data, networks
from feta_lab.training import Training, train

BATCHES = (1, 16, 256)


def demo_network() -> tuple[torch.nn.Module, int]:
    """What `feta demo` works on, pruned to 90 %, and the bytes of feta's own file."""
    loaded = data.load("mnist-mini")
    preset = networks.preset("dense-mnist")
    trained = train(preset.specification, loaded, Training(max_epochs=3), preset=preset.name)
    images = loaded.normalisation.apply(loaded.train.images[:2000], "cpu")
    return feta.prune(trained.model, images, 0.9, effort="fast").model, 0


def runners(model: torch.nn.Module, example: Tensor, folder: Path) -> dict[str, tuple[int, Callable[[Tensor], object]]]:
    """By form: the bytes of its file, and how it is run."""
    paths = {form: folder / form for form in ("onnx", "torch_export", "safetensors")}
    sizes = {found.form: found.bytes for found in export(model, example, **paths)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(paths["onnx"]), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    exported = torch.export.load(paths["torch_export"]).module()
    return {
        "feta's file, run by torch": (feta.save(model, folder / "feta.safetensors"), model),
        "safetensors, run by torch": (sizes["safetensors"], model),
        "torch.export": (sizes["torch_export"], exported),
        "ONNX, run by onnxruntime": (sizes["onnx"], lambda x: session.run(None, {name: x.numpy()})),
    }


@torch.no_grad()
def least_milliseconds(forms: dict[str, tuple[int, Callable[[Tensor], object]]], x: Tensor, repeats: int) -> list[float]:
    times: list[list[float]] = [[] for _ in forms]
    for _ in range(repeats):
        for (_, run), spent in zip(forms.values(), times, strict=True):
            started = time.perf_counter()
            run(x)
            spent.append(1000 * (time.perf_counter() - started))
    return [min(spent) for spent in times]


def main(words: list[str]) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--network", type=Path, help="a file of `feta train` or `feta prune`")
    ask.add_argument("--repeats", type=int, default=200)
    given = ask.parse_args(words)
    torch.set_num_threads(1)
    model = feta.load(given.network).model if given.network else demo_network()[0]
    shape = (1, 28, 28) if given.network is None else tuple(feta.load(given.network).info.shape)
    with tempfile.TemporaryDirectory() as folder:
        forms = runners(model.eval(), torch.randn(2, *shape), Path(folder))
        columns = [least_milliseconds(forms, torch.randn(batch, *shape), given.repeats) for batch in BATCHES]
    print(f"| form | kB | {' | '.join(f'ms, batch {batch}' for batch in BATCHES)} |\n| --- |{' ---: |' * 4}")
    for index, (form, (size, _)) in enumerate(forms.items()):
        print(f"| {form} | {size / 1000:.1f} | {' | '.join(f'{column[index]:.3f}' for column in columns)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
