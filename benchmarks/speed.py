"""Milliseconds of pruned networks with sparse layers against dense ones, on the CPU, with the bounds of the machine.

    PYTHONPATH=src python benchmarks/speed.py --out results/speed/records.jsonl       # measures everything
    PYTHONPATH=src python benchmarks/speed.py --cases mlp --threads 1                 # or a part, and prints it

Weights are random with zeros at random places: what a layer computes does not depend on which zeros they are. Dense
and sparse take turns; each number is the median over the repeats of the least of seven turns or more. The language
model has SmolLM2-135M's shapes; a token is one call with one token, its head is left dense. Run it alone on the
machine.
"""

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from llama import random_llama
from resnet import ResNet
from torch import Tensor, nn

from feta.inference.sparsify import sparsified
from feta.inference.timing import timed
from feta.inference.whole import plain_copy
from feta_lab.records import Record, append, record

SMOLLM2 = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3}


def mlp(*widths: int) -> nn.Module:
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def conv() -> nn.Module:
    """Three blocks of two 3 × 3 convolutions, for images of 32 × 32."""
    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1), nn.ReLU(), nn.Conv2d(c_out, c_out, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 10))


def layer(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(width, width))


# name: how it is made, one sample, shares of zeros, batch sizes
CASES: dict[str, tuple[Callable[[], nn.Module], Tensor, tuple[float, ...], tuple[int, ...]]] = {
    **{
        f"layer {width}": (layer(width), torch.randn(1, width), (0.7, 0.9, 0.95), (1, 16, 256))
        for width in (1024, 2048, 4096)
    },
    "mlp 784-1000-400-10": (
        partial(mlp, 784, 1000, 400, 10),
        torch.randn(1, 784),
        (0.9,),
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
    ),
    "mlp 784-300-100-10": (partial(mlp, 784, 300, 100, 10), torch.randn(1, 784), (0.95,), (1, 16, 256)),
    "ResNet-20": (partial(ResNet, 20), torch.randn(1, 3, 32, 32), (0.8, 0.9), (1, 16)),
    "conv 64-64-128-128-256-256": (conv, torch.randn(1, 3, 32, 32), (0.9,), (1, 16)),
    "SmolLM2-135M": (lambda: random_llama(**SMOLLM2), torch.randint(49152, (1, 1)), (0.5, 0.7), (1,)),
}


def pruned(make: Callable[[], nn.Module], share: float, seed: int) -> nn.Module:
    """A network with a share of zeros in every layer but a language model's head."""
    torch.manual_seed(seed)
    model, generator = make(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d) and name != "lm_head":
                module.weight[torch.rand(module.weight.shape, generator=generator) < share] = 0
    return model.eval()


def measure(name: str, share: float, threads: int, repeats: int, seed: int) -> dict[str, Any]:
    make, sample, _, batches = CASES[name]
    torch.set_num_threads(threads)
    model = pruned(make, share, seed)
    found, dense = sparsified(model, sample, batches), plain_copy(model)
    rows = []
    with torch.inference_mode():
        for batch in batches:
            x = sample.expand(batch, *sample.shape[1:]).contiguous()
            ways = {"dense": lambda x=x: dense(x), "sparse": lambda x=x: found.model(x)}
            times = [timed(ways) for _ in range(repeats)]
            ms = {f"{way}_ms": statistics.median(one[way] for one in times) for way in ways}
            rows.append({"batch": batch, **ms})
    kinds = dict(Counter(choice.kind for choice in found.layers))
    memory = {"dense_bytes": found.dense_bytes, "sparse_bytes": found.bytes}
    return {"batches": rows, "kinds": kinds, **memory, "notes": found.notes, "repeats": repeats}


def bounds(threads: int) -> dict[str, float]:
    """What the machine can do at the most: bytes it reads per second, near and far, and multiply-adds per second."""
    torch.set_num_threads(threads)
    near, far, square = torch.randn(1024, 1024), torch.randn(8192, 8192), torch.randn(1536, 1536)
    x, y = torch.randn(1024), torch.randn(8192)
    ways = {"near": lambda: near.mv(x), "far": lambda: far.mv(y), "square": lambda: square.mm(square)}
    with torch.inference_mode():
        ms = timed(ways)
    rates = {"near_gb_per_s": 4e-6 * near.numel() / ms["near"], "far_gb_per_s": 4e-6 * far.numel() / ms["far"]}
    return rates | {"giga_multiply_adds_per_s": 1536**3 / 1e6 / ms["square"]}


def table(cells: Sequence[Record]) -> str:
    """A line for each case and share: times faster at each batch size, with one and with more threads."""
    lines = ["| network | zeros | threads | batch: ms dense → ms sparse, times faster | memory |", "| --- " * 5 + "|"]
    for cell in (cell for cell in cells if cell["kind"] == "speed"):
        key, metrics = cell["key"], cell["metrics"]
        told = [f"{row['batch']}: {times(row)}" for row in metrics["batches"]]
        memory = f"{metrics['sparse_bytes'] / metrics['dense_bytes']:.2f}"
        zeros = f"{100 * key['sparsity']:g} %"
        lines.append(f"| {key['network']} | {zeros} | {key['threads']} | {'; '.join(told)} | {memory} |")
    bare = [cell for cell in cells if cell["kind"] == "speed-bounds"]
    lines += [f"\nThreads: {cell['key']['threads']}; {limits(cell['metrics'])}." for cell in bare]
    machine = cells[-1]["environment"]
    return "\n".join([*lines, f"\nMeasured on: {machine['processor']}, torch {machine['torch'].split('+')[0]}."])


def limits(rates: dict[str, float]) -> str:
    near, far = f"{rates['near_gb_per_s']:.3g} GB/s from the caches", f"{rates['far_gb_per_s']:.3g} GB/s from memory"
    return f"a dense product reads {near}, {far}; {rates['giga_multiply_adds_per_s']:.3g} G multiply-adds per second"


def times(row: dict[str, Any]) -> str:
    dense, sparse = row["dense_ms"], row["sparse_ms"]
    return f"{dense:.3g} → {sparse:.3g}, **{dense / sparse:.1f}×**"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", help="beginnings of names, separated by commas; by default all")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file of records, appended to")
    args = parser.parse_args(words)
    wanted = tuple(args.cases.split(",")) if args.cases else ("",)
    for threads in (int(part) for part in args.threads.split(",")):
        if not args.cases:
            keep(args.out, "speed-bounds", {"threads": threads}, args.seed, bounds(threads))
        for name, (_, _, shares, _) in CASES.items():
            for share in shares if name.startswith(wanted) else ():
                config = {"network": name, "sparsity": share, "threads": threads}
                keep(args.out, "speed", config, args.seed, measure(name, share, threads, args.repeats, args.seed))
    return 0


def keep(path: Path | None, kind: str, config: dict[str, Any], seed: int, metrics: dict[str, Any]) -> None:
    print(kind, config, metrics, flush=True)
    if path is not None:
        append(path, record(kind, config, seed, metrics))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
