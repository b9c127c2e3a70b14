"""feta export: a network for others to run: ONNX, torch.export, plain safetensors."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import out, print_json, size
from feta.cli.options import Force, Json
from feta.cli.own_options import OwnOptions
from feta.cli.places import check_network, check_output, check_places
from feta.errors import ConfigError


def export(
    network: str,
    /,
    *,
    onnx: Annotated[Path | None, Parameter(help="ONNX file, checked in onnxruntime.")] = None,
    torch_export: Annotated[Path | None, Parameter(help="torch.export's file, .pt2: runs without your code.")] = None,
    safetensors: Annotated[Path | None, Parameter(help="Plain safetensors file of the dense state dict.")] = None,
    shape: Annotated[
        str | None, Parameter(name="--input", help="Shape of one sample, such as 3,32,32; without --data.")
    ] = None,
    force: Force = False,
    json: Json = False,
    own: OwnOptions | None = None,
) -> None:
    """Write a network in forms that other programs run; its outputs are compared before a file is said to be written.

    Args:
        network: A file made by `feta train` or `feta prune`, module:factory, or a Hugging Face folder.
    """
    own = own or OwnOptions()
    wanted = {"onnx": onnx, "torch_export": torch_export, "safetensors": safetensors}
    if not any(wanted.values()):
        raise ConfigError("export must know what to write, got nothing; give --onnx, --torch-export or --safetensors")
    check_network(network, own)
    for name, place in wanted.items():
        others = [other for key, other in wanted.items() if key != name]
        check_output(place, force, network, *own.files, *others, option=f"--{name.replace('_', '-')}")
    check_places(*wanted.values())
    from feta.cli.source import Source
    from feta.cli.subject import example_of
    from feta.files.exports import export as write

    source = Source(network, own, "export")
    source.check_given()
    subject = source.open_alone(2, 2)
    written = write(subject.model, example_of(subject, shape, source.name), **wanted)
    if json:
        files = [{**found._asdict(), "path": str(found.path)} for found in written]
        print_json({"network": subject.specification, "files": files})
        return
    for found in written:
        told = f"largest relative difference of the outputs {found.difference:.1e}"
        out().print(f"{found.form.replace('_', '.')}: {found.path}, {size(found.bytes)}, {told}")
