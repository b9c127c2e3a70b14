"""What commands work on: a network with data to prune on and to judge by.

A package that knows a kind of network file adds a function that opens it, see feta.plugins. A model of the user's own
has inputs to prune on, but no labels to judge by, see feta.cli.own.
"""

import copy
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from feta.calibration.model import call, evaluating, float_dtype
from feta.cli.console import download_bar, err, size
from feta.cli.options import whole_numbers
from feta.cli.own_data import positions
from feta.cli.typed import DATA
from feta.engine.finish import PruneWarning
from feta.engine.prune import prune
from feta.engine.select import SparsityRequest
from feta.errors import ConfigError, ModelError, one_line
from feta.files import sparse_file
from feta.files.lossy import Smaller, weight_error, with_rounded_weights
from feta.files.network import described
from feta.plugins import required
from feta.ranks import Ranks
from feta.tuning.batches import labelled, score_of

Part = Literal["train", "validation", "test"]
TOKENS = 64  # of a sample that is made up for a language model
KEPT = ("method", "target_sparsity", "sparsity", "seed", "options", "compensated")


@dataclass(frozen=True)
class Subject:
    """A network and its data, as commands see them."""

    model: nn.Module
    specification: str  # the network in one line
    data: str | None  # what its labelled data is called; None where there is none
    preparation: tuple[Any, ...]  # shape and normalisation of its inputs: equal for a network and its pruned form
    deviations: tuple[float, ...]  # by what each channel of pixels in [0, 1] was divided
    rows: Callable[[Part, str], tuple[Tensor, Tensor]]  # part and device -> inputs and labels
    encode: Callable[..., bytes]  # model, pruning, accuracy and the options of feta.save -> file
    record: Callable[[Path, str, Mapping[str, Any], int, Any], None]  # file, kind, config, seed, metrics
    pruning: Mapping[str, Any] | None = None  # what was done to it since it was trained
    environment: Mapping[str, str] = field(default_factory=dict)  # versions and machine
    inputs: Sequence[Any] | None = None  # batches to prune on, of data without labels
    note: str | None = None  # what these inputs are, in words


def open_subject(
    network: Path, data_dir: Path | None = None, data: str | None = None, *, with_data: bool = True, cure: str = ""
) -> Subject:
    """The network in a file, with the data it names or with the data set called `data`, from `data_dir` if given.

    cure: what to do with a file that does not describe its network.
    """
    described(sparse_file.open_file(network).metadata, network, cure)
    if data is not None and Path(data).suffix in (*DATA, ".safetensors"):
        raise ConfigError(
            f"--data must be the name of a data set out of `feta data list`, as {network} is a file of `feta train`, "
            f"got {data}"
        )
    opener = required("feta.subjects", "paper", f"{network}: a network in the paper's notation")
    with download_bar() as advance:
        found: Subject = opener(network, data_dir=data_dir, data=data, with_data=with_data, progress=advance)
    return found


def open_pair(
    dense: Path, pruned: Path, data_dir: Path | None, data: str | None, cure: str
) -> tuple[Subject, Subject]:
    """A network with its data, and what pruning made of it. Raises ConfigError where they do not fit."""
    one, other = open_subject(dense, data_dir, data, cure=cure), open_subject(pruned, with_data=False, cure=cure)
    if one.specification != other.specification:
        raise ConfigError(
            f"the pruned network must come from the dense one, got {other.specification} and {one.specification}"
        )
    zeros = [sum(int((weight == 0).sum()) for weight in subject.model.parameters()) for subject in (one, other)]
    if zeros[0] > zeros[1]:
        raise ConfigError(
            f"the dense network must come before the pruned one, got {dense} with {zeros[0]} zeros and {pruned} with "
            f"{zeros[1]}; swap them"
        )
    if one.preparation != other.preparation:
        raise ConfigError(f"both networks must take the same inputs, got {one.preparation} and {other.preparation}")
    return one, other


def accuracy(model: nn.Module, subject: Subject, device: str) -> dict[str, float]:
    """Percent of right answers on the validation and the test half of the subject's data."""
    model, ranks = model.to(device), Ranks(torch.device(device))
    parts: tuple[Part, ...] = ("validation", "test")
    halves = {part: labelled(subject.rows(part, device), ranks, float_dtype(model), 1000, seed=0) for part in parts}
    return {part: score_of(model, half, ranks) for part, half in halves.items()}


def example_of(subject: Subject, shape: str | None, name: str) -> Any:
    """Samples to call a network with: the user's own, or two random ones of the shape that is given or known.

    shape: of one sample, 3,32,32; of a model of tokens their number. Raises ConfigError where it cannot be told.
    """
    if subject.inputs is not None:
        return subject.inputs[0]
    model = subject.model
    leaves = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    first = leaves[0] if leaves else None
    given = tuple(whole_numbers(shape, "--input")) if shape is not None else None
    sizes = given or _sizes(subject, first)
    if sizes is None:
        raise ConfigError(
            f"--input or --data must say what {name} takes, got neither; write --input {_such(first, ())}"
        )
    generator = torch.Generator().manual_seed(0)
    if isinstance(first, nn.Embedding):
        example = torch.randint(first.num_embeddings, (2, *sizes), generator=generator)
    else:
        example = torch.randn((2, *sizes), generator=generator).to(float_dtype(model))
    if given is not None:
        _check_example(model, example, f"got {shape} for {name}", _such(first, given))
    return example


def _sizes(subject: Subject, first: nn.Module | None) -> tuple[int, ...] | None:
    """The shape of one sample, where the network tells it; of a language model so many tokens."""
    if subject.preparation:
        return tuple(subject.preparation[0])
    if type(subject.model) is nn.Sequential and isinstance(first, nn.Linear):
        return (first.in_features,)
    if isinstance(first, nn.Embedding) and (most := positions(subject.model)) is not None:
        return (min(TOKENS, most),)
    return None


def _such(first: nn.Module | None, given: Sequence[int]) -> str:
    """A shape as the first layer with weights takes it, as near as can be to the one that was given."""
    if isinstance(first, nn.Embedding):
        return f"{TOKENS}, the number of tokens"
    if isinstance(first, nn.Linear):
        return str(first.in_features)
    places = list(given[-2:]) if len(given) > 1 else [32, 32]
    return ",".join(map(str, [first.in_channels if isinstance(first, nn.Conv2d) else 3, *places]))


def _check_example(model: nn.Module, example: Tensor, got: str, such: str) -> None:
    """Raise ConfigError where a network does not run on a shape that was typed."""
    try:
        with evaluating(model), torch.no_grad():
            call(model, example)
    except Exception as error:  # the user's own code runs here
        raise ConfigError(
            f"--input must be the shape of one sample, such as {such}, {got}: {one_line(error)}"
        ) from None


@contextmanager
def working(device: str) -> Iterator[None]:
    """Inside, warnings are lines on stderr, and memory that is full is an error with the options that help."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", PruneWarning)
        warnings.showwarning = lambda message, *_, **__: err().print(f"feta: warning: {message}")
        try:
            yield
        except torch.OutOfMemoryError:
            raise ModelError(
                f"the work must fit into the memory of {device}, got out of it; give a smaller --batch-size or "
                "--samples, or --device cpu"
            ) from None


def prune_subject(
    subject: Subject, sparsity: SparsityRequest, method: str | None, *, device: str = "cpu", **options: Any
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """Prune a copy of a network and judge it, where there is data; `options` are those of feta.prune.

    Returns the new model, a summary of the run that is ready for JSON, and what the model's file remembers of it.
    """
    rows: Any = subject.inputs
    if subject.data is not None:
        rows = subject.rows("train", device)[0]
    result = prune(subject.model, rows, sparsity, method, device=device, **options)
    summary = json.loads(result.report.to_json())
    summary["notes"] = [*result.report.headline()[1:], *result.report.notes()]
    for layer in summary["layers"]:
        del layer["stats"]  # for people who look into a solver
    kept = {key: summary[key] for key in KEPT} | {"layers": [layer["name"] for layer in summary["layers"]]}
    if summary["pattern"] is not None:
        kept["pattern"] = summary["pattern"]
    if summary["refinement"] is not None:
        kept["refinement"] = {key: summary["refinement"][key] for key in ("steps", "loss", "support")}
    summary["accuracy"] = None
    if subject.data is not None:
        # A copy of the dense one, so that the subject's own model stays where it is.
        models = {"dense": copy.deepcopy(subject.model), "pruned": result.model}
        scores = {name: accuracy(model, subject, device) for name, model in models.items()}
        summary["accuracy"] = scores
        kept["dense_accuracy"] = scores["dense"]  # what retraining has to come back to
    return result.model.to("cpu"), summary, kept


def rounding_cost(
    subject: Subject, model: nn.Module, exact_bytes: int, dtype: Smaller, device: str
) -> dict[str, Any]:
    """Accuracy with rounded weights, where there is data to judge by, their relative error, and the exact file."""
    rounded = with_rounded_weights(copy.deepcopy(model), dtype)
    found = {"dtype": dtype, "weight_error": weight_error(model, rounded), "exact_bytes": exact_bytes}
    return found | {"accuracy": accuracy(rounded, subject, device) if subject.data is not None else None}


def rounding_told(rounding: Mapping[str, Any], accuracy: Any, written: int) -> str:
    """What storing the weights rounded costs and saves, in a line."""
    said = f"weights rounded to {rounding['dtype']}: off by {100 * rounding['weight_error']:.2g} %"
    if rounding["accuracy"] is not None:
        said += f", test accuracy {accuracy['pruned']['test']:.2f} % → {rounding['accuracy']['test']:.2f} %"
    return f"{said}, file {size(rounding['exact_bytes'])} → {size(written)}"
