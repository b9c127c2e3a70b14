"""feta train: a network of the paper, trained as in its Appendix C."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from feta.cli.console import download_bar, out, print_json, progress_bar, resolve_device, size
from feta.cli.options import DataDir, Device, Force, Json, Records, Seed, Whole
from feta.cli.places import check_network_output, check_places, check_records
from feta.errors import check_range


def train(
    preset: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="File to write (safetensors).")],
    data: Annotated[str | None, Parameter(help="Data set, instead of the preset's own.")] = None,
    seed: Seed = 0,
    epochs: Whole = 30,
    learning_rate: float = 0.01,
    device: Device = None,
    data_dir: DataDir = None,
    records: Records = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train a network as in the paper's Appendix C and save it.

    Parameters
    ----------
    preset
        A name (dense-mnist, conv-cifar, …) or, together with --data, a network in the paper's notation.
    seed
        Weights and order of the samples follow from it.
    epochs
        Training stops earlier when validation accuracy saturates. A killed run goes on where it stopped.
    learning_rate
        Decays by 5 % per epoch.
    """
    partial = output.with_name(output.name + ".partial")
    check_network_output(output, force)
    check_range("", "> 0 and finite", **{"--epochs": epochs, "--learning-rate": learning_rate})
    check_places(output, partial, records)
    check_records(records, output, partial)
    from feta_lab import data as datasets
    from feta_lab import networks, store
    from feta_lab.records import append, record
    from feta_lab.training import Training
    from feta_lab.training import train as run_training

    # Tokens of the notation start with a digit or with MP; anything else is meant as a name.
    is_notation = data is not None and not preset[:1].islower()
    known = None if is_notation else networks.preset(preset)
    specification = known.specification if known else preset
    settings = Training(learning_rate=learning_rate, max_epochs=epochs, seed=seed)
    with download_bar() as advance:
        loaded = datasets.load(data or (known.data if known else ""), data_dir, progress=advance)
    with progress_bar(f"training {preset}", epochs) as update:

        def show(event: Any) -> None:
            note = f"epoch {event.epoch}: loss {event.loss:.4f}, validation {event.validation:.2f} %"
            update(completed=event.epoch, note=note)

        how: dict[str, Any] = {"preset": known.name if known else None, "device": resolve_device(device)}
        network = run_training(specification, loaded, settings, **how, checkpoint=partial, callback=show)
    n_bytes = store.save(network, output)
    partial.unlink(missing_ok=True)
    ran, scores = network.info.epochs, network.info.accuracy
    result: dict[str, Any] = {"network": specification, "data": loaded.label, "epochs": ran}
    result |= {"accuracy": scores, "file_bytes": n_bytes}
    config = {"preset": preset, "data": loaded.name, "max_epochs": epochs, "learning_rate": learning_rate}
    if records is not None:
        append(records, record("train", config, seed, result))
    if json:
        print_json({**result, "file": str(output)})
        return
    accuracy = f"{scores['test']:.2f} % test, {scores['validation']:.2f} % validation"
    out().print(f"{specification} on {loaded.label}: {accuracy}, {ran} epochs")
    out().print(f"written to {output} ({size(n_bytes)})")
