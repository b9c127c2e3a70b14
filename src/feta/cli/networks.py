"""feta eval and info: what a network file holds and how good it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feta.cli.console import out, print_json, print_table, resolve_device, size
from feta.cli.options import DataDir, Device, Json


def evaluate(network: Path, /, *, device: Device = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Measure a network's accuracy on the validation and the test half of its data set.

    Parameters
    ----------
    network
        A file made by `feta train` or `feta prune`.
    """
    from feta.cli.subject import accuracy, open_subject

    where = resolve_device(device)
    subject = open_subject(network, data_dir)
    scores = accuracy(subject.model, subject, where)
    if json:
        print_json({"network": subject.specification, "data": subject.data, "accuracy": scores})
        return
    percent = f"{scores['test']:.2f} % test, {scores['validation']:.2f} % validation"
    out().print(f"{network}: {percent} ({subject.data})")


def info(file: Path, /, *, json: Json = False) -> None:
    """Describe a network file: where it comes from, its layers, what each takes on disk.

    Parameters
    ----------
    file
        A safetensors file, dense or pruned.
    """
    from feta.files import sparse_file
    from feta.sparsity import measured

    tensors, metadata = sparse_file.read(file)
    stored = sparse_file.stored_bytes(file)
    layers: list[dict[str, Any]] = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "nonzeros": int((tensor != 0).sum()),
            "sparsity": measured(tensor),
            "bytes": stored[name],
            "dense_bytes": tensor.numel() * tensor.element_size(),
        }
        for name, tensor in tensors.items()
    ]
    about = metadata.get("network") or {}
    if json:
        print_json({"file": str(file), "file_bytes": file.stat().st_size, "network": about, "tensors": layers})
        return
    for key in ("specification", "data", "preset", "seed", "epochs", "accuracy"):
        if key in about:
            out().print(f"{key}: {about[key]}")
    for line in _made(about.get("pruning") or {}):
        out().print(line)
    rows = [
        (
            r["name"],
            "×".join(map(str, r["shape"])),
            r["nonzeros"],
            f"{100 * r['sparsity']:.2f} %",
            size(r["bytes"]),
            f"{r['dense_bytes'] / max(r['bytes'], 1):.1f}×",
        )
        for r in layers
    ]
    title = f"{file} ({size(file.stat().st_size)})"
    print_table(title, ("tensor", "shape", "non-zeros", "sparsity", "on disk", "smaller by"), rows)


def _made(pruning: Mapping[str, Any]) -> Iterator[str]:
    """What was done to a network since it was trained; files may hold any of it or none."""
    if "method" in pruning:
        yield (
            f"pruned by: {pruning['method']} to {pruning.get('target_sparsity')}, options {pruning.get('options')}"
        )
    refined, retrained = (pruning.get(stage) for stage in ("refinement", "retraining"))
    if refined:
        yield f"refined: {refined.get('passes')} passes, loss {refined.get('loss')}"
    if retrained:
        goal = retrained.get("goal")
        aim = "no goal" if goal is None else f"goal {goal} less {retrained.get('tolerance')}"
        yield f"retrained: {retrained.get('epochs')} epochs, stopped: {retrained.get('stopped')} ({aim})"
