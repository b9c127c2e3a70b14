"""Damaged and hostile files of every kind: each is read as its reader does, and only a FetaError may come out.

Bytes are flipped, cut, repeated and replaced; the texts inside are changed with the checksums put right again, as
somebody would who means it. Reading one may take neither long nor much memory.
"""

import io
import json
import random
import resource
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from feta.cli.arrays import _of_numpy
from feta.errors import FetaError
from feta.files import container, huggingface, sparse_file
from feta.files.network import load_into
from feta_lab import networks, store
from feta_lab.data import Normalisation
from feta_lab.experiments.bench import Bench
from feta_lab.experiments.plan import load_plan
from feta_lab.results import gather
from feta_lab.training import _TrainLoop
from soak.tally import Tally

COUNT = 100_000
SECONDS, MEGABYTES = 5.0, 1000  # more than any input needs; a machine may be busy
INFO = store.NetworkInfo(
    "4C3-MP2-8FC-3SM", (1, 6, 6), "tiny", Normalisation((0.5,), (0.25,)), None, 3, 7, {"test": 90.0}
)
ODD = (None, True, -1, 0, 2**31, 2**63, 10**30, 0.5, 1e308, "", "x", "\x1b[2J", "é", [], {}, [[]], [1, 2], {"a": 1})
RAW = ("1" * 5000, "Infinity", "NaN", "1e999", '"\\ud800"', "[" * 5000 + "]" * 5000, "[" * 70 + "]" * 70, "9" * 19)
TOML = 'experiment = "bench"\nnets = ["dense-mnist"]\nseeds = 2\nsparsity = [0.9, 0.95]\ncell_budget = 3.5\n'
RECORD = {
    "kind": "bench", "key": {"net": "a", "seed": 0}, "net": "a", "method": "feta", "seed": 0, "sparsity": 0.9,
    "compensate": True, "floor_seconds": 1.0, "dense_accuracy": 98.0, "seconds": 2.0, "relative_error": [0.1, None],
    "accuracy": 97.0, "timed": True, "environment": {"feta": "1"},
}  # fmt: skip
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 1}
Read = Callable[[Path], Any]


def run(count: int, seed: int) -> Tally:
    tally, draw = Tally("files"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        kinds = list(_kinds(Path(folder)))
        for name, path, whole, read, _ in kinds:  # they are right as they are, and the first reading loads libraries
            path.write_bytes(whole)
            try:
                read(path)
            except Exception as error:
                tally.wrong.append(f"{name}, unchanged: {error!r}")
        for number in range(count):
            name, path, whole, read, change = kinds[number % len(kinds)]
            own = draw.getrandbits(63)
            path.write_bytes(change(random.Random(own), whole))
            if problem := _problem(read, path):
                tally.wrong.append(f"{name}, number {number} of seed {seed}: {problem}")
            tally.tried += 1
    return tally


def _problem(read: Read, path: Path) -> str:
    """What is wrong with the reading of a file; nothing for a result or an error of feta's own."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(path)
    except FetaError as error:
        if len(str(error)) > 5000 or "\x1b" in str(error):
            return f"a message that is long or holds escapes: {str(error)[:200]!a}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if (seconds := time.monotonic() - started) > SECONDS:
        return f"{seconds:.1f} s"
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return f"{more} MB more" if more > MEGABYTES else ""


def _kinds(folder: Path) -> Iterator[tuple[str, Path, bytes, Read, Callable[[random.Random, bytes], bytes]]]:
    """Each kind of file: its name, its place, a whole one, its reader and what changes it."""
    model = networks.build(INFO.specification, INFO.shape, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)) < 0.4)
    for layout in ("small", "compressed-tensors", "dense"):
        path, content = folder / f"{layout}.safetensors", store.encode(store.Network(model, INFO), layout=layout)
        yield f"network, {layout}", path, content, store.load, _bytes
        yield f"description, {layout}", path, content, store.load, _inside
        yield f"weights, {layout}", path, content, lambda path: load_into(_fresh(model), path), _inside
    halved = store.encode(store.Network(model, INFO), dtype="int8")
    yield "network, int8", folder / "int8.safetensors", halved, store.load, _inside
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    told = {"fingerprint": "f", "progress": {"epoch": 1, "stale": 0, "best": 90.0}}
    stored = sparse_file.encode(tensors, told)
    yield "checkpoint", folder / "run.partial", stored, lambda path: _resume(model, path), _bytes
    yield "progress", folder / "run.partial", stored, lambda path: _resume(model, path), _inside
    (folder / "bench").mkdir()
    lines = "".join(
        json.dumps(RECORD | {"seed": s, "key": {"net": "a", "seed": s}}) + "\n" for s in range(2)
    ).encode()
    yield "records", folder / "bench" / "records.jsonl", lines, lambda path: gather(path.parent), _bytes
    yield "record", folder / "bench" / "records.jsonl", lines, lambda path: gather(path.parent), _lines
    yield "toml", folder / "plan.toml", TOML.encode(), lambda path: load_plan(Bench, path, {}), _toml
    (folder / "hub").mkdir()
    (folder / "hub" / "model.safetensors").write_bytes(container.to_bytes({"a": torch.zeros(1)}, {}))
    config = json.dumps(CONFIG).encode()
    yield (
        "config",
        folder / "hub" / "config.json",
        config,
        lambda path: huggingface.configuration(path.parent),
        _lines,
    )
    yield (
        "config, bytes",
        folder / "hub" / "config.json",
        config,
        lambda path: huggingface.configuration(path.parent),
        _bytes,
    )
    arrays = io.BytesIO()
    np.savez(arrays, x=np.arange(12, dtype=np.float32).reshape(3, 4), y=np.arange(3))
    yield "npz", folder / "data.npz", arrays.getvalue(), _of_numpy, _bytes
    array = io.BytesIO()
    np.save(array, np.arange(12, dtype=np.float32).reshape(3, 4))
    yield "npy", folder / "data.npy", array.getvalue(), _of_numpy, _bytes


def _fresh(model: nn.Module) -> nn.Module:
    return networks.build(INFO.specification, INFO.shape, seed=2)


def _resume(model: nn.Module, path: Path) -> None:
    loop: Any = object.__new__(_TrainLoop)
    loop.model, loop.checkpoint, loop.fingerprint = _fresh(model), path, "f"
    loop.ranks = type("Ranks", (), {"device": torch.device("cpu")})
    loop.optimiser = torch.optim.SGD(loop.model.parameters(), 0.1)
    loop.restore()


def _bytes(draw: random.Random, whole: bytes) -> bytes:
    """Bytes flipped, cut, repeated, moved or replaced, a few times over."""
    content = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        a, b = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        match draw.randrange(6):
            case 0 if a < len(content):
                content[a] ^= 1 << draw.randrange(8)
            case 1:
                del content[a : min(b, a + draw.choice((1, 8, 1000)))]
            case 2:
                content[a:a] = content[a : min(b, a + 64)]
            case 3:
                content[a:a] = draw.randbytes(draw.choice((1, 4, 64)))
            case 4 if a < len(content):
                content[a] = draw.choice((0, 255, 34, 44, 48, 91, 123, 128))
            case _:
                content[: draw.choice((0, 8))] = draw.choice((0, 1, 100, 2**40, 2**63)).to_bytes(8, "little")
        if not content:
            return b""
    return bytes(content)


def _inside(draw: random.Random, whole: bytes) -> bytes:
    """A safetensors file with a text of its metadata or its index changed, and all checksums right."""
    end = 8 + int.from_bytes(whole[:8], "little")
    header, body = json.loads(whole[8:end]), whole[end:]
    about = header["__metadata__"]
    key = draw.choice([key for key in about if key not in (container.HEADER, "format")])
    if key == sparse_file.INDEX:
        length = int(about[key].split()[0])
        index = zlib.compress(_text(draw, zlib.decompress(body[:length]).decode()))
        body, about[key] = index + body[length:], f"{len(index)} {zlib.crc32(index)}"
        entry = header[container.ARCHIVE]
        entry["shape"], entry["data_offsets"] = [len(body)], [0, len(body)]
    else:
        about[key] = _text(draw, about[key]).decode(errors="replace")
    about[container.HEADER] = container.BLANK
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head.replace(container._entry(container.BLANK), container._entry(f"{zlib.crc32(head):08x}"), 1) + body


def _lines(draw: random.Random, whole: bytes) -> bytes:
    lines = whole.decode().splitlines()
    at = draw.randrange(len(lines))
    lines[at] = _text(draw, lines[at]).decode(errors="replace")
    return "\n".join(lines).encode(errors="replace") + b"\n"


def _text(draw: random.Random, text: str) -> bytes:
    """A JSON text with a value somewhere in it replaced, taken out or doubled."""
    value = [json.loads(text)]
    places: list[tuple[Any, Any]] = []

    def walk(inside: Any) -> None:
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            places.append((inside, key))
            if isinstance(inside[key], dict | list):
                walk(inside[key])

    walk(value)
    inside, key = draw.choice(places)
    match draw.randrange(4):
        case 0:
            inside[key] = draw.choice(ODD)
        case 1 if isinstance(inside[key], int | float):
            inside[key] = inside[key] * draw.choice((-1, 0, 2, 10**6, 10**12, 0.5))
        case 2 if inside is not value:
            del inside[key]
        case _:
            inside[key] = "@raw@"
            return json.dumps(value[0]).replace('"@raw@"', draw.choice(RAW)).encode()
    return json.dumps(value[0]).encode()


def _toml(draw: random.Random, whole: bytes) -> bytes:
    if draw.random() < 0.5:
        return _bytes(draw, whole)
    lines = whole.decode().splitlines()
    at = draw.randrange(len(lines))
    values = (
        "inf",
        "nan",
        "1" * 5000,
        "9" * 400,
        "[" * 5000 + "]" * 5000,
        "[" * 80 + "]" * 80,
        "{}",
        "[]",
        "-1",
        "0",
        '"x"',
        "1979-05-27",
    )
    lines[at] = f"{lines[at].partition('=')[0]}= {draw.choice(values)}"
    return "\n".join(lines).encode()
