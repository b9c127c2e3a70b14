"""feta shrink: a network rebuilt with fewer neurons and channels, and written so that it can be loaded again.

A smaller network has other shapes than the class that made it. One in the paper's notation is written with its new
widths; any other as a program of torch.export or ONNX, which need no code of the user's.
"""

import copy
import json as json_format
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from feta.cli.console import err, out, print_json, print_table, progress_bar, resolve_device, size
from feta.cli.options import DataDir, Device, Force, Json, MaybeWhole, Output, Whole
from feta.cli.own_options import OwnOptions
from feta.cli.places import check_network, check_output
from feta.errors import ConfigError, FileError, ModelError

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
    output: Output = None,
    force: Force = False,
    data_dir: DataDir = None,
    json: Json = False,
    own: OwnOptions | None = None,
) -> None:
    """Rebuild a network with fewer neurons and channels, refitted to its original outputs; no labels are needed.

    Args:
        network: A file made by `feta train` or `feta prune`, module:factory, or a Hugging Face folder.
        share: Of the multiply-adds that goes, in [0, 1); by default 0.5.
        keep: Instead of a share: JSON file with the outputs that stay, {"fc1": [0, 3, 4]}; what --json prints, too.
        effort: fast: layer by layer alone; default, best: then the whole network is fitted to the original's outputs.
        seconds: A time budget; the layers are always finished, the fit is cut to what is left.
        allocation: uniform: the same share of every layer; error: from where the outputs suffer least; by default
            both are built, and held-out samples decide.
        layers: Name or pattern of the layers that may lose outputs, once per pattern; by default all that can.
        samples: Calibration samples, drawn at random; by default all, of images 2000 and of text 256 at the most.
        batch_size: Samples that run at once; by default as many as run well.
        seed: Seed for the choice of samples.
        output: File to write. What its name ends in says how: .pt2, torch.export's program; .onnx; and for a file of
            `feta train` .safetensors, which every command of feta reads.
    """
    check_network(network, own)
    check_output(output, force, network)
    from feta.cli.source import Source
    from feta.cli.subject import accuracy
    from feta.sparsity import check_share

    for name, value in (("samples", samples), ("batch-size", batch_size)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be >= 1, got {value}")
    if share is not None and keep is not None:
        raise ConfigError(f"--share must not go with --keep, which says what stays, got {share:g} and {keep}")
    given = check_share(0.5 if share is None else share, "--share")
    where, stays, source = resolve_device(device), _read(keep), Source(network, own or OwnOptions())
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
    summary["file_bytes"] = {"dense": source.bytes_before(subject.model), "shrunk": written}
    if json:
        print_json(summary)
    else:
        _show(result, summary, output)


def _check(source: "Source", output: Path | None) -> None:
    """Everything that can be refused before any work."""
    from feta.cli import huggingface
    from feta.cli.own_data import check_options
    from feta.files.atomic import check_writable
    from feta.structured.groups import torch_pruning

    torch_pruning()
    source.check_given()
    inputs = [source.path, source.options.weights]
    if source.is_own:
        inputs.append(check_options(source.options))
        if source.options.data is None:
            raise ConfigError(f"--data must be given to shrink {source.name}, got none")
    if source.is_folder:
        huggingface.check_folder(source.path)
    if output is None:
        return
    forms = [".pt2", ".onnx", *([] if source.is_own else [".safetensors"])]
    if output.suffix not in forms:
        why = ", as the class of a smaller model has other shapes" if output.suffix == ".safetensors" else ""
        raise ConfigError(f"--output must end in {' or '.join(forms)} for {source.name}{why}; got {output}")
    if any(path.resolve() == output.resolve() for path in inputs if path):
        raise ConfigError(f"--output must differ from the input, got {output} for both")
    check_writable(output)


def _read(keep: Path | None) -> dict[str, list[int]] | None:
    """The outputs that stay, by layer. Raises FileError or ConfigError."""
    if keep is None:
        return None
    try:
        found = json_format.loads(keep.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {keep}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{keep} must be a JSON file, got {error}") from error
    found = found.get("kept", found) if isinstance(found, dict) else found
    whole = isinstance(found, dict) and all(
        isinstance(outputs, list) and all(type(one) is int for one in outputs) for outputs in found.values()
    )
    if not whole or not found:
        raise ConfigError(f'--keep must be a file such as {{"fc1": [0, 3, 4]}}, got {str(found)[:60]} in {keep}')
    return dict(found)


def _shrunk(
    subject: "Subject", share: float, work: dict[str, Any], samples: int | None, batch_size: int | None
) -> "ShrinkResult":
    from torch import OutOfMemoryError

    from feta.engine.settings import Settings
    from feta.structured.shrink import shrink

    rows: Any = subject.rows("train", work["device"])[0] if subject.data is not None else subject.inputs
    settings = Settings(n_samples=samples, batch_size=batch_size or Settings.batch_size)
    with progress_bar("shrinking"), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: err().print(f"feta: warning: {message}")
        try:
            return shrink(subject.model, rows, share, settings=settings, **work)
        except OutOfMemoryError:
            raise ModelError(
                f"the work must fit into the memory of {work['device']}, got out of it; give a smaller --batch-size "
                "or --samples, or --device cpu"
            ) from None


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


def _show(result: "ShrinkResult", summary: Mapping[str, Any], output: Path | None) -> None:
    report = result.report
    heading, *lines = report.headline()
    print_table(heading, ("layer", "outputs", "left"), list(report.groups))
    for line in lines:
        out().print(line)
    if (scores := summary["accuracy"]) is not None:
        out().print(f"test accuracy {scores['dense']['test']:.2f} % → {scores['shrunk']['test']:.2f} %")
    if output is not None:
        before, after = summary["file_bytes"].values()
        out().print(f"written to {output}: {size(before)} → {size(after)}")
        out().print(f"load it with: {LOADING[output.suffix].format(str(output))}")
