"""Seconds and errors of large layers, for methods side by side, on one layer held as tensors.

    PYTHONPATH=src python benchmarks/large_layers.py --device cuda --sizes 4096x11008,11008x4096 \\
        --sparsities 0.5,0.7,0.9 --rows 16384 --methods sparsegpt,alps,feta --repeats 3

Inputs are correlated: low rank with a decaying spectrum, plus noise and a constant offset, all from the seed. The
error is ||rho(A U) - rho(A W)|| / ||rho(A W)|| on rows that no method saw. One table, and with --out one JSON object
for each cell, on a line of its own. A method may carry options: feta:ridge=0.01. Needs torch and numpy alone.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import feta
from feta.calibration.model import clock
from feta_lab.experiments.plan import parse_method

HELD_OUT = 2048


def inputs(d_in: int, rows: int, seed: int, device: str) -> Tensor:
    """Rows (rows, d_in): an eighth as many factors as inputs, the i-th of strength i^-1/2, noise, and an offset."""
    generator = torch.Generator(device).manual_seed(seed)
    rank = max(1, d_in // 8)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    strength = torch.arange(1, rank + 1, device=device).rsqrt()
    mix = normal(rank, d_in) * (strength / strength.norm())[:, None]
    return (normal(rows, rank) @ mix).add_(normal(rows, d_in), alpha=0.3).add_(normal(d_in), alpha=0.3)


def measure(args: argparse.Namespace, size: str) -> list[dict[str, Any]]:
    """All cells of one layer."""
    d_in, d_out = (int(n) for n in size.split("x"))
    A = inputs(d_in, args.rows + HELD_OUT, args.seed, args.device)
    generator = torch.Generator(args.device).manual_seed(args.seed + 1)
    W = torch.randn(d_in, d_out, generator=generator, device=args.device) / d_in**0.5
    bias = torch.zeros(d_out, device=args.device) if args.bias else None
    B = A @ W
    if args.activation == "relu":
        B.relu_()
    cells = []
    for share in (float(s) for s in args.sparsities.split(",")):
        for text in args.methods.split(","):
            name, options = parse_method(text)
            seconds = []
            for _ in range(args.repeats + 1):  # the first is a warm-up
                start = clock(torch.device(args.device))
                found = feta.smart_prune(
                    W, A[: args.rows], B[: args.rows], sparsity=share, method=name,
                    activation=args.activation, bias=bias, options=options,
                )  # fmt: skip
                seconds.append(clock(torch.device(args.device)) - start)
                if args.repeats == 1:
                    break
            outputs = A[args.rows :] @ found.U
            outputs = outputs if found.bias is None else outputs + found.bias
            outputs = outputs.relu() if args.activation == "relu" else outputs
            error = torch.linalg.vector_norm(outputs - B[args.rows :]) / torch.linalg.vector_norm(B[args.rows :])
            cell = {
                "size": size, "sparsity": share, "method": text, "activation": args.activation, "rows": args.rows,
                "seconds": statistics.median(seconds[1:] or seconds), "repeats": args.repeats, "error": float(error),
                "nonzeros": int(found.U.count_nonzero()), "status": found.status.value,
                "iterations": found.stats.get("iterations"), "device": describe(args.device), "seed": args.seed,
                "torch": torch.__version__, "threads": torch.get_num_threads(),
            }  # fmt: skip
            cells.append(cell)
            row = f"{size:>12} {share:5.2f} {text:24} {cell['seconds']:9.3f} s   error {cell['error']:.5f}"
            print(f"{row}   {cell['status']}", flush=True)
            del found, outputs
    return cells


def describe(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="4096x4096,4096x11008,11008x4096", help="d_in x d_out")
    parser.add_argument("--sparsities", default="0.5,0.7,0.9")
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--methods", default="sparsegpt,alps,feta")
    parser.add_argument("--activation", default="linear", choices=["linear", "relu"])
    parser.add_argument("--bias", action="store_true", help="layers with a bias, of zero")
    parser.add_argument("--repeats", type=int, default=1, help="more than one: after a warm-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of torch on a CPU")
    parser.add_argument("--out", type=Path, help="a file of JSON lines, appended to")
    args = parser.parse_args(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    for size in args.sizes.split(","):
        cells = measure(args, size)
        if args.out:
            with args.out.open("a") as file:
                file.writelines(json.dumps(cell) + "\n" for cell in cells)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
