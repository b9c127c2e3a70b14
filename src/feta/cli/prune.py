"""feta prune: a trained network in, a pruned one out; a file of `feta train` or a model of the user's own."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

import feta
from feta.cli.console import err, out, print_json, print_table, progress_bar, size
from feta.cli.job import device_here, job
from feta.cli.options import DataDir, Device, Flag, Force, Json, MaybeWhole, Place, Records, Report, Seed
from feta.cli.own_options import OwnOptions, StoreOptions
from feta.cli.places import check_network, check_network_output, check_output, check_places, check_records
from feta.errors import ConfigError, DataError, check_range, listed

if TYPE_CHECKING:
    from feta.cli.source import Source
    from feta.cli.subject import Subject

_GROUP = Group(
    "Method options", help="For example --feta.quality best; `feta methods --verbose` lists them all.", sort_key=2
)
_OPTIONS = Parameter(group=_GROUP, help="Followed by .OPTION VALUE.", show_default=False)
# Every method is a file with its name, so that they can be listed without importing torch.
_FIELDS = [
    (path.stem, Annotated[dict[str, str] | None, _OPTIONS], None)
    for path in sorted((Path(feta.__file__).parent / "pruners").glob("[a-z]*.py"))
]
MethodOptions: Any = make_dataclass("MethodOptions", _FIELDS, namespace={"__module__": __name__}, frozen=True)
MethodOptions = Parameter(name="*")(MethodOptions)


def prune(
    network: str,
    /,
    *,
    sparsity: str | None = None,
    pattern: str | None = None,
    effort: Literal["fast", "default", "best"] | None = None,
    seconds: float | None = None,
    method: str | None = None,
    layers: Annotated[list[str] | None, Parameter(negative="")] = None,
    samples: MaybeWhole = None,
    batch_size: MaybeWhole = None,
    mode: Literal["cascade", "parallel"] = "cascade",
    allocation: str | None = None,
    compensate: bool | None = None,
    reorder: bool = True,
    refine: Flag = False,
    refine_steps: MaybeWhole = None,
    seed: Seed = 0,
    device: Device = None,
    output: Place = None,
    force: Force = False,
    resume: Flag = False,
    data_dir: DataDir = None,
    records: Records = None,
    report: Report = None,
    json: Json = False,
    own: OwnOptions | None = None,
    stored: StoreOptions | None = None,
    options: MethodOptions | None = None,
) -> None:
    """Prune a network and report what that did to its accuracy and its size.

    Args:
        network: What to prune: a file made by `feta train`; module:factory for a model in your own code, where the
            factory is a function without arguments, an nn.Module class or an object; or a Hugging Face folder, or a
            file made of one.
        sparsity: Share of zero weights in [0, 1), or per layer: fc1=0.95,fc2=0.8; by default 0.9, or what --pattern
            says.
        pattern: Which weights stay together: 2:4 or any N:M along the inputs; blocks of outputs x inputs such as 4x1;
            neurons or channels, whole outputs.
        effort: How long it may take. fast: layer by layer alone; default: the whole network fitted too, up to a
            minute longer or some ten times as long; best: until held-out samples say that more is useless. Without
            --method it is default.
        seconds: A time budget of an effort; the layers are always finished, what follows is cut to fit.
        method: A name from `feta methods`; without --effort that method alone, with uniform shares.
        layers: Name or pattern of the layers to prune, once per pattern; by default all but the
            first convolution and the last layer, and of the presets the hidden dense ones.
        samples: Calibration samples, drawn at random; by default all, of images 2000 and of text 256 at the most.
        batch_size: Samples that run at once; by default as many as run well.
        mode: cascade: each layer is fitted to its inputs in the network pruned so far; parallel: to the original's.
        allocation: How the budget is shared over layers: uniform, global-magnitude (one threshold for all), erk (by
            the layers' shapes), sensitivity (by what pruning each does to the outputs), bound (by the theorems);
            efforts take sensitivity.
        compensate: Refit every unpruned layer that follows a pruned one to its original outputs; efforts do.
        reorder: Before a pattern N:M, put inputs of layers into an order that suits it, with the outputs of the layer
            before: the same function, weights in other places.
        refine: Of a --method: fit all surviving weights to the original network's outputs at the end; no labels.
        refine_steps: Steps of --refine; by default 2000.
        seed: Seed for the choice of samples and for methods that draw at random.
        output: File to write; by default nothing is saved. Of a Hugging Face folder a folder, unless it ends in
            .safetensors.
        resume: Keep finished layers in a folder beside the output, and go on from there if an earlier run with the
            same arguments was ended; at the end the folder is removed.
    """
    own = own or OwnOptions()
    check_network(network, own)
    check_network_output(output, force, network, *own.files)
    from feta.cli.source import Source
    from feta.cli.subject import prune_subject, working
    from feta.engine.select import check_pattern, share_asked
    from feta.engine.settings import Settings, on_bar
    from feta.patterns import parse_pattern
    from feta.pruners import DEFAULT_METHOD, make

    given = _method_options(method or DEFAULT_METHOD, options)
    pruner = make(method or DEFAULT_METHOD, given)
    form = parse_pattern(pattern, "--pattern")
    target = share_asked(None if sparsity is None else parse_sparsity(sparsity), form)
    check_pattern(form, pruner, allocation)
    where = device_here(device)
    check_range("", ">= 1", **{"--samples": samples, "--batch-size": batch_size})
    if refine and effort is None and method is None:
        raise ConfigError(
            "--refine must go with --method, got it without; efforts, such as the default, refine already"
        )
    if refine_steps is not None and not refine:
        raise ConfigError(f"--refine-steps must go with --refine, got {refine_steps} without")
    source = Source(network, own)
    storing = stored or StoreOptions()
    source.check(output, records, storing)
    check_records(records, network, *own.files, output)
    check_output(report, force, network, *own.files, output, records, option="--report")
    check_places(report)
    spread: dict[str, Any] = {"effort": effort, "seconds": seconds, "layers": layers, "pattern": pattern}
    spread |= {"allocation": allocation, "compensate": compensate}
    settings = Settings(n_samples=samples, batch_size=batch_size or Settings.batch_size, mode=mode, reorder=reorder)
    work: dict[str, Any] = {"options": given, "settings": settings, "device": where, "seed": seed}
    if resume:
        work["checkpoint"] = _folder_beside(output)
    work["refine"] = refine if refine_steps is None else feta.Refinement(steps=refine_steps)
    needing = "--refine" if refine else None
    if pruner.needs.passes != "none":
        needing = "pruning" if method is None else f"--method {method}"
    with job(where) as first:
        subject = _open(source, needing, data_dir, samples=samples, seed=seed, batch_size=batch_size)
        with progress_bar(f"pruning by {pruner.name}") as update, working(where):
            work["callback"] = lambda event: update(**on_bar(event))
            model, summary, kept = prune_subject(subject, target, method, **spread, **work)
    if not first:
        return
    folder = _save(source, subject, model, kept, summary, output, storing, where)
    if records is not None:
        config: dict[str, Any] = {
            "network": source.path.name,
            "method": pruner.name,
            "sparsity": sparsity or f"{target:g}",
        }
        config |= {"samples": samples, "mode": mode, **spread, "refine": refine, "options": summary["options"]}
        config |= {name: value for name, value in asdict(storing).items() if value is not None}
        config |= {} if pattern is None else {"reorder": reorder}
        config |= {} if subject.note is None else {"data": subject.note}
        subject.record(records, "prune", config, seed, summary)
    if report is not None:
        from feta.files.atomic import write_atomic
        from feta.pages.run import run_page

        page = run_page(summary | {"network": source.path.name, "typed": source.next_commands(output)})
        write_atomic(report, page.encode())
    if json:
        print_json(summary, output=output, report=report)
        return
    nowhere = f"; nothing was saved, give -o {'FOLDER' if source.is_folder else 'FILE'}" if output is None else ""
    _show(summary, subject.note, folder, nowhere)
    if source.is_code and own.weights is None:
        out().print(f"weights: {source.weights}; --weights FILE for others")
    if report is not None:
        out().print(f"written: {report}")
    if output is not None:
        out().print(f"written to {output}")
        if (loading := source.loading(output)) is not None:
            out().print(f"load it with: {loading}")


def _save(
    source: "Source",
    subject: "Subject",
    model: Any,
    masks: Any,
    summary: dict[str, Any],
    output: Path | None,
    storing: StoreOptions,
    device: str,
) -> int | None:
    """Write the file, where one was asked for, and add to the summary what a file takes, and what rounding costs.

    Returns the bytes of a small folder where nothing was written, so that it can be chosen.
    """
    from feta.cli.subject import rounding_cost

    scores = (summary["accuracy"] or {}).get("pruned", {})
    if storing.dtype is not None:
        exact = len(subject.encode(model, masks, scores))
        summary["rounding"] = rounding_cost(subject, model, exact, storing.dtype, device)
        scores = summary["rounding"]["accuracy"] or scores
    written = source.write(subject, model, masks, scores, output, storing)
    summary["weights"] = source.weights
    summary["file_bytes"] = {"dense": source.bytes_before(subject.model), "pruned": written}
    plain = output is None and storing.layout is None and source.layout(output, storing) == "dense"
    return len(subject.encode(model, masks, scores)) if plain else None


def _folder_beside(output: Path | None) -> Path:
    if output is None:
        raise ConfigError("--resume must go with --output, beside which finished layers are kept, got none")
    return output.with_name(f"{output.name}.resume")


def _open(source: "Source", needing: str | None, data_dir: Path | None, **reading: Any) -> "Subject":
    """The network with its data; without, where there is none and no option is `needing` it."""
    from feta.cli.subject import open_subject

    if source.is_own:
        if needing and source.options.data is None:
            raise ConfigError(f"--data must be given for {needing}, got none; only --method threshold works without")
        return source.open(data_dir, **reading)
    try:
        return source.open(data_dir, **reading)
    except DataError as error:
        if needing:
            raise
        err().print(f"feta: warning: accuracy is not measured: {error}")
        return open_subject(source.path, with_data=False)


def _method_options(method: str, options: Any) -> dict[str, str]:
    """The options --METHOD.OPTION of the method in use. Raises ConfigError for options of another method."""
    given = {} if options is None else {name.replace("_", "-"): values for name, values in asdict(options).items()}
    for name, values in given.items():
        if values and name != method:
            raise ConfigError(f"--{name}.{next(iter(values))} must go with --method {name}, got --method {method}")
    return given.get(method) or {}


def parse_sparsity(text: str) -> float | dict[str, float]:
    """0.9, or fc1=0.95,fc2=0.8. Raises ConfigError for anything but shares of zeros in [0, 1)."""
    if "=" not in text:
        return _share(text, "--sparsity")
    pairs = [(name.strip(), value) for name, _, value in (part.partition("=") for part in text.split(","))]
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ConfigError(f"--sparsity must name each layer once, got {listed(twice)} more than once")
    return {name: _share(value, f"--sparsity {name}") for name, value in pairs}


def _share(text: str, where: str) -> float:
    from feta.sparsity import check_share

    try:
        number = float(text)
    except ValueError:
        cure = "; write 0.9 for 90 %" if text.strip().endswith("%") else ""
        raise ConfigError(f"{where} must be a number in [0, 1), got '{text}'{cure}") from None
    return check_share(number, where)


def _show(summary: Mapping[str, Any], note: str | None, folder: int | None, nowhere: str) -> None:
    """folder: the bytes of a small one. nowhere: what to say where nothing was saved."""
    from feta.pages.words import smaller
    from feta.report import HEADER, layer_row

    pattern = "" if summary["pattern"] is None else f", pattern {summary['pattern']}"
    title = f"{summary['method']}{pattern}, {100 * summary['sparsity']:.2f} % zeros"
    print_table(title, HEADER, list(map(layer_row, summary["layers"])))
    for line in summary["notes"]:
        out().print(line)
    if note is not None:
        out().print(f"data: {note}")
    allocation = summary["allocation"]
    if allocation["name"] not in ("uniform", "per-layer"):
        out().print(f"budget shared by {allocation['name']} in {allocation['seconds']:.2f} s")
    if (accuracy := summary["accuracy"]) is not None:
        out().print(f"test accuracy {accuracy['dense']['test']:.2f} % → {accuracy['pruned']['test']:.2f} %")
    dense, pruned = summary["file_bytes"]["dense"], summary["file_bytes"]["pruned"]
    if (rounding := summary.get("rounding")) is not None:
        from feta.cli.subject import rounding_told

        out().print(rounding_told(rounding, summary["accuracy"], pruned))
    other = "" if folder is None else f"; with --layout small {size(folder)} ({smaller(dense, folder)})"
    out().print(f"file {size(dense)} → {size(pruned)} ({smaller(dense, pruned)}){other}{nowhere}")
