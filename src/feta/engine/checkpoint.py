"""Finished layers in a folder, so that a run that was ended goes on from there, to the same bits.

    progress.json              what the run was asked for, and what is finished: reports, a checksum of each file, and
                               one of itself
    layers-0000.safetensors    the weights of layers that were finished together

What depends on the finished layers alone, such as the states that the rest starts from, is computed anew.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from feta.engine.alike import digest
from feta.engine.run import Run
from feta.errors import ConfigError, FileError
from feta.files.atomic import write_atomic
from feta.files.plain import object_from_json, shortened, text_of
from feta.ranks import Ranks
from feta.report import LayerReport

PROGRESS = "progress.json"
OURS = re.compile(r"progress\.json|layers-\d+\.safetensors|\.(progress|layers).*")
VERSION = 2  # 1: without a checksum of its own
IN_WORDS = {"layers": "sparsity or layers", "torch": "the version of torch", "settings": "samples, batches or mode"}
IN_WORDS |= {"processes": "the number of processes", "compensate": "what is compensated"}


def key_of(run: Run, **asked: Any) -> dict[str, str]:
    """What must be the same for a run to go on: the network, the data, and what was asked for."""
    data = "none" if run.samples is None else hashlib.sha256("".join(map(digest, run.samples)).encode()).hexdigest()
    told = {name: repr(value) for name, value in asked.items()}
    fixed = {
        "model": digest(run.original.state_dict(keep_vars=True), run.shards),
        "data": data,
        "settings": repr(run.settings),
    }
    return fixed | told | {"processes": str(run.ranks.count), "device": run.device.type, "torch": torch.__version__}


@dataclass
class Checkpoint:
    """The folder of a run; the first process alone reads and writes it."""

    folder: Path
    key: Mapping[str, str]
    ranks: Ranks
    files: list[tuple[str, str]] = field(default_factory=list)  # and their checksums

    @classmethod
    def open(cls, folder: str | Path, key: Mapping[str, str], ranks: Ranks) -> "tuple[Checkpoint, Finished]":
        """A folder and what is finished there. Raises ConfigError or FileError for one that is of no use."""
        checkpoint = cls(Path(os.path.realpath(folder)), key, ranks)  # a link cannot be removed as a folder is
        return checkpoint, ranks.objects(checkpoint._read() if ranks.first else None)[0]

    def add(self, tensors: Mapping[str, Tensor], reports: list[LayerReport], compensated: Mapping[str, str]) -> None:
        """Keep some more finished layers; all reports so far go with them."""
        if not self.ranks.first:
            return
        name = f"layers-{len(self.files):04d}.safetensors"
        content = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
        write_atomic(self.folder / name, content)
        self.files.append((name, hashlib.sha256(content).hexdigest()))
        progress = {"version": VERSION, "key": dict(self.key), "files": self.files, "compensated": dict(compensated)}
        progress["layers"] = [asdict(report) for report in reports]
        write_atomic(self.folder / PROGRESS, _signed(progress).encode())

    @torch.no_grad()
    def put(self, found: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        """Write finished tensors into those of the same names."""
        for name, tensor in into.items():
            if name not in found or found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
                raise self._damaged(PROGRESS)
            tensor.copy_(found[name])

    def remove(self) -> None:
        """The run is over. What is finished is forgotten first: a kill in between leaves files that nobody misses."""
        if self.ranks.first and self.folder.is_dir():
            with suppress(OSError):  # whoever put something in the way wants it there
                (self.folder / PROGRESS).unlink(missing_ok=True)
                for path in self.folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                self.folder.rmdir()

    def _read(self) -> "Finished":
        if not self.folder.exists():
            return Finished()
        if not self.folder.is_dir():
            raise ConfigError(f"checkpoint must be a folder, got the file {self.folder}")
        others = sorted(path.name for path in self.folder.iterdir() if not OURS.fullmatch(path.name))
        if others:
            raise ConfigError(f"checkpoint must be a folder of its own, got '{others[0]}' in {self.folder}")
        if not (self.folder / PROGRESS).exists():
            return Finished()
        try:
            content = text_of(self.folder / PROGRESS)
            progress = object_from_json(content, finite=False)  # statistics of a solver may be infinite
            version = progress.get("version")
            if version == VERSION and content != _signed({k: v for k, v in progress.items() if k != "checksum"}):
                raise ValueError("another checksum")
            key, files = dict(progress["key"]), [(str(name), str(checksum)) for name, checksum in progress["files"]]
            reports = [_report(layer) for layer in progress["layers"]]
            compensated = {str(name): str(status) for name, status in progress["compensated"].items()}
        except (OSError, AttributeError, ValueError, TypeError, KeyError) as error:
            raise self._damaged(PROGRESS) from error
        changed = sorted(name for name in {*key, *self.key} if key.get(name) != self.key.get(name))
        if version != VERSION or changed:
            got = " and ".join(IN_WORDS.get(name, name) for name in changed) or "the version of its form"
            raise ConfigError(
                f"checkpoint {self.folder} must be of this run, got one that differs in {got}; ask for the same as "
                "then, or delete the folder to begin anew"
            )
        self.files = files
        return Finished(self._tensors(), reports, compensated)

    def _tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, checksum in self.files:
            try:
                place = self.folder / Path(name).name
                content = place.read_bytes() if place.is_file() else b""  # reading a pipe may wait for ever
                if hashlib.sha256(content).hexdigest() != checksum:
                    raise self._damaged(name)
                found |= load(content)
            except FileError:
                raise
            except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
                raise self._damaged(name) from error
        return found

    def _damaged(self, name: str) -> FileError:
        place = self.folder / name
        return FileError(f"{place} must be as feta wrote it, got a damaged file; delete the folder to begin anew")


@dataclass(frozen=True)
class Finished:
    """What a run has done already."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # by "layer/part", see engine.layer.written
    reports: list[LayerReport] = field(default_factory=list)
    compensated: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {key.rpartition("/")[0] for key in self.tensors}


def _signed(progress: Mapping[str, Any]) -> str:
    """The progress as text, with a checksum of all else in it."""
    text = json.dumps(progress, default=str, sort_keys=True)
    return json.dumps({**json.loads(text), "checksum": hashlib.sha256(text.encode()).hexdigest()})


def _report(layer: Any) -> LayerReport:
    """A layer's report from its JSON object. Raises TypeError or ValueError for what is none."""
    report = LayerReport(**layer | {"shape": tuple(layer["shape"])})
    kinds: dict[type, Any] = {
        str: (report.name, report.status, report.message, report.activation, report.pattern or ""),
        int: (report.nonzeros, *report.shape),
        float: tuple(map(float, (report.sparsity, report.seconds, report.positions, report.relative_error or 0))),
        dict: (report.stats,),
    }
    if odd := [value for kind, values in kinds.items() for value in values if not isinstance(value, kind)]:
        raise TypeError(f"a layer's report with {shortened(odd[0])}")
    return report
