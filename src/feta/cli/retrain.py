"""feta retrain: a pruned network file in, one of the same zeros that has been trained on out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from feta.cli.console import (
    out,
    print_json,
    progress_bar,
    records_path,
    resolve_device,
)
from feta.cli.options import DataDir, Device, Json, Output, Records, Whole, check_places
from feta.errors import ConfigError


def retrain(
    network: Path,
    /,
    *,
    goal: Annotated[
        float | None,
        Parameter(help="Validation accuracy to come back to, in percent; by default that before pruning."),
    ] = None,
    tolerance: float = 0.1,
    epochs: Whole = 30,
    patience: Annotated[
        float | None, Parameter(help="Epochs without a better validation accuracy after which to stop.")
    ] = None,
    seconds: Annotated[float | None, Parameter(help="Time budget beside --epochs.")] = None,
    learning_rate: float = 0.01,
    batch_size: Whole = 32,
    weight_decay: float = 0.0,
    seed: Whole = 0,
    device: Device = None,
    output: Output = None,
    data_dir: DataDir = None,
    records: Records = None,
    json: Json = False,
) -> None:
    """Train a pruned network on, its zeros held, until it is as accurate as before or the budget is spent.

    Parameters
    ----------
    network
        A file made by `feta prune`.
    tolerance
        Points under the goal that count as recovered.
    epochs
        The most epochs over the training set.
    learning_rate
        Of SGD with momentum 0.9; decays by 5 % per epoch.
    seed
        For the order of the samples.
    """
    from feta import Retraining
    from feta.cli.subject import open_subject
    from feta.cli.work import retrain_subject
    from feta.files.atomic import write_atomic
    from feta.masks import masks_of

    numbers: dict[str, Any] = {
        "tolerance": tolerance,
        "max_epochs": epochs,
        "patience": patience,
        "seconds": seconds,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
    }
    settings = Retraining(goal=goal, **numbers)  # looked at before data is read
    where = resolve_device(device)
    record_file = records_path(records, output)
    check_places(output, network, record_file)
    subject = open_subject(network, data_dir)
    if subject.pruning is None and not masks_of(subject.model):
        raise ConfigError(
            f"{network} must be pruned, got no zero weights to hold; prune it first: feta prune {network} -o FILE"
        )
    with progress_bar() as bar:
        task = bar.add_task("retraining", total=epochs, note="")

        def show(point: Any) -> None:
            bar.update(task, completed=point.epoch, note=f"validation {point.accuracy:.2f} %")

        model, summary, kept = retrain_subject(
            subject, settings=settings, goal=goal, seed=seed, device=where, callback=show
        )
    if output is not None:
        write_atomic(output, subject.encode(model, kept, summary["accuracy"]["retrained"]))
    config = {"network": network.name, "goal": summary["goal"], **numbers, "seed": seed}
    subject.record(record_file, "retrain", config, seed, summary)
    if json:
        print_json(summary)
    else:
        _show(summary, output)


def _show(summary: Mapping[str, Any], output: Path | None) -> None:
    words = {
        "recovered": "recovered",
        "saturated": "not recovered, no better any more",
        "epochs": "not recovered, all epochs used",
        "seconds": "not recovered, time is up",
    }
    ended = words[summary["stopped"]] if summary["goal"] is not None else "trained without a goal"
    if summary["goal"] is not None:
        ended += f" (goal {summary['goal']:.2f} % less {summary['tolerance']:g})"
    cost = f"{summary['epochs']:.2f} epochs, {summary['seconds']:.2f} s"
    reached = summary["accuracy"]["retrained"]["validation"]
    out().print(f"{ended}: validation {summary['start']:.2f} % → {reached:.2f} %, {cost}")
    before, after = (summary["accuracy"][key]["test"] for key in ("pruned", "retrained"))
    out().print(f"test accuracy {before:.2f} % → {after:.2f} %")
    if output is not None:
        out().print(f"written to {output}")
