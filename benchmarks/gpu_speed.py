"""Half-precision sparse layers against cuBLAS on a GPU: microseconds of one layer, launches recorded as a CUDA graph.

    PYTHONPATH=src python benchmarks/gpu_speed.py --out results/gpu-speed/records.jsonl
    PYTHONPATH=src python benchmarks/gpu_speed.py --table results/gpu-speed/records.jsonl

A graph holds launches on many copies of the weights, 400 MB in all, so that none of them waits in a cache. Both ways
run in turns; the median over the replays counts. Weights are random with zeros anywhere. Every output is checked
against float64. Needs torch, triton and numpy alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.inference.gpu_delta import DeltaLinear
from feta_lab.records import environment

COLD_BYTES = 400_000_000
REPLAYS = 50
TOLERANCE = 2e-3  # relative, in float16


def layer_of(height: int, width: int, sparsity: float) -> nn.Linear:
    generator = torch.Generator("cuda").manual_seed(0)
    layer = nn.Linear(width, height, bias=False, device="cuda", dtype=torch.float16).requires_grad_(False)
    weight = torch.randn(height, width, generator=generator, device="cuda") / width**0.5
    layer.weight.copy_(weight * (torch.rand(height, width, generator=generator, device="cuda") >= sparsity))
    return layer


def bytes_of(module: nn.Module) -> int:
    return sum(part.nbytes for part in (*module.parameters(), *module.buffers()))


def recorded(module: nn.Module, x: Tensor) -> tuple[Callable[[], None], int, Any]:
    """A replay of launches on many copies, how many, and what must stay alive meanwhile."""
    copies = [copy.deepcopy(module) for _ in range(max(8, -(-COLD_BYTES // bytes_of(module))))]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for one in copies[:3]:
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


def cell(shape: str, sparsity: float, batch: int) -> dict[str, Any]:
    height, width = (int(n) for n in shape.split("x"))
    dense = layer_of(height, width, sparsity)
    sparse = DeltaLinear(dense)
    x = torch.randn(batch, width, device="cuda", dtype=torch.float16)
    truth = x.double() @ dense.weight.double().t()
    error = float((sparse(x).double() - truth).norm() / truth.norm())
    us = microseconds({"dense": dense, "sparse": sparse}, x)
    key = {"shape": shape, "sparsity": sparsity, "batch": batch}
    sizes = {"dense_bytes": bytes_of(dense), "sparse_bytes": bytes_of(sparse)}
    return {"kind": "gpu-speed", **key, "dense_us": us["dense"], "sparse_us": us["sparse"], "error": error, **sizes}


def table(records: list[dict[str, Any]]) -> str:
    """Times as fast as dense, by shape and batch, at each sparsity."""
    shares = sorted({one["sparsity"] for one in records})
    head = ["float16, out x in, batch", "dense µs", *(f"{100 * share:g} %" for share in shares)]
    lines = [head, ["---"] * len(head)]
    for shape, batch in dict.fromkeys((one["shape"], one["batch"]) for one in records):
        mine = {one["sparsity"]: one for one in records if (one["shape"], one["batch"]) == (shape, batch)}
        gains = [f"{mine[s]['dense_us'] / mine[s]['sparse_us']:.2f}" if s in mine else "–" for s in shares]
        lines.append([f"{shape}, {batch}", f"{statistics.median(o['dense_us'] for o in mine.values()):.1f}", *gains])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(words: list[str]) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--shapes", default="8192x8192,4096x11008,11008x4096,2048x2048")
    ask.add_argument("--sparsity", default="0.5,0.7,0.8,0.9,0.95")
    ask.add_argument("--batch", default="1,4,16")
    ask.add_argument("--out", type=Path)
    ask.add_argument("--table", type=Path, help="print the table of these records and measure nothing")
    given = ask.parse_args(words)
    if given.table:
        print(table([json.loads(line) for line in given.table.read_text().splitlines()]))
        return 0
    records = []
    for shape in given.shapes.split(","):
        for batch in map(int, given.batch.split(",")):
            for sparsity in map(float, given.sparsity.split(",")):
                records.append({**cell(shape, sparsity, batch), "environment": environment()})
                torch.cuda.empty_cache()
    print(table(records))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("".join(json.dumps(one) + "\n" for one in records))
    return int(any(one["error"] > TOLERANCE for one in records))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
