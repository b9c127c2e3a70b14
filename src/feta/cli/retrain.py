"""feta retrain: a pruned network file in, one with the same zeros that has been trained on out."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import feta
from feta.cli.console import out, print_json, progress_bar, resolve_device
from feta.cli.options import DataDir, Device, Force, Json, Output, Records, Seed, Whole
from feta.cli.places import check_files, check_network_output, check_places, check_records
from feta.errors import ConfigError, check_range

CURE = "retrain takes files of `feta prune`, whose labels feta knows; in Python feta.retrain(model, (inputs, labels))"


def retrain(
    network: Path,
    /,
    *,
    goal: float | None = None,
    tolerance: float = 0.1,
    epochs: Whole = 30,
    patience: float | None = None,
    seconds: float | None = None,
    learning_rate: float = 0.01,
    batch_size: Whole = 32,
    weight_decay: float = 0.0,
    seed: Seed = 0,
    device: Device = None,
    output: Output = None,
    force: Force = False,
    data_dir: DataDir = None,
    records: Records = None,
    json: Json = False,
) -> None:
    """Train a pruned network on, its zeros held, until it is as accurate as before or the budget is spent.

    Args:
        network: A file made by `feta prune`.
        goal: Validation accuracy to come back to, in percent; by default the one before pruning.
        tolerance: Points below the goal that count as recovered.
        epochs: At most this many epochs over the training set.
        patience: Stop after this many epochs without a better validation accuracy.
        seconds: At most this many seconds, validation included.
        learning_rate: Learning rate of SGD with momentum 0.9; decays by 5 % per epoch.
        batch_size: Samples per step.
        weight_decay: Weight decay of SGD.
        seed: Seed for the order of the samples.
    """
    check_files(network, cure=CURE)
    check_network_output(output, force, network)
    from feta.cli.subject import accuracy, open_subject
    from feta.files.atomic import write_atomic

    steps: dict[str, Any] = {"learning_rate": learning_rate, "weight_decay": weight_decay, "batch_size": batch_size}
    ends: dict[str, Any] = {"max_epochs": epochs, "patience": patience, "seconds": seconds}
    check_range("", "in [0, 100]", **{"--goal": goal})
    settings = feta.Retraining(**steps, **ends, goal=goal, tolerance=tolerance)  # checked before data is read
    where = resolve_device(device)
    check_places(output, records)
    check_records(records, network, output)
    subject = open_subject(network, data_dir, cure=CURE)
    if subject.pruning is None and not feta.masks_of(subject.model):
        raise ConfigError(
            f"{network} must be pruned, got no zero weights to hold; prune it first: feta prune {network} -o FILE"
        )
    pruning, model = subject.pruning or {}, subject.model.to(where)
    if goal is None:
        goal = (pruning.get("dense_accuracy") or {}).get("validation")  # without a goal the whole budget is used
    rows, held_out = subject.rows("train", where), subject.rows("validation", where)
    work: dict[str, Any] = {"validation": held_out, "goal": goal, "seed": seed, "device": where}
    with progress_bar("retraining", epochs) as update:
        work["callback"] = lambda point: update(completed=point.epoch, note=f"validation {point.accuracy:.2f} %")
        result = feta.retrain(model, rows, settings, **work)
    scores = {"pruned": accuracy(model, subject, where), "retrained": accuracy(result.model, subject, where)}
    summary = {**result.report.to_dict(), "accuracy": scores}
    about = {key: summary[key] for key in ("epochs", "recovered", "goal", "tolerance", "stopped", "seed")}
    if output is not None:
        kept = {**pruning, "retraining": about}
        write_atomic(output, subject.encode(result.model.to("cpu"), kept, scores["retrained"]))
    config = {"network": network.name, **asdict(settings), "goal": summary["goal"], "seed": seed}
    if records is not None:
        subject.record(records, "retrain", config, seed, summary)
    if json:
        print_json(summary, output=output)
    else:
        _show(summary, output)


def _show(summary: Mapping[str, Any], output: Path | None) -> None:
    ends = {"saturated": "no better any more", "epochs": "all epochs used", "seconds": "time is up"}
    ended, goal = "trained without a goal", summary["goal"]
    if goal is not None:
        ended = "recovered" if summary["recovered"] else f"not recovered, {ends[summary['stopped']]}"
        ended += f" (goal {goal:.2f} % less {summary['tolerance']:g})"
    before, after = summary["accuracy"]["pruned"], summary["accuracy"]["retrained"]
    reached = f"validation {summary['start']:.2f} % → {after['validation']:.2f} %"
    out().print(f"{ended}: {reached}, {summary['epochs']:.2f} epochs, {summary['seconds']:.2f} s")
    out().print(f"test accuracy {before['test']:.2f} % → {after['test']:.2f} %")
    if output is not None:
        out().print(f"written to {output}")
