"""Half-precision sparse layers against cuBLAS on a GPU: microseconds of one layer, launches recorded as a CUDA graph.

    PYTHONPATH=src python benchmarks/gpu_speed.py --out results/gpu-speed/records.jsonl

A graph holds launches on many copies of the weights, 400 MB in all, so that none of them waits in a cache. Both ways
run in turns; the median over the replays counts. Weights are random with zeros anywhere. Every output is checked
against float64. Needs torch, triton and numpy alone. 2:4 is torch's own product, on weights that are 2:4.
"""

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from origin import origin
from torch import Tensor, nn

from feta.inference.gpu_delta import DeltaLinear
from feta.inference.two_four import TwoFourLinear, works
from feta_lab.records import environment

COLD_BYTES = 400_000_000
REPLAYS = 50
TOLERANCE = 2e-3  # relative, in float16
SHOWN = ("8192x8192", 1, "delta")
WAYS = {"delta": DeltaLinear, "2:4": TwoFourLinear}


def layer_of(height: int, width: int, sparsity: float, way: str) -> nn.Linear:
    generator = torch.Generator("cuda").manual_seed(0)
    layer = nn.Linear(width, height, bias=False, device="cuda", dtype=torch.float16).requires_grad_(False)
    weight = torch.randn(height, width, generator=generator, device="cuda") / width**0.5
    chance = torch.rand(height, width, generator=generator, device="cuda")
    if way == "2:4":
        groups = chance.view(-1, 4)
        chance = torch.ones_like(groups).scatter_(1, groups.topk(2).indices, 0.0).view(height, width)
    layer.weight.copy_(weight * (chance >= sparsity))
    return layer


def bytes_of(module: nn.Module) -> int:
    return sum(part.nbytes for part in (*module.parameters(), *module.buffers()))


def recorded(module: nn.Module, x: Tensor) -> tuple[Callable[[], None], int, Any]:
    """A replay of launches on many copies, how many, and what must stay alive meanwhile."""
    copies = [copy.deepcopy(module) for _ in range(max(8, -(-COLD_BYTES // bytes_of(module))))]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for one in copies:  # each plans at its first call, which cannot be recorded
            one(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        kept = [one(x) for one in copies]
    return graph.replay, len(copies), (copies, graph, kept)


def microseconds(modules: dict[str, nn.Module], x: Tensor) -> dict[str, float]:
    """The median of one launch, in turns."""
    ways = {name: recorded(module, x) for name, module in modules.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPLAYS):
        for name, (go, count, _) in ways.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            go()
            last.record()
            last.synchronize()
            found[name].append(1e3 * first.elapsed_time(last) / count)
    return {name: statistics.median(values) for name, values in found.items()}


def cell(shape: str, way: str, sparsity: float, batch: int) -> dict[str, Any]:
    height, width = (int(n) for n in shape.split("x"))
    dense = layer_of(height, width, sparsity, way)
    sparse = WAYS[way](dense)
    x = torch.randn(batch, width, device="cuda", dtype=torch.float16)
    truth = x.double() @ dense.weight.double().t()
    error = float((sparse(x).double() - truth).norm() / truth.norm())
    us = microseconds({"dense": dense, "sparse": sparse}, x)
    key = {"shape": shape, "way": way, "sparsity": sparsity, "batch": batch}
    sizes = {"dense_bytes": bytes_of(dense), "sparse_bytes": bytes_of(sparse)}
    metrics = {"dense_us": us["dense"], "sparse_us": us["sparse"], "error": error, **sizes}
    return {"kind": "gpu-speed", "key": key, **key, **metrics}


def table(records: list[dict[str, Any]]) -> str:
    """Times as fast as dense, by shape and batch, at each sparsity."""
    found = {(one["shape"], one["batch"], column_of(one)): one for one in records}
    columns = sorted({column for *_, column in found}, key=lambda column: (column == "2:4", column))
    head = ["float16, out x in, batch", "dense µs", *columns]
    lines = [head, ["---"] * len(head)]
    for shape, batch in dict.fromkeys((shape, batch) for shape, batch, _ in found):
        mine = {column: found[shape, batch, column] for column in columns if (shape, batch, column) in found}
        gains = [f"{mine[c]['dense_us'] / mine[c]['sparse_us']:.2f}" if c in mine else "–" for c in columns]
        lines.append([f"{shape}, {batch}", f"{statistics.median(o['dense_us'] for o in mine.values()):.1f}", *gains])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{origin(records)}"


def sentence(records: list[dict[str, Any]]) -> str:
    """The gain of the largest layer, one sample at a time, with few and with many zeros."""
    mine = {one["sparsity"]: one for one in records if (one["shape"], one["batch"], one["way"]) == SHOWN}
    fast = [f"{mine[share]['dense_us'] / mine[share]['sparse_us']:.1f}" for share in (0.5, 0.9)]
    return (
        f"On an H200 a half-precision layer of 8192 × 8192 runs {fast[0]} times as fast as cuBLAS at 50 % zeros and "
        f"{fast[1]} times at 90 %, one sample at a time"
    )


def column_of(one: dict[str, Any]) -> str:
    return "2:4" if one["way"] == "2:4" else f"{100 * one['sparsity']:g} %"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(words: list[str]) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--shapes", default="8192x8192,4096x11008,11008x4096,2048x2048")
    ask.add_argument("--sparsity", default="0.5,0.7,0.8,0.9,0.95")
    ask.add_argument("--batch", default="1,4,16")
    ask.add_argument("--two-four-batch", default="1,16,64,256", help="batches for 2:4; empty: none")
    ask.add_argument("--out", type=Path)
    given = ask.parse_args(words)
    cells = [
        ("delta", share, batch) for batch in numbers(given.batch) for share in map(float, given.sparsity.split(","))
    ]
    cells += [("2:4", 0.5, batch) for batch in numbers(given.two_four_batch)]
    if not works(torch.device("cuda", torch.cuda.current_device()), torch.float16):
        print("2:4 is left out: this GPU or this build of torch has no such product", file=sys.stderr)
        cells = [cell_ for cell_ in cells if cell_[0] != "2:4"]
    records = []
    for shape in given.shapes.split(","):
        for way, sparsity, batch in cells:
            records.append({**cell(shape, way, sparsity, batch), "environment": environment()})
            torch.cuda.empty_cache()
    print(table(records))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("".join(json.dumps(one) + "\n" for one in records))
    return int(any(one["error"] > TOLERANCE for one in records))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
