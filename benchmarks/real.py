"""Real pretrained models: accuracy or perplexity after pruning without retraining, and the seconds waited for it.

    PYTHONPATH=src python benchmarks/real.py resnet --models MODELS --data DATA
    PYTHONPATH=src python benchmarks/real.py smollm2 --models MODELS --folder SMOLLM2 --device cuda
    PYTHONPATH=src python benchmarks/real.py resnet --nets resnet-20 --seeds 1 --images 50 --limit 500   # a try

MODELS holds resnet20-cifar10.safetensors, resnet32-cifar10.safetensors, smollm2-wikitext2-test.npy and
smollm2-wikitext2-valid.npy; DATA holds cifar-10-batches-bin/; SMOLLM2 holds config.json and model.safetensors. The
first two may be named by FETA_MODELS and FETA_DATA. Needs torch, numpy, scipy and safetensors.

A cell has a record in OUT/records.jsonl and is not run again; one that raises has a record with the reason. `seconds`
is the wall clock around feta.prune. Each method is warmed up on a tiny model first.
"""

import argparse
import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from measure import shares, tell, words
from pretrained import ResNets, SmolLm

from feta.errors import FetaError
from feta_lab.experiments.harness import Cell, label, run_cells


def main(words: list[str]) -> int:
    asked = vars(parser().parse_args(words))
    how = {name: asked.pop(name) for name in ("jobs", "cell_budget", "resume")}
    kind, records = asked.pop("kind"), asked.pop("out") / "records.jsonl"
    if kind == "smollm2":
        asked["folder"] = asked["folder"] or asked["models"] / "smollm2"
    plan = asked.pop("plan")(**asked)
    run = functools.partial(run_and_tell, plan)
    try:
        found = run_cells(kind, plan.cells(), run, records, prepare=plan.prepare, tell=tell, **how)
    except FetaError as error:
        tell(f"real.py: {error}")
        return 1
    failed = sum("failure" in record for record in found)
    tell(f"{len(found)} cells, {failed} of them failed; records: {records}")
    return 0


def run_and_tell(plan: ResNets | SmolLm, cell: Cell) -> Mapping[str, Any]:
    """A cell's numbers are seen at once, not only when all are done."""
    found = plan.run(cell)
    tell(f"{label(cell)}: {plan.score} {found[plan.score]:.2f}, {found['seconds']:.2f} s, {found['statuses']}")
    return found


def folder_from(variable: str) -> Path | None:
    return Path(os.environ[variable]) if variable in os.environ else None


def parser() -> argparse.ArgumentParser:
    both = argparse.ArgumentParser(add_help=False)
    found = folder_from("FETA_MODELS")
    both.add_argument("--models", type=Path, default=found, required=found is None)
    both.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    both.add_argument("--limit", type=int, help="test images or windows; all by default")
    both.add_argument("--out", type=Path, default=Path("results/real"))
    both.add_argument("--jobs", type=int, default=1, help="cells at once; their seconds do not compare then")
    both.add_argument("--cell-budget", type=float, help="seconds after which a cell is stopped")
    both.add_argument("--no-resume", dest="resume", action="store_false")
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ask.add_subparsers(dest="kind", required=True)
    add_resnet(kinds.add_parser("resnet", parents=[both]))
    add_smollm2(kinds.add_parser("smollm2", parents=[both]))
    return ask


def add_resnet(ask: argparse.ArgumentParser) -> None:
    found = folder_from("FETA_DATA")
    ask.add_argument("--data", type=Path, default=found, required=found is None)
    ask.add_argument("--nets", type=words, default=("resnet-20", "resnet-32"))
    ask.add_argument("--methods", type=words, default=("threshold", "sparsegpt", "alps", "feta"))
    ask.add_argument("--sparsity", type=shares, default=(0.5, 0.7, 0.8, 0.9))
    ask.add_argument("--allocation", type=words, default=("uniform", "sensitivity"))
    ask.add_argument("--seeds", type=int, default=3, help="calibration sets")
    ask.add_argument("--images", type=int, default=1000, help="in a calibration set")
    ask.set_defaults(plan=ResNets)


def add_smollm2(ask: argparse.ArgumentParser) -> None:
    ask.add_argument("--folder", type=Path, help="of the model; MODELS/smollm2 by default")
    ask.add_argument("--methods", type=words, default=("wanda", "sparsegpt", "alps", "feta"))
    ask.add_argument("--sparsity", type=shares, default=(0.5, 0.6, 0.7))
    ask.add_argument("--allocation", type=words, default=("uniform",))
    ask.add_argument("--seeds", type=int, default=1, help="calibration sets")
    ask.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    ask.add_argument("--sequences", type=int, default=64)
    ask.add_argument("--tokens", type=int, default=512)
    ask.add_argument("--window", type=int, default=1024)
    ask.add_argument("--batch", type=int, default=8)
    ask.set_defaults(plan=SmolLm, nets=("smollm2-135m",))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
