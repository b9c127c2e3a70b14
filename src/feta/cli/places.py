"""Names of files on the command line, looked at before torch is imported: a wrong one is told at once.

Nothing that is there is overwritten unless --force says so.
"""

import contextlib
import difflib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from feta.cli.own_options import OwnOptions
from feta.cli.typed import DATA, retyped
from feta.errors import ConfigError, FileError
from feta.files.atomic import check_writable, remove_left
from feta.files.lines import check_lines
from feta.files.pickles import is_pickle, refuse_name

NOWHERE = "; nothing is downloaded: give a file, a Hugging Face folder or module:factory"
OTHERS = {
    ".onnx": "ONNX: feta export --onnx makes it of the pruned file",
    ".pt2": "a file of torch.export: feta export --torch-export makes it of the pruned file",
    ".html": "a page: give it as --report",
}
FORM = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<factory>[A-Za-z_][\w.]*)")  # a model in the user's own code


def check_network(network: str, own: OwnOptions | None = None) -> None:
    """Refuse a network, weights or data that are not there. A pickle is refused later, with the cure."""
    named, given = FORM.fullmatch(network), own or OwnOptions()
    if (named is None or ".py:" in network) and not os.path.isdir(network):
        _refuse_code(network)
    if os.path.exists(network) or named is None:
        check_inputs(Path(network), cure=NOWHERE)
        if Path(network).suffix in DATA and os.path.isfile(network):
            command = retyped(network, "MODEL", *([] if given.data else ["--data", network]))
            raise ConfigError(f"model must be a network, got {network}, which is data; write {command}")
    else:
        _check_module(named["module"])
        check_inputs(given.weights)
        _check_weights(given)
    if given.data is not None and (named or os.path.isdir(network)):  # elsewhere it is the name of a data set
        check_inputs(Path(given.data))


def check_inputs(*paths: Path | None, cure: str = "") -> None:
    """Refuse files that cannot be found, with the nearest name that can, and else with the cure."""
    for path in paths:
        if path is None or is_pickle(path):
            continue
        try:
            os.stat(path)
        except (OSError, ValueError) as error:  # a name may also be too long, or hold a zero byte
            near = "" if cure and FORM.fullmatch(str(path)) else _near(path)
            reason = f"{getattr(error, 'strerror', None) or error}{near or cure}"
            raise FileError(f"cannot read {path}: {reason}") from None


def check_files(*paths: Path, cure: str) -> None:
    """Refuse what is no file of `feta train`, where nothing else will do: a model in code, a folder."""
    check_inputs(*paths, cure=f"; {cure}")
    for path in paths:
        if path.is_dir():
            raise FileError(f"cannot read {path}: it is a folder; {cure}")
        refuse_data(path, cure)


def refuse_data(path: Path, cure: str) -> None:
    """Refuse data in the place of a network's file."""
    if path.suffix in DATA and path.is_file():
        raise FileError(f"cannot read {path}: it is data and no network; {cure}")


def check_output(path: Path | None, force: bool, *inputs: Path | str | None, option: str = "--output") -> None:
    """Refuse a file that is one of the inputs, or that is there already without --force."""
    if path is None:
        return
    remove_left(path)  # here, since what is there already is not written to again
    if any(_is_part(path, given) for given in inputs if given is not None):
        other = "the input" if option == "--output" else "the input and other outputs"
        raise ConfigError(f"{option} must differ from {other}, got {path} for both")
    if option == "--output":
        refuse_name(option, path)
    if option == "--report" and path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--report must end in .html, got {path}")
    if os.path.isfile(path) and not force:
        raise FileError(f"{option} must be a new file, got {path}, which is there already; --force replaces it")


def check_network_output(path: Path | None, force: bool, *inputs: Path | str | None) -> None:
    """`check_output` of what will hold a network and nothing else."""
    check_output(path, force, *inputs)
    if path is not None and (kind := OTHERS.get(path.suffix.lower())):
        raise ConfigError(f"--output must be a .safetensors file, got {path}, which would be {kind}")


def check_records(path: Path | None, *others: Path | str | None) -> None:
    """Refuse a file for records that is another file of the command, or that holds anything else."""
    if path is not None:
        check_output(path, True, *others, option="--records")
        check_lines(path)


def check_places(*paths: Path | None) -> None:
    """Fail now, not after the work, where a file cannot be written."""
    for path in paths:
        if path is not None:
            check_writable(path)


@contextlib.contextmanager
def current_folder_first() -> Iterator[None]:
    """The user's modules are looked for as `python -m` does, and only inside."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results: what the code prints must not mix in
            yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def no_module(name: str, missing: str) -> ConfigError:
    return ConfigError(
        f"model must name a module that can be imported, got '{name}': there is no {missing}.py in the current "
        "folder and no installed module of that name"
    )


def _is_part(path: Path, given: Path | str) -> bool:
    """Whether it is the file that is given, or one of a Hugging Face folder that is given."""
    at, given = os.path.realpath(path), os.path.realpath(given)
    of_model = os.path.dirname(at) == given and os.path.isfile(os.path.join(given, "config.json"))
    return at == given or (of_model and os.path.isfile(at))


def _near(path: Path) -> str:
    try:
        found = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except (OSError, ValueError):
        return ""
    return f"; did you mean {path.with_name(found[0])}?" if found else ""


def _refuse_code(network: str) -> None:
    """Refuse a file of Python code, with its module in the place of its path."""
    place, _, factory = network.partition(":")
    stem = place.removesuffix(".py")
    if os.sep not in stem and not os.path.isfile(f"{stem}.py"):
        stem = stem.replace(".", os.sep)
    if not os.path.isfile(f"{stem}.py") or (stem == place and os.path.isfile(network)):
        return
    folder, name = os.path.split(os.path.relpath(stem))
    outside = folder.startswith(os.pardir)
    module = name if outside or not folder else f"{folder.replace(os.sep, '.')}.{name}"
    form = f"{module}:{factory or 'NAME'}"
    if not FORM.fullmatch(form):
        cure = f"rename {stem}.py, or its folder: letters, digits and _, and no digit first"
        raise ConfigError(f"model must be module:factory, got '{network}', which Python cannot import; {cure}")
    form += "" if factory else f", where NAME makes the model in {stem}.py"
    form += f", in the folder {os.path.abspath(os.path.dirname(stem))}" if outside else ""
    raise ConfigError(f"model must be module:factory, got '{network}'; write {form}")


def _check_weights(given: OwnOptions) -> None:
    """Refuse data, or a folder, in the place of weights."""
    if given.weights is not None and given.weights.is_dir():
        files = sorted(given.weights.glob("*.safetensors"))
        cure = f"give {files[0]}" if files else f"give images as --data {given.weights}"
        raise ConfigError(f"--weights must be a safetensors file, got {given.weights}, which is a folder; {cure}")
    if given.weights is None or given.weights.suffix not in DATA:
        return
    swapped = (given.data or "").endswith(".safetensors")
    cure = f"swap them: --weights {given.data} --data {given.weights}" if swapped else "give it as --data"
    raise ConfigError(f"--weights must be a safetensors file, got {given.weights}, which is data; {cure}")


def _check_module(name: str) -> None:
    first = name.partition(".")[0]  # the parts after a dot are found only by importing it
    with current_folder_first():
        if first not in sys.modules and importlib.util.find_spec(first) is None:
            raise no_module(name, first)
