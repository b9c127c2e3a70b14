"""Seconds and memory of feta.prune against the depth of a Llama with random weights.

    PYTHONPATH=src python benchmarks/depth.py --device cuda
    PYTHONPATH=src python benchmarks/depth.py --blocks 2,4 --sequences 2 --tokens 32 --width 64   # a try

    seconds = c * blocks^exponent, by least squares on the logarithms; 1 is linear in the depth

Each cell has a record in OUT/records.jsonl and is not run again. Memory is the peak of a GPU during the run. On CPUs
it is that of the whole process up to then, so depths are run in rising order.
"""

import argparse
import contextlib
import functools
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from llama import Llama, random_llama
from measure import measured_prune, tell
from scale import exponent

from feta_lab.experiments.harness import Cell, label, run_cells
from feta_lab.records import Record, groups

VOCABULARY = 512
HEADS = 4
LAYERS = "model.layers.*"


def main(words: list[str]) -> int:
    given = parser().parse_args(words)
    sizes = ("width", "sequences", "tokens", "sparsity", "device")
    common = {name: getattr(given, name) for name in sizes}
    grid = itertools.product(range(given.rounds), sorted(given.blocks), given.methods)
    cells = [{"net": f"llama-{n}", "blocks": n, "method": method, "round": i, **common} for i, n, method in grid]
    path = given.out / "records.jsonl"
    found = run_cells("depth", cells, run, path, resume=given.resume, prepare=prepare, tell=tell)
    for text in summary(found):
        tell(text)
    return 0


def prepare(cell: Cell) -> Mapping[str, Any]:
    warm(cell["method"], cell["device"])
    return {"layers": LAYERS}


def run(cell: Cell) -> Mapping[str, Any]:
    tokens = torch.randint(
        VOCABULARY, (cell["sequences"], cell["tokens"]), generator=torch.Generator().manual_seed(cell["round"])
    )
    model, device = llama_of_depth(cell["blocks"], cell["width"]), cell["device"]
    given = {"sparsity": cell["sparsity"], "layers": LAYERS}
    _, found = measured_prune(model.to(device), tokens.to(device), cell["method"], **given)
    tell(f"{label(cell)}: {found['seconds']:.2f} s, {found['peak_bytes'] / 1e6:.0f} MB, {found['statuses']}")
    return found


@functools.lru_cache(maxsize=1)
def llama_of_depth(blocks: int, width: int) -> Llama:
    sizes = {"hidden_size": width, "intermediate_size": 8 * width // 3, "num_hidden_layers": blocks}
    return random_llama(**sizes, vocab_size=VOCABULARY, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2)


@functools.cache
def warm(method: str, device: str) -> None:
    """Prune a small model once, so that no cell pays for loading libraries."""
    with contextlib.suppress(Exception):
        tokens = torch.randint(VOCABULARY, (16, 32), device=device)
        measured_prune(llama_of_depth(1, 64).to(device), tokens, method, 0.5, layers=LAYERS)


def summary(records: Sequence[Record]) -> list[str]:
    """A line per method: the exponent, and median seconds and peak memory at each depth."""
    lines = []
    for (method,), mine in groups([record for record in records if "failure" not in record], "method").items():
        depths = {blocks: same for (blocks,), same in groups(mine, "blocks").items()}
        seconds = {n: statistics.median(one["seconds"] for one in same) for n, same in depths.items()}
        memory = {n: max(one["peak_bytes"] for one in same) / 1e6 for n, same in depths.items()}
        parts = ", ".join(f"{n}: {seconds[n]:.2f} s {memory[n]:.0f} MB" for n in depths)
        slope = f"exponent {exponent(list(seconds), list(seconds.values())):.2f}" if len(depths) > 1 else "one depth"
        lines.append(f"{method}: {slope}; blocks {parts}")
    return lines


def parser() -> argparse.ArgumentParser:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--blocks", type=lambda text: tuple(map(int, text.split(","))), default=(4, 8, 16, 32))
    ask.add_argument("--methods", type=lambda text: text.split(","), default=["threshold", "wanda", "alps", "feta"])
    ask.add_argument("--width", type=int, default=256)
    ask.add_argument("--sequences", type=int, default=16)
    ask.add_argument("--tokens", type=int, default=128)
    ask.add_argument("--sparsity", type=float, default=0.5)
    ask.add_argument("--rounds", type=int, default=1, help="the median of their seconds counts")
    ask.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ask.add_argument("--out", type=Path, default=Path("results/real"))
    ask.add_argument("--no-resume", dest="resume", action="store_false")
    return ask


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
