"""feta train, eval and info: networks as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from feta.cli.console import (
    download_bar,
    out,
    print_json,
    print_table,
    progress_bar,
    records_path,
    resolve_device,
    size,
)
from feta.cli.options import DataDir, Device, Json, Records, Whole, data_of


def train(
    preset: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="File to write (safetensors).")],
    data: Annotated[str | None, Parameter(help="Data set, instead of the preset's own.")] = None,
    seed: Whole = 0,
    max_epochs: Whole = 30,
    learning_rate: float = 0.01,
    device: Device = None,
    data_dir: DataDir = None,
    records: Records = None,
    json: Json = False,
) -> None:
    """Train a network as in the paper's Appendix C and save it.

    Parameters
    ----------
    preset
        A name (dense-mnist, conv-cifar, …) or, together with --data, a network in the paper's notation.
    seed
        Weights and order of the samples follow from it.
    max_epochs
        Training stops earlier when validation accuracy saturates. A killed run goes on where it stopped.
    learning_rate
        Decays by 5 % per epoch.
    """
    from feta.files.atomic import check_writable
    from feta_lab import data as datasets
    from feta_lab import networks, store
    from feta_lab.records import append, record
    from feta_lab.training import Training
    from feta_lab.training import train as run_training

    # Tokens of the notation start with a digit or with MP; anything else is meant as a name.
    is_notation = data is not None and not preset[:1].islower()
    known = None if is_notation else networks.preset(preset)
    specification = known.specification if known else preset
    settings = Training(learning_rate=learning_rate, max_epochs=max_epochs, seed=seed)
    record_file = records_path(records, output)
    for path in (output, record_file):
        check_writable(path)
    with download_bar() as advance:
        loaded = datasets.load(data or (known.data if known else ""), data_dir, progress=advance)
    partial = output.with_name(output.name + ".partial")
    with progress_bar() as bar:
        task = bar.add_task(f"training {preset}", total=max_epochs, note="")

        def show(event: Any) -> None:
            note = f"epoch {event.epoch}: loss {event.loss:.4f}, validation {event.validation:.2f} %"
            bar.update(task, completed=event.epoch, note=note)

        network = run_training(
            specification,
            loaded,
            settings,
            preset=known.name if known else None,
            device=resolve_device(device),
            checkpoint=partial,
            callback=show,
        )
    n_bytes = store.save(network, output)
    partial.unlink(missing_ok=True)
    result = {
        "network": specification,
        "data": loaded.label,
        "epochs": network.info.epochs,
        "accuracy": network.info.accuracy,
        "file_bytes": n_bytes,
    }
    config = {"preset": preset, "data": loaded.name, "max_epochs": max_epochs, "learning_rate": learning_rate}
    append(record_file, record("train", config, seed, result))
    if json:
        print_json({**result, "file": str(output)})
        return
    scores = network.info.accuracy
    accuracy = f"{scores['test']:.2f} % test, {scores['validation']:.2f} % validation"
    out().print(f"{specification} on {loaded.label}: {accuracy}, {network.info.epochs} epochs")
    out().print(f"written to {output} ({size(n_bytes)})")


def evaluate(
    network: Path, /, *, device: Device = None, data_dir: DataDir = None, json: Json = False
) -> None:
    """Measure a network's accuracy on the validation and the test half of its data set.

    Parameters
    ----------
    network
        A file made by `feta train` or `feta prune`.
    """
    from feta_lab import store
    from feta_lab.judge import judge

    net = store.load(network)
    loaded = data_of(net, data_dir)
    scores = judge(net.model, loaded, resolve_device(device))
    if json:
        print_json({"network": net.info.specification, "data": loaded.label, "accuracy": scores})
        return
    out().print(
        f"{network}: {scores['test']:.2f} % test, {scores['validation']:.2f} % validation ({loaded.label})"
    )


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
        print_json(
            {"file": str(file), "file_bytes": file.stat().st_size, "network": about, "tensors": layers}
        )
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
            f"pruned by: {pruning['method']} to {pruning.get('target_sparsity')}, "
            f"options {pruning.get('options')}"
        )
    refined, retrained = (pruning.get(stage) for stage in ("refinement", "retraining"))
    if refined:
        yield f"refined: {refined.get('passes')} passes, loss {refined.get('loss')}"
    if retrained:
        goal = retrained.get("goal")
        aim = "no goal" if goal is None else f"goal {goal} less {retrained.get('tolerance')}"
        yield f"retrained: {retrained.get('epochs')} epochs, stopped: {retrained.get('stopped')} ({aim})"
