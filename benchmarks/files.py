"""How small pruned files are and how fast they load, against gzip, xz and plain safetensors.

    PYTHONPATH=src python benchmarks/files.py --networks NETWORKS --resnets MODELS --data-dir DATA
    PYTHONPATH=src python benchmarks/files.py --folder SMOLLM2 --sparsity 0.5 0.7 0.9

NETWORKS holds some files of `feta train` (conv-mnist-seed0.safetensors …), MODELS state dicts, SMOLLM2 a Hugging Face
folder. Matrices and kernels are pruned by magnitude, but for the first of a convolutional network and the last; with
--data-dir, networks are pruned by the method feta too, at 90 %, and judged. The rivals compress the plain safetensors
file of the *pruned* model. Seconds are of processor time on one thread, the least of several runs.
"""

import argparse
import gzip
import lzma
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from origin import origin
from safetensors.torch import load_file, save
from torch import Tensor

import feta
from feta.files import lossy, planes, sparse_file
from feta.files.network import Network
from feta.sparsity import Sparsity, top_k_mask
from feta_lab import data as datasets
from feta_lab.judge import judge
from feta_lab.records import append, record

RECORDS = Path("results/files/records.jsonl")
NETS = ("conv-cifar", "conv-mnist", "dense-cifar-wide", "dense-fashion-wide", "dense-mnist-wide")
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95)
DTYPES: tuple[lossy.Smaller, ...] = ("float16", "bfloat16", "int8")
KINDS = ("small", "compressed-tensors", "dense", "xz", "copy")
State = dict[str, Tensor]


def states(given: argparse.Namespace) -> Iterator[tuple[str, State, Network | None]]:
    """Every network that is asked for: its name, its weights, and what its file says about it."""
    paths = [given.networks / f"{name}-seed0.safetensors" for name in NETS] if given.networks else []
    for path in filter(Path.exists, paths):
        name, network = path.name.removesuffix("-seed0.safetensors"), feta.load(path)
        yield name, network.model.state_dict(), network
    for path in sorted(given.resnets.glob("resnet*.safetensors")) if given.resnets else ():
        yield path.name.split("-")[0], load_file(path), None
    if given.folder:
        yield given.folder.name, sparse_file.read(given.folder / "model.safetensors")[0], None


def pruned(state: State, share: float) -> State:
    weights = [name for name, tensor in state.items() if tensor.ndim >= 2]
    text = [name for name in weights if "embed" in name or "lm_head" in name]
    inner = set(weights) - set(text or weights[-1:])
    if not text and state[weights[0]].ndim > 2:
        inner -= {weights[0]}
    return {name: _threshold(tensor, share) if name in inner else tensor for name, tensor in state.items()}


def _threshold(tensor: Tensor, share: float) -> Tensor:
    return torch.where(top_k_mask(tensor.abs(), Sparsity(share).count(tensor.numel())), tensor, 0)


def sizes(state: State) -> dict[str, int]:
    plain = save(state)
    found = {"plain": len(plain), "gzip": len(gzip.compress(plain, 9)), "xz": len(lzma.compress(plain))}
    for layout in ("small", "compressed-tensors"):
        found[layout] = len(sparse_file.encode(state, {}, layout=layout))
    return found | {"bound": round(sum(map(bound, state.values())))}


def bound(tensor: Tensor) -> float:
    """Bytes of a code that knows each tensor's density and how often each exponent occurs, and nothing else."""
    values = tensor[tensor != 0]
    if tensor.ndim < 2 or not len(values):
        return tensor.nbytes if tensor.ndim < 2 else 0.0
    density, bits = len(values) / tensor.numel(), 8 * tensor.element_size()
    words = values.reshape(-1).view(torch.uint8).numpy().view(planes.WORDS[tensor.element_size()])
    width = planes.FLOATS[tensor.dtype][0]
    exponents = np.bincount((words << 1 >> (bits - width)).astype(np.int64))
    return (tensor.numel() * entropy([density, 1 - density]) + len(values) * (bits - width + entropy(exponents))) / 8


def entropy(weights: Sequence[float] | np.ndarray) -> float:
    shares = np.asarray(weights, dtype=float)
    shares = shares[shares > 0] / shares.sum()
    return float(-(shares * np.log2(shares)).sum())


def seconds(state: State, repeats: int) -> dict[str, float]:
    """Processor seconds to load each form, the least of several runs; copy: to copy the dense weights in memory."""
    with tempfile.TemporaryDirectory() as place:
        works: dict[str, Callable[[], object]] = {"copy": lambda: [tensor.clone() for tensor in state.values()]}
        for layout in ("small", "compressed-tensors", "dense"):
            path = Path(place) / layout
            path.write_bytes(sparse_file.encode(state, {}, layout=layout))
            works[layout] = lambda path=path: sparse_file.read(path)
        squeezed = lzma.compress(save(state), preset=0)  # the quickest; its decoder is as slow as any
        works["xz"] = lambda: lzma.decompress(squeezed)
        found = {name: [timed(work) for _ in range(repeats if name != "xz" else 1)] for name, work in works.items()}
    return {name: min(each) for name, each in found.items()}


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def rounding(network: Any, state: State, data: datasets.DataSet) -> dict[str, Any]:
    """Bytes and test accuracy of each smaller dtype; None stands for the weights as they are."""
    found = {}
    for dtype in (None, *DTYPES):
        network.model.load_state_dict(state)
        if dtype is not None:
            lossy.with_rounded_weights(network.model, dtype)
        n_bytes = len(sparse_file.encode(state, {}, dtype=dtype))
        found[str(dtype)] = {"bytes": n_bytes, "accuracy": judge(network.model, data)["test"]}
    return found


def measure(records: Path, net: str, share: float, method: str, state: State, repeats: int, **more: Any) -> None:
    metrics = {"bytes": sizes(state), "seconds": seconds(state, repeats), **more}
    append(records, record("files", {"net": net, "sparsity": share, "method": method}, 0, metrics))
    print(net, share, method, metrics, flush=True)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    head = ("network", "method", "zeros", "plain", "gzip", "xz", "feta", "below xz", "over the bound")
    small, speed, loss = [row(*head), row(*["---"] * len(head))], [], []
    for one in records:
        config, size = one["config"], one["metrics"]["bytes"]
        start = (config["net"], config["method"], f"{100 * config['sparsity']:g} %")
        ratios = (1 - size["small"] / size["xz"], size["small"] / size["bound"] - 1)
        small.append(row(*start, *(f"{size[kind] / 1e3:,.0f}" for kind in head[3:6]), f"{size['small'] / 1e3:,.0f}",
                         *(f"{100 * ratio:.1f} %" for ratio in ratios)))  # fmt: skip
        if size["plain"] > 5e6:
            spent = one["metrics"]["seconds"]
            speed.append(row(*start, *(f"{size['plain'] / spent[kind] / 1e9:.2f}" for kind in KINDS)))
        if kinds := one["metrics"].get("rounding"):
            said = (kinds[str(dtype)] for dtype in (None, *DTYPES))
            loss.append(row(*start, *(f"{kind['bytes'] / 1e3:,.0f} kB, {kind['accuracy']:.2f} %" for kind in said)))
    python = records[-1]["environment"]["python"]
    texts = ["Thousands of bytes:", "\n".join(small)]
    heads = [(*head[:3], *KINDS), (*head[:3], "as it is", *DTYPES)]
    heads = ["\n".join((row(*names), row(*["---"] * len(names)))) for names in heads]
    texts += [
        f"Loading, in gigabytes of dense weights per second of processor time, by layout (Python {python}):",
        "\n".join((heads[0], *speed)),
        "Rounded weights, bytes and test accuracy:",
        "\n".join((heads[1], *loss)),
        origin(records),
    ]
    return "\n\n".join(texts)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--networks", "--resnets", "--folder", "--data-dir"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--sparsity", type=float, nargs="+", default=SHARES)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    for name, state, network in states(given):
        for share in given.sparsity:
            measure(given.records, name, share, "threshold", pruned(state, share), given.repeats)
        if network is not None and given.data_dir:
            data = datasets.load(network.info.data, given.data_dir)
            images = network.info.normalisation.apply(data.train.images[:2000], "cpu")
            kept = feta.prune(network.model, images, 0.9, "feta").model.state_dict()
            rounded = rounding(network, kept, data)
            measure(given.records, name, 0.9, "feta", kept, given.repeats, rounding=rounded)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
