"""Files for others to run: ONNX, torch.export and plain safetensors, each compared with the model before it is kept.

    export(model, example, onnx="model.onnx")

A file is written beside its place, opened again, and run on the example; it is moved to its place only if its outputs
are the model's. Zeros stay zeros, stored densely: these forms know nothing of sparsity.
"""

import copy
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from feta.calibration.copies import copied
from feta.calibration.inputs import Batch, rows_of, size_of
from feta.calibration.model import device_of, float_dtype, outputs_of, place, run_on
from feta.calibration.recording import running
from feta.errors import ConfigError, FileError, ModelError
from feta.files.atomic import replacing
from feta.gates import gated
from feta.plugins import needed

FORMS = ("onnx", "torch_export", "safetensors")
PACKAGES = "onnx onnxscript onnxruntime"
SAME = 1e-3  # relative difference of outputs up to which a file is the model


class Exported(NamedTuple):
    """A file that was written: its form, bytes, and how far its outputs are from the model's, relative to them."""

    form: str
    path: Path
    bytes: int
    difference: float


class Plain(nn.Module):
    """A model as a function of tensors alone, with its one output: what the other forms can hold."""

    def __init__(self, model: nn.Module, names: Sequence[str] | None) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        batch = inputs[0] if self.names is None else dict(zip(self.names, inputs, strict=True))
        return outputs_of(run_on(self.model, batch))


@gated
def export(model: nn.Module, example: Batch, **paths: str | os.PathLike[str] | None) -> list[Exported]:
    """Write a model in other forms: onnx=FILE, torch_export=FILE, safetensors=FILE.

        from feta.files.exports import export

        export(model, images[:2], onnx="model.onnx", torch_export="model.pt2")

    model: any model that torch can export; it is not changed.
    example: some samples, as the model takes them; files take any number of samples.
    paths: by form.

    Returns what was written. Raises ConfigError for a form that is not known or without its package, ModelError for a
    model that torch cannot export, and FileError where a file cannot be written or gives other outputs.
    """
    if unknown := sorted(set(paths) - set(FORMS)):
        raise ConfigError(f"export must be asked for forms out of {', '.join(FORMS)}, got {', '.join(unknown)}")
    wanted = {form: Path(path) for form, path in paths.items() if path is not None}
    if not wanted:
        raise ConfigError(
            f"export must be asked for a form, such as onnx='model.onnx', out of {', '.join(FORMS)}, got none"
        )
    network = copied(model).cpu().eval()
    with running(example), torch.no_grad():
        batch = place(rows_of(example, slice(2)), device_of(network), float_dtype(network))
        if size_of(batch) < 2:  # one sample would fix the number of samples to one
            batch = {key: torch.cat([v, v]) if isinstance(v, Tensor) else v for key, v in _named(batch).items()}
            batch = batch if isinstance(example, Mapping) else batch[""]
        inputs = tuple(_named(batch).values())
        plain = Plain(network, tuple(batch) if isinstance(batch, Mapping) else None)
        expected = plain(*inputs)
    return [_written(form, path, plain, inputs, expected) for form, path in wanted.items()]


def _named(batch: Batch) -> dict[str, Any]:
    return dict(batch) if isinstance(batch, Mapping) else {"": batch}


def _written(form: str, path: Path, model: Plain, inputs: tuple[Tensor, ...], expected: Tensor) -> Exported:
    """One file, in its place once it was found to be the model."""
    write, run = WRITERS[form]
    try:
        with replacing(path) as part:
            with _quiet():
                write(model, inputs, part)
                outputs = run(model, part, inputs)
            far = difference(outputs, expected)
            if not far <= SAME:
                raise FileError(f"{path} must give the model's outputs, got a relative difference of {far:.2g}")
    except (FileError, ConfigError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise ModelError(f"model must be one that torch can export, got {type(error).__name__}: {said}") from error
    return Exported(form, path, path.stat().st_size, far)


def difference(outputs: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest output; infinite for another shape."""
    if outputs.shape != expected.shape:
        return float("inf")
    scale = float(expected.double().abs().max()) or 1.0
    return float((outputs.double() - expected.double()).abs().max()) / scale


def _samples(inputs: tuple[Tensor, ...]) -> Any:
    """Any number of samples, in all inputs alike."""
    batch = torch.export.Dim("batch", min=1)
    return (tuple({0: batch} for _ in inputs),)


def _write_onnx(model: Plain, inputs: tuple[Tensor, ...], path: Path) -> None:
    for package in ("onnxruntime", "onnxscript"):
        needed(package, "ONNX", package, PACKAGES)
    names = list(model.names or ["input"])
    torch.onnx.export(
        model,
        inputs,
        str(path),
        dynamo=True,
        external_data=False,  # one file
        input_names=names,
        output_names=["output"],
        dynamic_shapes=_samples(inputs),
        verbose=False,
    )


def _run_onnx(model: Plain, path: Path, inputs: tuple[Tensor, ...]) -> Tensor:
    session = needed("onnxruntime", "ONNX", "onnxruntime", PACKAGES).InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    given = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


def _write_torch_export(model: Plain, inputs: tuple[Tensor, ...], path: Path) -> None:
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=_samples(inputs)), path)


def _run_torch_export(model: Plain, path: Path, inputs: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        found: Tensor = torch.export.load(path).module()(*inputs)
    return found


def _write_safetensors(model: Plain, inputs: tuple[Tensor, ...], path: Path) -> None:
    seen: set[tuple[int, ...]] = set()
    tensors = {}
    for name, tensor in model.model.state_dict().items():
        memory = tensor.data_ptr(), *tensor.shape, *tensor.stride()
        if not tensor.numel() or memory not in seen:  # what is shared is stored once, under its first name
            tensors[name] = tensor.contiguous().clone()
        seen.add(memory)
    save_file(tensors, path, metadata={"format": "pt"})


def _run_safetensors(model: Plain, path: Path, inputs: tuple[Tensor, ...]) -> Tensor:
    again = copy.deepcopy(model)
    with torch.no_grad():
        for weight in again.model.parameters():
            weight.zero_()
        again.model.load_state_dict(load_file(path), strict=False)
        found: Tensor = again(*inputs)
    return found


WRITERS: Mapping[str, Any] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch_export": (_write_torch_export, _run_torch_export),
    "safetensors": (_write_safetensors, _run_safetensors),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say of themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
