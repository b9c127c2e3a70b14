"""A model of the user's own as commands see it: module:factory or a Hugging Face folder, with unlabelled data."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from feta import __version__
from feta.cli import factory, huggingface
from feta.cli.console import err
from feta.cli.own_data import check_options, read_batches
from feta.cli.own_options import OwnOptions
from feta.cli.subject import Subject
from feta.errors import ConfigError, ModelError, listed
from feta.files import sparse_file
from feta.files.lines import append
from feta.files.network import encode, fill


def open_own(network: str, options: OwnOptions, *, samples: int | None, seed: int, batch_size: int | None) -> Subject:
    """The model and its data, ready to prune."""
    folder = Path(network) if Path(network).is_dir() else None
    model = _opened(Path(network), folder) if Path(network).exists() else factory.made(network)
    if options.weights is not None:
        fill(model, sparse_file.read(options.weights)[0], f"--weights {options.weights}")
    elif not Path(network).exists():
        err().print(
            f"feta: note: the weights are as {network} gives them, trained or not; --weights FILE loads others"
        )
    if odd := [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]:
        raise ModelError(f"{network} must have tensors alone in its state dict, got others in {listed(odd)}")
    batches, note, path = None, None, check_options(options)
    if path is not None:
        how: dict[str, Any] = {"samples": samples, "seed": seed, "batch_size": batch_size, "folder": folder}
        batches, note = read_batches(path, model, options, **how)
    return Subject(
        model=model,
        specification=network,
        data=None,  # no labels: nothing to judge by
        preparation=(),
        deviations=(),
        rows=_no_rows,
        encode=lambda pruned, pruning, accuracy, **how: encode(pruned, **how),
        record=_record,
        inputs=batches,
        note=note,
    )


def _opened(path: Path, folder: Path | None) -> nn.Module:
    return huggingface.open_folder(folder) if folder else huggingface.open_file(path)


def _no_rows(*args: object) -> NoReturn:
    raise ConfigError("data must have labels to judge by, got inputs alone")


def _record(path: Path, kind: str, config: Mapping[str, Any], seed: int, metrics: Any) -> None:
    """Add the run to a file of records, one JSON object per line."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    versions = {"feta": __version__, "torch": torch.__version__, "python": platform.python_version()}
    line = {"kind": kind, "key": {**config, "seed": seed}, "time": time, "config": dict(config), "seed": seed}
    append(path, {**line, "metrics": metrics, "environment": versions})
