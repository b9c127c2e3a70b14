"""feta prune: a trained network file in, a pruned one out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from feta.cli.console import (
    err,
    out,
    print_json,
    print_table,
    progress_bar,
    records_path,
    resolve_device,
    size,
)
from feta.cli.method_options import MethodOptions, method_options
from feta.cli.options import DataDir, Device, Json, MaybeWhole, Output, Records, Whole, check_places
from feta.errors import ConfigError, DataError


def prune(
    network: Path,
    /,
    *,
    method: str = "feta",
    sparsity: str = "0.9",
    layers: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="Name or pattern of the layers to prune, once per pattern; by default the hidden dense ones.",
        ),
    ] = None,
    samples: Annotated[MaybeWhole, Parameter(help="Calibration samples; by default the whole training set.")] = None,
    mode: Literal["cascade", "parallel"] = "cascade",
    allocation: str = "uniform",
    compensate: Annotated[bool, Parameter(negative="")] = False,
    refine: Annotated[bool, Parameter(negative="")] = False,
    refine_passes: Annotated[
        MaybeWhole, Parameter(help="Passes of --refine over the samples; by default 3.", show_default=False)
    ] = None,
    seed: Whole = 0,
    device: Device = None,
    output: Output = None,
    data_dir: DataDir = None,
    records: Records = None,
    json: Json = False,
    options: MethodOptions | None = None,
) -> None:
    """Prune a network and report what that did to its accuracy and its size.

    Parameters
    ----------
    network
        A file made by `feta train`.
    method
        A name out of `feta methods`.
    sparsity
        Share of zero weights in [0, 1), or per layer: fc1=0.95,fc2=0.8.
    mode
        cascade: each layer is fitted to its inputs in the network pruned so far; parallel: to the original's.
    allocation
        How the budget is shared over layers: uniform, global-magnitude (one threshold for all), erk (by the
        layers' shapes), sensitivity (by what pruning each does to the outputs), bound (by the theorems).
    compensate
        Refit every unpruned layer that follows a pruned one to its original outputs.
    refine
        Fit all surviving weights to the original network's outputs at the end; needs no labels.
    seed
        For the choice of samples and methods that draw at random.
    """
    from feta.cli.subject import open_subject
    from feta.cli.work import prune_subject
    from feta.engine.settings import Settings
    from feta.files.atomic import write_atomic
    from feta.pruners import make

    given = method_options(method, options)
    pruner = make(method, given)
    target = parse_sparsity(sparsity)
    where = resolve_device(device)
    if samples is not None and samples < 1:
        raise ConfigError(f"--samples must be >= 1, got {samples}")
    refinement = _refinement(refine, refine_passes)
    record_file = records_path(records, output)
    check_places(output, network, record_file)
    try:
        subject = open_subject(network, data_dir)
    except DataError as error:
        if pruner.needs.passes != "none" or refine:
            raise
        err().print(f"feta: warning: accuracy is not measured: {error}")
        subject = open_subject(network, with_data=False)
    with progress_bar() as bar:
        task = bar.add_task(f"pruning by {method}", total=None, note="")

        def show(event: Any) -> None:
            done = event.index + (event.kind == "done")
            bar.update(task, total=event.total, completed=done, note=f"{event.layer} {event.phase}")

        model, summary, kept = prune_subject(
            subject,
            target,
            method,
            options=given,
            layers=layers,
            allocation=allocation,
            compensate=compensate,
            refine=refinement,
            seed=seed,
            device=where,
            settings=Settings(n_samples=samples, mode=mode),
            callback=show,
        )
    content = subject.encode(model, kept, (summary["accuracy"] or {}).get("pruned", {}))
    summary["file_bytes"] = {"dense": network.stat().st_size, "pruned": len(content)}
    if output is not None:
        write_atomic(output, content)
    config = {
        "network": network.name,
        "method": method,
        "sparsity": sparsity,
        "layers": layers,
        "samples": samples,
        "mode": mode,
        "allocation": allocation,
        "compensate": compensate,
        "refine": refine,
        "options": summary["options"],
    }
    subject.record(record_file, "prune", config, seed, summary)
    if json:
        print_json(summary)
    else:
        _show(summary, output)


def parse_sparsity(text: str) -> float | dict[str, float]:
    """0.9, or fc1=0.95,fc2=0.8."""

    def number(value: str, where: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise ConfigError(f"{where} must be a number in [0, 1), got '{value}'") from None

    from feta.sparsity import check_share

    if "=" not in text:
        return check_share(number(text, "--sparsity"), "--sparsity")
    pairs = [part.partition("=") for part in text.split(",")]
    return {
        name.strip(): check_share(number(value, f"--sparsity {name}"), f"--sparsity {name}")
        for name, _, value in pairs
    }


def _refinement(refine: bool, passes: int | None) -> Any:
    """False, or how to refine."""
    from feta import Refinement

    if not refine:
        if passes is not None:
            raise ConfigError(f"--refine-passes must go with --refine, got {passes} without")
        return False
    return Refinement() if passes is None else Refinement(passes=passes)


def _show(summary: Mapping[str, Any], output: Path | None) -> None:
    from feta.report import HEADER, layer_row

    title = f"{summary['method']}, {100 * summary['sparsity']:.2f} % zeros"
    print_table(title, HEADER, [layer_row(layer) for layer in summary["layers"]])
    refined = summary["refinement"]
    if refined is not None:
        fell = f"{refined['loss']} of the outputs {refined['loss_before']:.3g} → {refined['loss_after']:.3g}"
        out().print(f"refined: {fell}, {refined['passes']:.2g} passes, {refined['seconds']:.2f} s")
    allocation = summary["allocation"]
    if allocation["name"] not in ("uniform", "per-layer"):
        out().print(f"budget shared by {allocation['name']} in {allocation['seconds']:.2f} s")
    accuracy, files = summary["accuracy"], summary["file_bytes"]
    if accuracy is not None:
        dense, pruned = accuracy["dense"]["test"], accuracy["pruned"]["test"]
        out().print(f"test accuracy {dense:.2f} % → {pruned:.2f} %")
    smaller = f"{files['dense'] / files['pruned']:.1f}× smaller"
    out().print(f"file {size(files['dense'])} → {size(files['pruned'])} ({smaller})")
    if output is not None:
        out().print(f"written to {output}")
