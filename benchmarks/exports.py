"""The forms a network leaves feta in: bytes of their files, and milliseconds of running them side by side.

    PYTHONPATH=src python benchmarks/exports.py --out results/exports/records.jsonl  # the demo's network, made now
    PYTHONPATH=src python benchmarks/exports.py --network FILE

Forms take turns, so that all meet the same machine; a time is the least of --repeats rounds. One thread. Needs onnx,
onnxscript and onnxruntime.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from origin import origin
from torch import Tensor

import feta
from feta.files.exports import export
from feta_lab import data, networks
from feta_lab.records import Record, append, record
from feta_lab.training import Training, train

BATCHES = (1, 16, 256)
Forms = dict[str, tuple[int, Callable[[Tensor], object]]]  # bytes, and how it is run


def demo_network() -> torch.nn.Module:
    """What `feta demo` works on, pruned to 90 %."""
    loaded, preset = data.load("mnist-mini"), networks.preset("dense-mnist")
    trained = train(preset.specification, loaded, Training(max_epochs=3), preset=preset.name)
    images = loaded.normalisation.apply(loaded.train.images[:2000], "cpu")
    return feta.prune(trained.model, images, 0.9, effort="fast").model


def runners(model: torch.nn.Module, example: Tensor, folder: Path) -> Forms:
    """By form: the bytes of its file, and how it is run."""
    import onnxruntime  # the pages are filled in without it

    paths = {"onnx": folder / "a.onnx", "torch_export": folder / "a.pt2", "safetensors": folder / "a.safetensors"}
    sizes = {found.form: found.bytes for found in export(model, example, **paths)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(paths["onnx"]), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    exported = torch.export.load(paths["torch_export"]).module()
    return {
        "plain safetensors, run by torch": (sizes["safetensors"], model),
        "torch.export": (sizes["torch_export"], exported),
        "ONNX, run by onnxruntime": (sizes["onnx"], lambda x: session.run(None, {name: x.numpy()})),
    }


@torch.no_grad()
def least_milliseconds(forms: Forms, x: Tensor, repeats: int) -> list[float]:
    times: list[list[float]] = [[] for _ in forms]
    for _ in range(repeats):
        for (_, run), spent in zip(forms.values(), times, strict=True):
            started = time.perf_counter()
            run(x)
            spent.append(1000 * (time.perf_counter() - started))
    return [min(spent) for spent in times]


def table(records: Sequence[Record]) -> str:
    """A line for each form; what is read back as a plain network runs as that does."""
    found = records[-1]["metrics"]
    lines = [f"| form | kB | {' | '.join(f'ms, batch {batch}' for batch in BATCHES)} |", f"| --- |{' ---: |' * 4}"]
    for form, size in found["bytes"].items():
        times = [f"{value:.3f}" for value in found["ms"].get(form, [])] or ["as below"] * len(BATCHES)
        lines.append(f"| {form} | {size / 1000:.1f} | {' | '.join(times)} |")
    return "\n".join([*lines, "", origin(records[-1:])])


def main(words: list[str]) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--network", type=Path, help="a file of `feta train` or `feta prune`")
    ask.add_argument("--repeats", type=int, default=200)
    ask.add_argument("--out", type=Path, help="a file of records, appended to")
    given = ask.parse_args(words)
    torch.set_num_threads(1)
    network = feta.load(given.network) if given.network else None
    model, shape = (network.model, network.info.shape) if network else (demo_network(), (1, 28, 28))
    with tempfile.TemporaryDirectory() as folder:
        own = feta.save(model.eval(), Path(folder) / "feta.safetensors")
        forms = runners(model, torch.randn(2, *shape), Path(folder))
        columns = [least_milliseconds(forms, torch.randn(batch, *shape), given.repeats) for batch in BATCHES]
    sizes = {"feta's own file, run by torch": own} | {form: size for form, (size, _) in forms.items()}
    times = {form: [column[index] for column in columns] for index, form in enumerate(forms)}
    called = str(given.network) if given.network else "demo"
    found = record("exports", {"network": called, "repeats": given.repeats}, 0, {"bytes": sizes, "ms": times})
    if given.out:
        append(given.out, found)
    print(table([found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
