"""Names of files: a wrong one is told before torch is imported, with the nearest that is right."""

import subprocess
import sys
from pathlib import Path

import pytest

import feta
from feta.cli.own_options import OwnOptions
from feta.cli.places import check_inputs, check_network, check_output

# Torch is not to be had: a command that wants it fails in another way.
WITHOUT_TORCH = """
import sys
from feta.cli import main

sys.modules["torch"] = None
for line in sys.stdin.read().splitlines():
    sys.argv = ["feta", *line.split()]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 1, (line, ended.code)
"""
LINES = {
    "prune none.npz": "cannot read none.npz: No such file or directory",
    "prune nett.safetensors -o new": "cannot read nett.safetensors: No such file or directory; did you mean net.saf",
    "prune no_such_module:make": "got 'no_such_module': there is no no_such_module.py in the current folder",
    "prune my_net:make --data rows.npy": "cannot read rows.npy",
    "prune my_net:make --weights w.safetensors": "cannot read w.safetensors",
    "prune net.safetensors -o old": "--output must be a new file, got old, which is there already; --force",
    "retrain none": "cannot read none",
    "retrain net.safetensors -o old": "--output must be a new file",
    "shrink none": "cannot read none",
    "shrink net.safetensors -o old": "--output must be a new file",
    "eval none": "cannot read none",
    "info none": "cannot read none",
    "bounds net.safetensors none": "cannot read none",
    "certify none net.safetensors": "cannot read none",
    "speed none": "cannot read none",
    "speed net.safetensors --report old.html": "--report must be a new file",
    "export none --onnx new": "cannot read none",
    "export net.safetensors --onnx old": "--onnx must be a new file",
    "train dense-mnist -o old": "--output must be a new file",
}


def test_commands_tell_before_torch_is_imported():
    for name in ("net.safetensors", "old", "old.html", "my_net.py"):
        Path(name).touch()
    command = [sys.executable, "-c", WITHOUT_TORCH]
    answer = subprocess.run(command, input="\n".join(LINES), capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, "")
    said = answer.stderr.splitlines()
    assert len(said) == len(LINES), answer.stderr
    for line, (command_line, words) in zip(said, LINES.items(), strict=True):
        assert words in line, command_line


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("net.py", "net:NAME, where NAME makes the model in net.py"),
        ("net", "net:NAME, where NAME makes the model in net.py"),
        ("net.py:make", "net:make"),
        ("./net.py:make", "net:make"),
        ("pack/net.py:make", "pack.net:make"),
        ("pack/net:make", "pack.net:make"),
        ("pack.net", "pack.net:NAME, where NAME makes the model in pack/net.py"),
        ("../out.py:make", "out:make, in the folder {above}"),
        ("{above}/out.py", "out:NAME, where NAME makes the model in {above}/out.py, in the folder {above}"),
        ("{here}/pack/net.py:make", "pack.net:make"),
    ],
)
def test_code_by_its_path_is_answered_with_its_module(name, form):
    here = Path.cwd()
    for path in ("net.py", "pack/net.py", "../out.py"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).touch()
    name, form = (text.format(here=here, above=here.parent) for text in (name, form))
    with pytest.raises(feta.ConfigError) as refused:
        check_network(name)
    assert str(refused.value) == f"model must be module:factory, got '{name}'; write {form}"


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below"])
def test_names_that_no_file_can_have(name):
    Path("file").touch()
    with pytest.raises(feta.FileError, match="cannot read"):
        check_inputs(Path(name))


def test_what_passes():
    Path("net").touch()
    Path("a:b").touch()  # a file, though it has the form of module:factory
    check_inputs(None, Path("net"))
    check_network("a:b")
    check_network("json.decoder:JSONDecoder")
    check_network("net", OwnOptions(data="mnist-mini"))  # of a network file: the name of a data set
    for path, force in ((Path("net"), True), (Path("new"), False), (None, False), (Path("."), False)):
        check_output(path, force)


def test_an_output_that_is_an_input_is_refused_whatever_it_is_called(tmp_path):
    Path("net").touch()
    Path("link").symlink_to("net")
    for path in ("net", "./net", "link"):
        with pytest.raises(feta.ConfigError, match="--output must differ from the input"):
            check_output(Path(path), True, "net")


def test_an_output_that_is_a_file_of_a_model_folder_is_refused():
    for folder in ("model", "photos"):
        Path(folder).mkdir()
    for path in ("model/config.json", "model/model.safetensors", "photos/out.safetensors"):
        Path(path).touch()
    for path in ("model/config.json", "model/model.safetensors"):
        with pytest.raises(feta.ConfigError, match="must differ from the input"):
            check_output(Path(path), True, "model")
    check_output(Path("model/new.safetensors"), True, "model")
    check_output(Path("photos/out.safetensors"), True, "photos")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_options(shell, monkeypatch, tmp_path):
    from feta.cli import app

    script = app.generate_completion(shell=shell)
    for word in ("prune", "certify", "sparsity", "effort"):
        assert word in script
    if shell == "bash":  # where it knows no word, as after --data, names of files are completed
        assert "\ncomplete -o bashdefault -o default -F _feta feta\n" in script


def test_the_shell_for_completion_is_an_option(run):
    answer = run("--install-completion bash")
    assert (answer.code, answer.out) == (2, "")
    assert "write feta --install-completion --shell bash" in answer.err


def test_completion_is_installed_only_when_it_is_asked_for(run, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    run("--install-completion --shell bash").says()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("feta" in path.read_text() for path in files)


def test_what_is_no_network_is_answered_with_what_is_taken(run, trained):
    Path("inputs.npz").write_bytes(b"PK")
    Path("my_model.py").write_text("make = None")
    Path("photos").mkdir()
    run("info inputs.npz").refused("it is data and no network; info takes safetensors files")
    run("eval inputs.npz").refused("it is data and no network; eval takes files of `feta train`")
    run("info my_model:make").refused("cannot read my_model:make", "info takes safetensors files and Hugging Face")
    for line in (f"prune {trained}", f"certify {trained} {trained}"):
        run(f"{line} --data inputs.npz").refused("--data must be the name of a data set", "got inputs.npz")
    run("prune my_model:make --weights photos").refused(
        "--weights must be a", "a folder; give images as --data photos"
    )
    Path("photos/model.safetensors").touch()
    run("prune my_model:make --weights photos").refused("which is a folder; give photos/model.safetensors")
