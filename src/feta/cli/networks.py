"""feta eval, info and methods: how good a network is, what its file holds, and what there is to prune with."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Parameter

from feta.cli.console import out, print_json, print_table, resolve_device, size
from feta.cli.options import DataDir, Device, Json
from feta.cli.places import check_files, check_inputs, refuse_data

CURE = "eval takes files of `feta train`, and what was made of them: feta has labels for no other model"
INFO_CURE = "info takes safetensors files and Hugging Face folders"


def evaluate(network: Path, /, *, device: Device = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Measure a network's accuracy on the validation and the test half of its data set.

    Args:
        network: A file made by `feta train` or `feta prune`.
    """
    check_files(network, cure=CURE)
    from feta.cli.subject import accuracy, open_subject

    where = resolve_device(device)
    subject = open_subject(network, data_dir, cure=CURE)
    scores = accuracy(subject.model, subject, where)
    if json:
        print_json({"network": subject.specification, "data": subject.data, "accuracy": scores})
    else:
        test, validation = f"{scores['test']:.2f} % test", f"{scores['validation']:.2f} % validation"
        out().print(f"{network}: {test}, {validation} ({subject.data})")


def info(file: Path, /, *, json: Json = False) -> None:
    """Describe a network file: where it comes from, its layers, and what each takes on disk.

    Args:
        file: A safetensors file, dense or pruned, or a Hugging Face folder.
    """
    check_inputs(file, cure=f"; {INFO_CURE}")
    refuse_data(file, INFO_CURE)
    from feta.cli.history import history
    from feta.cli.huggingface import check_folder, network_of
    from feta.files import sparse_file
    from feta.files.huggingface import weight_files
    from feta.pages.words import amount, percent
    from feta.sparsity import measured

    if file.is_dir():
        check_folder(file)
    files = weight_files(file) if file.is_dir() else [file]
    tensors, stored, tied = dict[str, Any](), dict[str, int](), dict[str, str]()
    for path in files:
        opened = sparse_file.open_file(path)
        tensors |= opened.tensors()
        tied |= opened.facts[sparse_file.SAME]
        stored |= sparse_file.stored_bytes(path)
    n_bytes = sum(path.stat().st_size for path in files)
    layers: list[dict[str, Any]] = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "nonzeros": int((tensor != 0).sum()),
            "sparsity": measured(tensor),
            "bytes": stored[name],
            "dense_bytes": 0 if name in tied else tensor.numel() * tensor.element_size(),
            "tied_to": tied.get(name),  # which is stored and counted in its place
        }
        for name, tensor in tensors.items()
    ]
    about = network_of(file)
    if json:
        print_json({"file": str(file), "file_bytes": n_bytes, "network": about, "tensors": layers})
        return
    plain = sum(layer["dense_bytes"] for layer in layers)
    out().print(f"{file}: {size(n_bytes)} on disk for {size(plain)} of weights ({plain / n_bytes:.1f}×)")
    values = sum(tensor.numel() for name, tensor in tensors.items() if name not in tied)
    zeros = values - sum(layer["nonzeros"] for layer in layers if layer["tied_to"] is None)
    out().print(
        f"{amount(zeros).strip()} of {amount(values).strip()} values are zero ({percent(zeros / max(values, 1))})"
    )
    for line in history(about):
        out().print(line)
    rows = []
    for layer in layers:
        shape, share = "×".join(map(str, layer["shape"])), f"{100 * layer['sparsity']:.2f} %"
        on_disk = (size(layer["bytes"]), f"{layer['dense_bytes'] / max(layer['bytes'], 1):.1f}×")
        name, other = layer["name"], layer["tied_to"]
        first = name if other is None else f"{name}, tied to {other}"
        rows.append((first, shape, layer["nonzeros"], share, *(on_disk if other is None else ("–", "–"))))
    columns = ("tensor", "shape", "non-zeros", "sparsity", "on disk", "smaller by")
    print_table("What is in it", columns, rows)


def methods(
    *, verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), negative="")] = False, json: Json = False
) -> None:
    """List the pruning methods.

    Args:
        verbose: Show each method's formula, cost, source, and its options with their defaults.
    """
    from feta.pruners import METHODS

    described: list[dict[str, Any]] = []
    for method in METHODS.values():
        first, _, rest = inspect.cleandoc(method.__doc__ or "").partition("\n")
        options = [
            {"name": field.name.replace("_", "-"), "type": _kind(field.type), "default": field.default}
            for field in dataclasses.fields(method)
        ]
        details = [line for line in rest.splitlines() if line.strip()]
        described.append({"name": method.name, "summary": first, "details": details, "options": options})
    if json:
        print_json({"methods": described})
    elif not verbose:
        print_table("Methods", ("name", "what it does"), [(entry["name"], entry["summary"]) for entry in described])
    else:
        for entry in described:
            out().print(entry["name"], style="bold", end="  ")
            shown = [f"--{entry['name']}.{o['name']} {o['default']}  ({o['type']})" for o in entry["options"]]
            out().print("\n  ".join([entry["summary"], *entry["details"], *shown]) + "\n")


def _kind(kind: Any) -> str:
    """What an option takes, in words: a number's type, or the names to choose from."""
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    return str(getattr(kind, "__name__", None) or kind)
