"""Misuses of the API and of the command line, made from the signatures: each parameter × values it should not have.

A call may work, or raise a FetaError. It may leave nothing behind: the models' bits, hooks, modes, gradients and
torch's random state are as before. On the command line nothing ends in a traceback or the exit code of a mishap.
"""

import contextlib
import inspect
import io
import os
import random
import sys
import tempfile
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import feta
from feta.allocation import make_allocation
from feta.certificates.attack import Attack
from feta.files.exports import FORMS, export
from feta.files.low_rank import low_rank
from feta.masks import torch_masks
from feta.pruners import METHODS, make
from feta.theory.bounds import generalisation_bounds
from feta.theory.dimension import intrinsic_dimension
from feta.theory.robustness import Manifold
from feta.tuning.mixing import Mixing
from feta_lab import data, store
from feta_lab.training import Training, train
from soak.misuse_values import BAD, TEXTS
from soak.tally import Tally

COUNT = 2000  # a tenth of them on the command line
OWN = ("callback", "loss", "optimiser", "validation")  # functions of the caller's: their errors are theirs
CODE = """
from torch import nn
def make():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    model(torch.randn(4, 8)).sum().backward()  # so that it has gradients
    return model


def plain() -> nn.Module:
    """One that can be certified."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def rows() -> torch.Tensor:
    return torch.randn(40, 8, generator=torch.Generator().manual_seed(1))


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    return rows(), torch.arange(40) % 3


Call = tuple[Callable[..., Any], Callable[[Path], dict[str, Any]]]


def calls() -> dict[str, Call]:
    """Every public function and class of settings, with arguments that work and take little time."""
    fast = {"steps": 5, "learning_rate": 1e-3}
    functions: dict[str, Call] = {
        "prune": (feta.prune, lambda _: {"model": network(), "data": rows(), "sparsity": 0.5, "effort": "fast"}),
        "refine": (feta.refine, lambda _: {"model": network(), "reference": network(), "data": rows(), **fast}),
        "retrain": (feta.retrain, lambda _: {"model": network(), "data": pairs(), "max_epochs": 1}),
        "shrink": (feta.shrink, lambda _: {"model": plain(), "data": rows(), "effort": "fast"}),
        "smart_prune": (feta.smart_prune, lambda _: {"W": torch.ones(8, 3), "A": rows(), "B": rows()[:, :3]}),
        "certify": (
            feta.certify,
            lambda _: {"dense": plain(), "pruned": plain(), "data": rows(), "attack": None, "samples": 2},
        ),
        "sparsify": (feta.sparsify, lambda _: {"model": plain(), "example": rows()}),
        "hold_zeros": (feta.hold_zeros, lambda _: {"model": network()}),
        "masks_of": (feta.masks_of, lambda _: {"model": network()}),
        "save": (feta.save, lambda folder: {"network": network(), "path": folder / "out.safetensors"}),
        "load": (feta.load, lambda folder: {"path": folder / "net.safetensors"}),
        "load_into": (feta.load_into, lambda folder: {"model": network(), "path": folder / "net.safetensors"}),
        "torch_masks": (torch_masks, lambda _: {"model": network()}),
        "low_rank": (low_rank, lambda _: {"model": network(), "rank": 2}),
        "export": (export, lambda folder: {"model": plain(), "example": rows(), "safetensors": folder / "out"}),
        "generalisation_bounds": (
            generalisation_bounds,
            lambda _: {"dense": plain(), "pruned": plain(), "data": rows(), "max_starts": 0},
        ),
        "intrinsic_dimension": (intrinsic_dimension, lambda _: {"rows": rows()}),
        "make": (make, lambda _: {"method": "feta"}),
        "make_allocation": (make_allocation, lambda _: {"allocation": "uniform"}),
    }
    kinds = (feta.Settings, feta.Refinement, feta.Retraining, Attack, Mixing, *METHODS.values())
    functions |= {kind.__name__: (kind, lambda _: {}) for kind in kinds}
    functions["Manifold"] = Manifold, lambda _: {"dimension": 2.0, "regularity": 1.0}
    return functions | {"Sparsity": (feta.Sparsity, lambda _: {"share": 0.5})}


def misuses() -> list[tuple[str, str, str]]:
    """(function, parameter, value)."""
    return [
        (name, parameter, bad)
        for name, (made, _) in calls().items()
        for key in inspect.signature(made).parameters
        for parameter in {"paths": FORMS}.get(key, [key])
        for bad in BAD
    ]


def state(value: Any) -> Any:
    """Everything about a model that a call must leave as it was; of tensors their bits."""
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.parameter.UninitializedTensorMixin):
        if value.is_meta or value.is_sparse or value.is_quantized:
            return None
        return (
            value.dtype,
            tuple(value.shape),
            value.detach().contiguous().view(torch.uint8).tolist() if value.ndim else value.item(),
        )
    if not isinstance(value, nn.Module) or isinstance(value, torch.jit.ScriptModule):
        return None
    found = []
    for name, module in value.named_modules():
        hooks = [len(v) for k, v in vars(module).items() if k.endswith("_hooks") and v is not None]
        found.append((name, type(module), module.training, hooks, sorted(vars(module))))
    tensors = [*value.named_parameters(), *value.named_buffers()]
    return found, [(name, id(t), state(t), t.requires_grad, state(t.grad)) for name, t in tensors]


def misused(name: str, parameter: str, bad: str, folder: Path) -> str:
    """What is wrong with a misuse; empty: nothing."""
    made, usual = calls()[name]
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch does not like all of these either
        given = {**usual(folder), parameter: BAD[bad]()}
    before, drawn = {key: repr(state(value)) for key, value in given.items()}, torch.get_rng_state()
    error: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made(**given)
    except feta.FetaError as refused:
        text = str(refused)
        if any(not letter.isprintable() and letter != "\n" for letter in text):
            return f"a message with escapes: {text!r}"
        if len(text) > 2000:
            return f"a message of {len(text)} letters"
        error = refused
    except Exception as other:
        if callable(given[parameter]) and parameter in OWN:
            return ""
        return f"{type(other).__name__}: {' '.join(str(other).split())[:200]}"
    if not torch.equal(drawn, torch.get_rng_state()):
        return "torch's random state has moved on"
    # load_into fills its model, the others hold its zeros: where they work that is what they are for.
    changing = name in ("load_into", "hold_zeros", "torch_masks") and error is None
    changed = [key for key, value in given.items() if not changing and repr(state(value)) != before[key]]
    return f"changed: {', '.join(changed)}" if changed else ""


def commands() -> list[list[str]]:
    """Command lines: each option of each command × words it should not have."""
    from feta.cli.bounds import bounds
    from feta.cli.certify import certify
    from feta.cli.export import export
    from feta.cli.networks import evaluate, info
    from feta.cli.own_options import OwnOptions, StoreOptions
    from feta.cli.prune import prune
    from feta.cli.retrain import retrain
    from feta.cli.speed import speed
    from feta_lab.cli.data import check
    from feta_lab.cli.report import report
    from feta_lab.cli.train import train as train_command

    tiny = ["8FC-10SM", "--data", "mnist-mini", "--epochs", "1", "-o", "trained.safetensors"]
    usual = {
        "prune": (prune, ["soak_net:make", "--data", "rows.npy", "--effort", "fast"]),
        "export": (export, ["soak_net:make", "--input", "8", "--safetensors", "out.safetensors"]),
        "speed": (speed, ["soak_net:make", "--input", "8", "--batch", "1", "--threads", "1"]),
        "retrain": (retrain, ["known.safetensors", "--epochs", "1", "--batch-size", "1000"]),
        "eval": (evaluate, ["known.safetensors"]),
        "info": (info, ["known.safetensors"]),
        "bounds": (bounds, ["known.safetensors", "known.safetensors", "--samples", "100", "--starts", "0"]),
        "certify": (certify, ["known.safetensors", "known.safetensors", "--samples", "2", "--attack", "false"]),
        "train": (train_command, tiny),
        "report": (report, ["."]),
        "data check": (check, ["mnist-mini"]),
    }
    found = []
    for name, (function, good) in usual.items():
        parameters = inspect.signature(function).parameters.values()
        groups = [OwnOptions] * ("own" in function.__annotations__) + [StoreOptions] * (name == "prune")
        options = [
            p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("own", "stored", "options")
        ]
        options += [field for group in groups for field in typing.get_type_hints(group)]
        for option in options:
            flag = "--input" if option == "sample" else f"--{option.replace('_', '-')}"
            rest = good[: good.index(flag)] + good[good.index(flag) + 2 :] if flag in good else good
            found += [[*name.split(), *rest, f"{flag}={text}"] for text in TEXTS]
        found += [[*name.split(), text, *good[1:]] for text in TEXTS]
    # With anything that may be, these work for minutes.
    return found + [[*words, text] for words in (["reproduce"], ["bench", "--allocation"]) for text in TEXTS]


def typed(words: list[str]) -> str:
    """What is wrong with how a command line ends; empty: nothing."""
    from feta.cli import main

    out, err = io.StringIO(), io.StringIO()
    old, sys.argv = sys.argv, ["feta", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        sys.argv = old
    text = out.getvalue() + err.getvalue()
    if code not in (0, 1, 2):
        return f"exit code {code}: {err.getvalue()[-300:]!r}"
    if "\x1b" in text or "Traceback" in text:
        return f"escapes or a traceback: {text[-300:]!r}"
    return ""


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder with a network, its file and its rows; the current one inside."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        feta.save(network(), folder / "net.safetensors")
        store.save(train("8FC-10SM", data.load("mnist-mini"), Training(max_epochs=1)), folder / "known.safetensors")
        (folder / "soak_net.py").write_text(CODE)
        import numpy as np

        np.save(folder / "rows.npy", rows().numpy())
        os.chdir(folder)
        sys.path.insert(0, name)
        try:
            yield folder
        finally:
            sys.path.remove(name)
            os.chdir(before)


def run(count: int, seed: int) -> Tally:
    tally, drawn = Tally("misuse"), random.Random(seed)
    with workplace() as folder:
        api, lines = misuses(), commands()
        for name, parameter, bad in drawn.sample(api, min(len(api), count - count // 10)):
            tally.tried += 1
            if wrong := misused(name, parameter, bad, folder):
                tally.wrong.append(f"feta.{name}({parameter}={bad}): {wrong}")
        for words in drawn.sample(lines, min(len(lines), count // 10)):
            tally.tried += 1
            if wrong := typed(words):
                tally.wrong.append(f"feta {words!r}: {wrong}"[:600])
    return tally
