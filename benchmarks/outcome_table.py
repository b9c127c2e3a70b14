"""The README's table of what pruning is good for: bytes of files and milliseconds of networks, from records.

    python benchmarks/outcome_table.py                     # prints it
    python benchmarks/outcome_table.py --write README.md   # puts it between the marks
    python benchmarks/outcome_table.py --check README.md   # fails when it holds another

Files are those of results/files (`benchmarks/files.py`), times those of results/speed (`benchmarks/speed.py`), both
at 90 % zeros, the language model at 70 %; times with one thread.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from real_table import replaced

from feta_lab.records import Record, latest, read

RESULTS = Path(__file__).parents[1] / "results"
MARKS = "<!-- smaller and faster: benchmarks/outcome_table.py -->", "<!-- end of smaller and faster -->"
FILES = ("dense-mnist-wide", "dense-cifar-wide", "resnet20", "conv-cifar")
NETWORKS = (("mlp", 0.9), ("layer 2048", 0.9), ("conv", 0.9), ("SmolLM2", 0.7))
SHOWN = (1, 16, 256)  # batch sizes


def files(records: list[Record]) -> str:
    lines = ["| file at 90 % zeros, kB | plain | gzip | xz | feta |", "| --- " * 5 + "|"]
    for record in records:
        key, size = record["key"], record["metrics"]["bytes"]
        if key["net"] in FILES and key["sparsity"] == 0.9 and key["method"] == "threshold":
            told = (f"{size[kind] / 1e3:,.0f}" for kind in ("plain", "gzip", "xz", "small"))
            lines.append(f"| {key['net']} | {' | '.join(told)} |")
    return "\n".join(lines)


def speed(records: list[Record]) -> str:
    heads = " | ".join(f"batch {batch}" for batch in SHOWN)
    lines = [f"| milliseconds, dense → sparse | zeros | {heads} | memory |", "| --- " * (3 + len(SHOWN)) + "|"]
    for begin, zeros in NETWORKS:
        for record in records:
            key, metrics = record["key"], record["metrics"]
            if record["kind"] == "speed" and key["network"].startswith(begin) and key["sparsity"] == zeros:
                memory = f"{metrics['sparse_bytes'] / metrics['dense_bytes']:.2f}"
                told = {row["batch"]: _times(row["dense_ms"], row["sparse_ms"]) for row in metrics["batches"]}
                cells = " | ".join(told.get(batch, "–") for batch in SHOWN)
                lines.append(f"| {key['network']} | {100 * zeros:g} % | {cells} | {memory} |")
    return "\n".join(lines)


def _times(dense: float, sparse: float) -> str:
    return f"{dense:.3g} → {sparse:.3g} (**{dense / sparse:.1f}×**)"


def table() -> str:
    stored = list(latest(read(RESULTS / "files" / "records.jsonl")).values())
    timed = [one for one in latest(read(RESULTS / "speed" / "records.jsonl")).values() if one["key"]["threads"] == 1]
    processor = timed[0]["environment"]["processor"]
    return f"{files(stored)}\n\n{speed(timed)}\n\nOne thread of {processor}; memory is that of the weights, of dense."


def main(words: list[str]) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--write", type=Path)
    ask.add_argument("--check", type=Path)
    given = ask.parse_args(words)
    page = given.write or given.check
    if page is None:
        print(table())
        return 0
    before = page.read_text(encoding="utf-8")
    after = replaced(before, table(), MARKS)
    if given.write:
        page.write_text(after, encoding="utf-8")
    return int(before != after and given.check is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
