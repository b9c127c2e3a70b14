"""feta speed: a pruned network against its dense form on this machine, layer by layer and as a whole."""

import platform
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from feta.cli.console import err, out, print_json, print_table, progress_bar, resolve_device, size
from feta.cli.options import Force, Json, whole_numbers
from feta.cli.own_options import OwnOptions
from feta.cli.places import check_network, check_output, check_places
from feta.cli.speed_page import WHOLE, changes_said, forms_said, speed_page, whole_rows
from feta.pages.words import counted, smaller

if TYPE_CHECKING:
    from torch import nn

    from feta.cli.source import Source
    from feta.inference.example import Example
    from feta.inference.sparsify import Sparsified


def speed(
    network: str,
    /,
    *,
    batch: str = "1,16,256",
    threads: str | None = None,
    sample: Annotated[str | None, Parameter(name="--input")] = None,
    device: str = "cpu",
    page: Annotated[Path | None, Parameter(name="--report")] = None,
    force: Force = False,
    json: Json = False,
    own: OwnOptions | None = None,
) -> None:
    """Measure how fast a pruned network runs with sparse layers, against dense ones.

    Args:
        network: A file made by `feta prune`; module:factory for a model in your own code; or a Hugging Face folder.
        batch: Numbers of samples to measure with, separated by commas.
        threads: Numbers of threads, separated by commas; by default as many as torch uses.
        sample: Shape of one input, such as 3,32,32, where the network does not tell it and there is no --data; for
            models of tokens their number.
        device: cpu, cuda, ….
        page: An HTML file to write, with a chart.
    """
    own = own or OwnOptions()
    check_network(network, own)
    check_output(page, force, network, *own.files, option="--report")
    check_places(page)
    import torch

    from feta.cli.source import Source
    from feta.files.atomic import write_atomic

    where = resolve_device(device)
    batches = sorted(set(whole_numbers(batch, "--batch", "1,16")))
    teams = [torch.get_num_threads()] if threads is None else sorted(set(whole_numbers(threads, "--threads", "1,2")))
    source = Source(network, own, "speed")
    source.check_given()
    model, example = _opened(source, sample, where)
    found = _measured(model, example, batches, teams)
    found = {"network": network, "device": where, "file_bytes": _file_bytes(source, model), **found}
    found["environment"] = {"torch": torch.__version__, "cpu": _cpu(), "python": platform.python_version()}
    if page is not None:
        write_atomic(page, speed_page(found).encode())
    if json:
        print_json(found, report=page)
        return
    _show(found)
    if page is not None:
        out().print(f"written: {page}")


def _opened(source: "Source", sample: str | None, device: str) -> tuple["nn.Module", "Example"]:
    """The network and what it is called with, on the device."""
    from torch import device as at

    from feta.calibration.model import float_dtype, place
    from feta.cli.subject import example_of

    subject = source.open_alone(256, None)
    model = subject.model.to(device).eval()
    return model, place(example_of(subject, sample, source.name), at(device), float_dtype(model))


def _measured(model: "nn.Module", example: "Example", batches: list[int], teams: list[int]) -> dict[str, Any]:
    """All times, with the threads of torch put back as they were."""
    import torch

    from feta.inference.sparsify import sparsified

    before = torch.get_num_threads()
    found: dict[str, Any] = {"batches": [], "layers": [], "teams": [], "notes": []}
    try:
        for team in teams:
            torch.set_num_threads(team)
            with progress_bar(f"measuring with {team} thread{'s' * (team > 1)}") as update:
                result = sparsified(model, example, batches, progress=partial(_tell, update))
            _add(found, result, team)
    finally:
        torch.set_num_threads(before)
    return found


def _tell(update: Any, name: str, done: int, total: int) -> None:
    update(note=name, completed=done, total=total)


def _add(found: dict[str, Any], result: "Sparsified", team: int) -> None:
    for batch, dense in result.dense_ms.items():
        times = {"dense_ms": dense, "sparse_ms": result.sparse_ms[batch]}
        found["batches"].append({"batch": batch, "threads": team, **times})
    for layer in result.layers:
        found["layers"].append({"threads": team, **vars(layer)})
    found["memory"] = {"dense_bytes": result.dense_bytes, "sparse_bytes": result.bytes}
    changes = {"dead_neurons": result.dead_neurons, "joined": result.joined, "notes": result.notes}
    found["teams"].append({"threads": team, **changes})
    found["notes"] += [note for note in result.notes if note not in found["notes"]]


def _file_bytes(source: "Source", model: "nn.Module") -> int:
    """Of the files that were given, or of the one that feta.save would write."""
    from feta.files.network import encode

    without = source.is_code and source.options.weights is None
    return len(encode(model)) if without else source.bytes_before(model)


def _cpu() -> str:
    """What the processor calls itself, where the system says so."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def _show(found: Mapping[str, Any]) -> None:
    batches = sorted({row["batch"] for row in found["batches"]})
    for note in found["notes"]:
        err().print(f"feta: note: {note}")
    rows = []
    for layer in found["layers"]:
        told = [f"{ms:.3f} → {layer['sparse_ms'][batch]:.3f}" for batch, ms in layer["dense_ms"].items()]
        about = (layer["name"], f"{100 * layer['sparsity']:.0f} %", layer["kind"])
        rows.append((*about, *(told or ["–"] * len(batches)), f"{layer['bytes'] / layer['dense_bytes']:.2f}"))
    teams = sorted({layer["threads"] for layer in found["layers"]})
    columns = ("layer", "zeros", "form", *(f"ms at {batch}" for batch in batches), "memory (× dense)")
    for team in teams:
        mine = [row for row, layer in zip(rows, found["layers"], strict=True) if layer["threads"] == team]
        said = forms_said([one for one in found["teams"] if one["threads"] == team])
        print_table(f"Layers, {counted(team, 'thread')}: {said}", columns, mine)
    print_table(f"The whole: {found['network']}", WHOLE, whole_rows(found))
    for line in changes_said(found):
        out().print(line)
    memory = found["memory"]
    dense, sparse = memory["dense_bytes"], memory["sparse_bytes"]
    out().print(f"in memory {size(dense)} → {size(sparse)} ({smaller(dense, sparse)})")
    out().print(f"in a file {size(found['file_bytes'])}")
