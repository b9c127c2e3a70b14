"""feta shrink: a network rebuilt with fewer neurons and channels, and written so that it can be loaded again.

A smaller network has other shapes than the class that made it. One in the paper's notation is written with its new
widths; any other as a program of torch.export or ONNX, which need no code of the user's.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from feta.cli.console import out, print_json, print_table, progress_bar, resolve_device, size
from feta.cli.options import DataDir, Device, Force, Json, MaybeWhole, Place, Whole
from feta.cli.own_options import OwnOptions, StoreOptions
from feta.cli.places import check_network, check_output
from feta.errors import ConfigError, FileError, check_range
from feta.files.plain import object_from_json, shortened, tamed, text_of

if TYPE_CHECKING:
    from feta.cli.source import Source
    from feta.cli.subject import Subject
    from feta.structured.shrink import ShrinkResult

LOADING = {
    ".pt2": "torch.export.load({!r}).module()",
    ".onnx": "onnxruntime.InferenceSession({!r})",
    ".safetensors": "feta.load({!r}).model",
}


def shrink(
    network: str,
    /,
    *,
    share: float | None = None,
    keep: Path | None = None,
    effort: Literal["fast", "default", "best"] = "default",
    seconds: float | None = None,
    allocation: Literal["error", "uniform"] | None = None,
    layers: Annotated[list[str] | None, Parameter(negative="")] = None,
    samples: MaybeWhole = None,
    batch_size: MaybeWhole = None,
    seed: Whole = 0,
    device: Device = None,
    output: Place = None,
    force: Force = False,
    data_dir: DataDir = None,
    json: Json = False,
    own: OwnOptions | None = None,
) -> None:
    """Rebuild a network with fewer neurons and channels, refitted to its original outputs; no labels are needed.

    Args:
        network: A file made by `feta train` or `feta prune`, module:factory, or a Hugging Face folder.
        share: Share of the multiply-adds that goes, in [0, 1); by default 0.5.
        keep: Instead of a share: JSON file with the outputs that stay, {"fc1": [0, 3, 4]}; what --json prints, too.
        effort: fast: layer by layer alone; default, best: then the whole network is fitted to the original's outputs.
        seconds: A time budget; the layers are always finished, the fit is cut to what is left.
        allocation: uniform: the same share of every layer; error: from where the outputs suffer least; by default
            both are built, and held-out samples decide.
        layers: Name or pattern of the layers that may lose outputs, once per pattern; by default all that can.
        samples: Calibration samples, drawn at random; by default all, of images 2000 and of text 256 at the most.
        batch_size: Samples that run at once; by default as many as run well.
        seed: Seed for the choice of samples.
        output: File to write; by default nothing is saved. What its name ends in says how: .pt2, torch.export's
            program; .onnx; and for a file of `feta train` .safetensors, which every command of feta reads.
    """
    own = own or OwnOptions()
    check_network(network, own)
    check_output(output, force, network, *own.files)
    from feta.cli.source import Source
    from feta.cli.subject import accuracy
    from feta.sparsity import check_share

    check_range("", ">= 1", **{"--samples": samples, "--batch-size": batch_size})
    if share is not None and keep is not None:
        raise ConfigError(f"--share must not go with --keep, which says what stays, got {share:g} and {keep}")
    given = check_share(0.5 if share is None else share, "--share")
    where, stays, source = resolve_device(device), _read(keep), Source(network, own, "shrink")
    _check(source, output)
    subject = source.open(data_dir, samples=samples, seed=seed, batch_size=batch_size)
    work: dict[str, Any] = {"effort": effort, "seconds": seconds, "allocation": allocation, "layers": layers}
    work |= {"keep": stays, "seed": seed, "device": where}
    result = _shrunk(subject, given, work, samples, batch_size)
    scores = None
    if subject.data is not None:
        models = {"dense": copy.deepcopy(subject.model), "shrunk": result.model}
        scores = {name: accuracy(model, subject, where) for name, model in models.items()}
    model = result.model.cpu()
    summary = {**result.report.to_dict(), "kept": result.kept, "accuracy": scores}
    written = None if output is None else _write(output, subject, model, summary)
    summary["weights"] = source.weights
    summary["file_bytes"] = {"dense": source.bytes_before(subject.model), "shrunk": written}
    if json:
        print_json(summary, output=output)
    else:
        _show(result, summary, output, source.weights if source.is_code and own.weights is None else None)


def _check(source: "Source", output: Path | None) -> None:
    """Everything that can be refused before any work."""
    from feta.structured.groups import torch_pruning

    source.check(None, None, StoreOptions())
    if source.is_own and source.options.data is None:
        raise ConfigError(f"--data must be given to shrink {source.name}, got none")
    if output is not None:
        _check_output(source, output)
    torch_pruning()


def _check_output(source: "Source", output: Path) -> None:
    from feta.files.atomic import check_writable

    forms = [".pt2", ".onnx", *([] if source.is_own else [".safetensors"])]
    if output.suffix not in forms:
        why = ", as the class of a smaller model has other shapes" if output.suffix == ".safetensors" else ""
        raise ConfigError(f"--output must end in {' or '.join(forms)} for {source.name}{why}; got {output}")
    check_writable(output)


def _read(keep: Path | None) -> dict[str, list[int]] | None:
    """The outputs that stay, by layer. Raises FileError."""
    if keep is None:
        return None
    try:
        found = object_from_json(text_of(keep))
        found = found.get("kept", found)
        lists = found.values() if isinstance(found, dict) else [None]
        if not found or not all(isinstance(one, list) and all(type(n) is int for n in one) for one in lists):
            raise ValueError(shortened(found))
    except OSError as error:
        raise FileError(f"cannot read {keep}: {error.strerror or error}") from error
    except ValueError as error:
        such = '{"fc1": [0, 3, 4]}'
        raise FileError(f"--keep must be a JSON file such as {such}, got {tamed(error)} in {keep}") from error
    return dict(found)


def _shrunk(
    subject: "Subject", share: float, work: dict[str, Any], samples: int | None, batch_size: int | None
) -> "ShrinkResult":
    from feta.cli.subject import working
    from feta.engine.settings import Settings
    from feta.structured.shrink import shrink

    rows: Any = subject.rows("train", work["device"])[0] if subject.data is not None else subject.inputs
    settings = Settings(n_samples=samples, batch_size=batch_size or Settings.batch_size)
    with progress_bar("shrinking"), working(work["device"]):
        return shrink(subject.model, rows, share, settings=settings, **work)


def _write(output: Path, subject: "Subject", model: Any, summary: Mapping[str, Any]) -> int:
    """The file's bytes."""
    from feta.files.atomic import write_atomic
    from feta.files.exports import export

    if output.suffix == ".safetensors":
        removed = 1 - summary["after"]["multiply_adds"] / summary["before"]["multiply_adds"]
        kept: dict[str, Any] = {
            "shrunk": {"from": subject.specification, "removed": removed, "seed": summary["seed"]}
        }
        kept["dense_accuracy"] = summary["accuracy"]["dense"]  # what retraining has to come back to
        content = subject.encode(model, kept, summary["accuracy"]["shrunk"])
        write_atomic(output, content)
        return len(content)
    example = subject.inputs[0] if subject.inputs is not None else subject.rows("train", "cpu")[0][:2]
    form = "onnx" if output.suffix == ".onnx" else "torch_export"
    return export(model, example, **{form: output})[0].bytes


def _show(result: "ShrinkResult", summary: Mapping[str, Any], output: Path | None, weights: str | None) -> None:
    report = result.report
    heading, *lines = report.headline()
    print_table(heading, ("layer", "outputs", "left"), list(report.groups))
    for line in lines:
        out().print(line)
    if (scores := summary["accuracy"]) is not None:
        out().print(f"test accuracy {scores['dense']['test']:.2f} % → {scores['shrunk']['test']:.2f} %")
    if weights is not None:
        out().print(f"weights: {weights}; --weights FILE for others")
    if output is not None:
        before, after = summary["file_bytes"].values()
        out().print(f"written to {output}: {size(before)} → {size(after)}")
        out().print(f"load it with: {LOADING[output.suffix].format(str(output))}")
