"""What pruning costs against rows, width, depth and processes, with fitted exponents.

    PYTHONPATH=src python benchmarks/scale.py                                                # small, on a CPU
    PYTHONPATH=src python benchmarks/scale.py --device cuda --rows 4096,16384,65536 \\
        --widths 1024,2048,4096,8192,16384 --depths 2,4,8,16 --ranks 1                       # on a GPU
    PYTHONPATH=src python benchmarks/scale.py --device cuda --ranks 1,2,4                    # on several GPUs

    seconds = c * size^exponent, by least squares on the logarithms; on CPUs of the first process's own CPU seconds,
    which other work on the machine hardly touches

One thing varies at a time, the others are those in the middle of their lists. The network is a chain of square dense
layers with ReLUs and random weights, the rows are normal. A record for each cell goes to --out; the best of
--rounds is taken, for other work on a machine only ever adds to it. Processes over gloo on one machine share its
cores: one that has less to do itself is what they can show, not what more machines would save.
"""

import argparse
import math
import os
import socket
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measure import peak_bytes
from torch import nn

import feta
from feta.calibration.model import clock
from feta_lab.records import Record, append, groups, record

AXES = ("rows", "widths", "depths", "ranks")


def main(words: list[str]) -> int:
    given = parser().parse_args(words)
    middle = {axis: sorted(getattr(given, axis))[(len(getattr(given, axis)) - 1) // 2] for axis in AXES[:3]}
    for axis in AXES:
        values, times = sorted(getattr(given, axis)), []
        if len(values) < 2:
            continue
        for value in values:
            cell = {**middle, "ranks": 1, axis: value, "device": given.device, "method": given.method}
            cell["threads"] = given.threads
            kind = "seconds" if given.device == "cuda" else "cpu_seconds"
            found = min((measured(cell) for _ in range(given.rounds)), key=lambda one: one[kind])
            times.append(found[kind])
            append(given.out, record("scale", {"axis": axis, **cell}, 0, found))
            told = f"{found['seconds']:8.2f} s, {found['cpu_seconds']:8.2f} s of the CPU"
            print(f"{axis:7s} {value:7d}  {told}, {found['peak_bytes'] / 1e6:6.0f} MB", flush=True)
        print(f"{axis:7s} exponent {exponent(values, times):.2f}", flush=True)
    return 0


def measured(cell: dict[str, Any]) -> dict[str, float]:
    """Seconds and peak memory of one run, in a process of its own for each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue: Any = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (cell, port, queue), nprocs=cell["ranks"])  # type: ignore[no-untyped-call]
    found: dict[str, float] = queue.get()
    return found


def work(rank: int, cell: dict[str, Any], port: int, queue: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(cell["threads"])
    device, on_gpu = cell["device"], cell["device"] == "cuda"
    if cell["ranks"] > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=cell["ranks"])
    if on_gpu:
        torch.cuda.set_device(rank)
    run({**cell, "rows": 64, "widths": 32, "depths": 2}, device)  # so that no cell pays for loading libraries
    seconds, busy = run(cell, device)
    if rank == 0:
        queue.put({"seconds": seconds, "cpu_seconds": busy, "peak_bytes": peak_bytes(torch.device(device))})
    if cell["ranks"] > 1:
        dist.destroy_process_group()


def run(cell: dict[str, Any], device: str) -> tuple[float, float]:
    torch.manual_seed(0)
    width = cell["widths"]
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(cell["depths"])]
    model, rows = nn.Sequential(*blocks).to(device), torch.randn(cell["rows"], width)
    began = clock(torch.device(device)), time.process_time()
    feta.prune(model, rows, 0.9, cell["method"], layers="*")
    return clock(torch.device(device)) - began[0], time.process_time() - began[1]


def table(records: Sequence[Record]) -> str:
    """A line for each device and axis: seconds and memory at each size, and the exponent."""
    lines = ["| device | what grows | size: seconds, memory | exponent |", "| --- " * 4 + "|"]
    for (device, axis), same in groups([one["key"] | one["metrics"] for one in records], "device", "axis").items():
        told = [f"{one[axis]:,}: {spent(one):.2g} s, {one['peak_bytes'] / 1e9:.2g} GB" for one in same]
        found = exponent([one[axis] for one in same], [spent(one) for one in same])
        others = ", ".join(f"{same[0][name]:,} {name}" for name in AXES[:3] if name != axis)
        lines.append(f"| {device} | {axis} ({others}) | {'; '.join(told)} | {found:.2f} |")
    return "\n".join(lines)


def spent(found: Mapping[str, Any]) -> float:
    """On a CPU the process's own seconds, which other work hardly touches."""
    return float(found["seconds" if found["device"] == "cuda" else "cpu_seconds"])


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log(seconds) over log(sizes)."""
    return statistics.linear_regression([*map(math.log, sizes)], [*map(math.log, seconds)]).slope


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    for axis, default in (("rows", "1000,4000,16000"), ("widths", "128,256,512"), ("depths", "2,4,8")):
        found.add_argument(f"--{axis}", type=numbers, default=numbers(default))
    found.add_argument("--ranks", type=numbers, default=[1, 2])
    found.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    found.add_argument("--method", default="feta")
    found.add_argument("--threads", type=int, default=1, help="of each process; threads that wait count as busy")
    found.add_argument("--rounds", type=int, default=2)
    found.add_argument("--out", type=Path, default=Path("results/scale/records.jsonl"))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
