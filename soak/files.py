"""Damaged and hostile files of every kind: each is read as its reader does, and only a FetaError may come out.

Bytes are flipped, cut, repeated and replaced; the texts inside are changed with the checksums put right again, as
somebody would who means it. Reading one may take neither long nor much memory.
"""

import gzip
import io
import json
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cyclopts import CycloptsError
from torch import nn

from feta.cli import app
from feta.cli.arrays import _of_numpy as arrays_of
from feta.cli.text import _texts as texts_of
from feta.engine.checkpoint import Checkpoint
from feta.errors import FetaError
from feta.files import container, huggingface, sparse_file
from feta.files.network import load, load_into, save
from feta.ranks import Ranks
from feta.report import LayerReport
from feta_lab import networks, store
from feta_lab.data import Normalisation
from feta_lab.data.catalog import DataFile
from feta_lab.data.files import read_file
from feta_lab.experiments.bench import Bench
from feta_lab.experiments.plan import load_plan
from feta_lab.results import gather
from feta_lab.training import _TrainLoop
from soak._changes import damaged, flipped, inside, json_changed, lines_changed, signed, toml_changed
from soak.tally import Tally

COUNT = 100_000
SECONDS, MEGABYTES = 5.0, 1000  # more than any input needs; a machine may be busy
INFO = store.NetworkInfo(
    "4C3-MP2-8FC-3SM", (1, 6, 6), "tiny", Normalisation((0.5,), (0.25,)), None, 3, 7, {"test": 90.0}
)
PLAN = 'experiment = "bench"\nnets = ["dense-mnist"]\nseeds = 2\nsparsity = [0.9, 0.95]\ncell_budget = 3.5\n'
RECORD = {
    "kind": "bench", "key": {"net": "a", "seed": 0}, "net": "a", "method": "feta", "seed": 0, "sparsity": 0.9,
    "compensate": True, "floor_seconds": 1.0, "dense_accuracy": 98.0, "seconds": 2.0, "relative_error": [0.1, None],
    "accuracy": 97.0, "timed": True, "environment": {"feta": "1"},
}  # fmt: skip
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 1}
Read = Callable[[Path], Any]


SETTINGS = '[prune]\nsparsity = "0.9"\nmethod = "alps"\nseed = 3\nlayers = ["a*"]\njson = true\n'
REPORT = {"name": "0", "shape": [3, 4], "nonzeros": 6, "sparsity": 0.5, "relative_error": 0.1, "seconds": 1.0}


@dataclass(frozen=True)
class Kind:
    """A kind of file: a whole one, its reader, and what changes it. `strict`: every change must be an error."""

    name: str
    path: Path
    whole: bytes
    read: Read
    change: Callable[[random.Random, bytes], bytes]
    strict: bool = False


def run(count: int, seed: int) -> Tally:
    tally, draw, here = Tally("files"), random.Random(seed), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # feta.toml is looked for in the folder of the command
        try:
            kinds = [
                *_networks(Path(folder)),
                *_checkpoints(Path(folder)),
                *_texts(Path(folder)),
                *_hub(Path(folder)),
            ]
            for kind in kinds:  # they are right as they are, and the first reading loads libraries
                kind.path.write_bytes(kind.whole)
                kind.read(kind.path)
            for number in range(count):
                kind = kinds[number % len(kinds)]
                changed = kind.change(random.Random(draw.getrandbits(63)), kind.whole)
                kind.path.write_bytes(changed)
                if problem := _problem(kind, strict=kind.strict and changed != kind.whole):
                    tally.wrong.append(f"{kind.name}, number {number} of seed {seed}: {problem}")
                kind.path.write_bytes(kind.whole)  # others may be read together with it
                tally.tried += 1
        finally:
            os.chdir(here)
    return tally


def _problem(kind: Kind, strict: bool) -> str:
    """What is wrong with the reading of a file; nothing for a result or an error of feta's own."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        kind.read(kind.path)
        if strict:
            return "it was read as if nothing had happened to it"
    except (FetaError, CycloptsError) as error:
        if len(str(error)) > 5000 or "\x1b" in str(error):
            return f"a message that is long or holds escapes: {str(error)[:200]!a}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if (seconds := time.monotonic() - started) > SECONDS:
        return f"{seconds:.1f} s"
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return f"{more} MB more" if more > MEGABYTES else ""


def _model() -> nn.Module:
    model = networks.build(INFO.specification, INFO.shape, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)) < 0.4)
    return model


def _networks(folder: Path) -> Iterator[Kind]:
    model = _model()
    for layout in ("small", "compressed-tensors", "dense"):
        path, content = folder / f"{layout}.safetensors", store.encode(store.Network(model, INFO), layout=layout)
        yield Kind(f"network, {layout}", path, content, store.load, damaged)
        yield Kind(f"description, {layout}", path, content, store.load, inside)
        yield Kind(f"weights, {layout}", path, content, lambda path: load_into(_fresh(), path), inside)
        yield Kind(f"bit, {layout}", path, content, store.load, flipped, strict=True)
    halved = store.encode(store.Network(model, INFO), dtype="int8")
    yield Kind("network, int8", folder / "int8.safetensors", halved, store.load, inside)
    yield Kind("bit, int8", folder / "int8.safetensors", halved, store.load, flipped, strict=True)


def _checkpoints(folder: Path) -> Iterator[Kind]:
    tensors = {f"model.{name}": tensor for name, tensor in _model().state_dict().items()}
    told = {"fingerprint": "f", "progress": {"epoch": 1, "stale": 0, "best": 90.0}}
    stored, path = sparse_file.encode(tensors, told), folder / "run.partial"
    for name, change in (("training", damaged), ("training, inside", inside), ("training, bit", flipped)):
        yield Kind(name, path, stored, _resume, change, strict=change is flipped)
    ranks, key, place = Ranks(torch.device("cpu")), {"model": "m", "data": "d"}, folder / "kept.resume"
    kept = Checkpoint(place, key, ranks)
    kept.add({"0/weight": torch.ones(4, 3)}, [LayerReport(**REPORT)], {"0": "ok"})  # type: ignore[arg-type]

    def read(path: Path) -> Any:
        opened, found = Checkpoint.open(place, key, ranks)
        opened.put(found.tensors, {"0/weight": torch.zeros(4, 3)})
        return found

    for file in (place / "progress.json", place / "layers-0000.safetensors"):
        for change in (damaged, flipped, *((json_changed, signed) if file.suffix == ".json" else ())):
            yield Kind(f"{file.name}, {change.__name__}", file, file.read_bytes(), read, change, change is not signed)


def _texts(folder: Path) -> Iterator[Kind]:
    (folder / "bench").mkdir()
    records = folder / "bench" / "records.jsonl"
    lines = (json.dumps(RECORD | {"seed": seed, "key": {"net": "a", "seed": seed}}) + "\n" for seed in range(2))
    content = "".join(lines).encode()
    for change in (damaged, lines_changed):
        yield Kind(f"records, {change.__name__}", records, content, lambda path: gather(path.parent), change)
    yield Kind("plan", folder / "plan.toml", PLAN.encode(), lambda path: load_plan(Bench, path, {}), toml_changed)
    how: dict[str, Any] = {"exit_on_error": False, "print_error": False}
    yield Kind(
        "feta.toml",
        folder / "feta.toml",
        SETTINGS.encode(),
        lambda path: app.parse_args(["prune", "x"], **how),
        toml_changed,
    )
    text = (json.dumps({"text": "words", "more": [1, 2]}) + "\n").encode() * 2
    for change in (damaged, lines_changed):
        yield Kind(f"jsonl, {change.__name__}", folder / "data.jsonl", text, texts_of, change)
    arrays, array = io.BytesIO(), io.BytesIO()
    np.savez(arrays, x=np.arange(12, dtype=np.float32).reshape(3, 4), y=np.arange(3))
    np.save(array, np.arange(12, dtype=np.float32).reshape(3, 4))
    yield Kind("npz", folder / "data.npz", arrays.getvalue(), arrays_of, damaged)
    yield Kind("npy", folder / "data.npy", array.getvalue(), arrays_of, damaged)
    images = DataFile("images", "idx", (4, 3, 3), "")
    packed = gzip.compress(images.header + bytes(36))
    yield Kind("images", folder / "images.gz", packed, lambda path: read_file(images, path), damaged)


def _hub(folder: Path) -> Iterator[Kind]:
    """A Hugging Face folder: its configuration without transformers, and the whole of it where that is installed."""
    place = folder / "hub"
    place.mkdir()
    weights, config = place / "model.safetensors", place / "config.json"
    content, text = container.to_bytes({"a": torch.zeros(1)}, {}), json.dumps(CONFIG).encode()
    config.write_bytes(text)
    weights.write_bytes(content)
    yield Kind("weights of a folder", weights, content, lambda path: huggingface.tensors_of(place), damaged)
    for change in (damaged, json_changed):
        yield Kind(
            f"config, {change.__name__}", config, text, lambda path: huggingface.configuration(path.parent), change
        )
    try:
        import transformers
    except ImportError:
        return
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    made = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=8)
    model, whole = transformers.LlamaForCausalLM(made), folder / "llama"
    for layout in ("small", "compressed-tensors"):
        save(model, folder / f"llama-{layout}", layout=layout)
        whole = folder / f"llama-{layout}"
        (stored,) = whole.glob("*.safetensors")
        for path, change in ((whole / "config.json", json_changed), (stored, inside), (stored, damaged)):
            yield Kind(
                f"llama, {layout}, {path.name}", path, path.read_bytes(), lambda path: load(path.parent), change
            )
    save(model, folder / "llama.safetensors")
    yield Kind(
        "llama in a file", folder / "llama.safetensors", (folder / "llama.safetensors").read_bytes(), load, inside
    )


def _fresh() -> nn.Module:
    return networks.build(INFO.specification, INFO.shape, seed=2)


def _resume(path: Path) -> None:
    loop: Any = object.__new__(_TrainLoop)
    loop.model, loop.checkpoint, loop.fingerprint = _fresh(), path, "f"
    loop.ranks = type("Ranks", (), {"device": torch.device("cpu")})
    loop.optimiser = torch.optim.SGD(loop.model.parameters(), 0.1)
    loop.restore()
