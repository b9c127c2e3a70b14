"""feta prune module:factory: what is imported, which weights are taken, what is written, and every refusal."""

import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from own_models import rows, write_code
from safetensors.torch import load_file, save_file

import feta
from feta.files import sparse_file


@pytest.fixture
def module(empty_folder, monkeypatch) -> str:
    name = write_code()
    np.save("x.npy", rows())
    return name


def factory(module: str, name: str = "make") -> torch.nn.Module:
    return getattr(sys.modules[module], name)()


def test_the_result_is_that_of_the_library_and_is_loaded_as_the_last_line_says(run, module):
    answer = run(f"prune {module}:make --data x.npy --sparsity 0.5 --method alps -o deep/out.safetensors")
    note = f"feta: note: the weights are as {module}:make gives them, trained or not; --weights FILE loads others\n"
    assert (answer.code, answer.err) == (0, f"the user's code says hello\n{note}")
    assert "data: 300 samples of x.npy" in answer.out
    assert f"\nweights: as {module}:make gives them; --weights FILE for others\n" in answer.out
    expected = feta.prune(factory(module), torch.from_numpy(rows()), 0.5, "alps").model
    line = answer.out.partition("load it with: ")[2]
    scope: dict = {}
    sys.path.insert(0, os.getcwd())
    try:
        exec(line, scope)
    finally:
        sys.path.remove(os.getcwd())
    for name, tensor in expected.state_dict().items():
        assert torch.equal(scope["model"].state_dict()[name], tensor), name
    assert int((scope["model"][0].weight != 0).sum()) == 400
    assert "feta-records.jsonl" not in os.listdir()


def test_a_class_an_object_and_a_dotted_module(run, module):
    os.makedirs("pack/inner")
    Path("pack/inner/nets.py").write_text(Path(f"{module}.py").read_text())
    for name in (f"{module}:net", "pack.inner.nets:net", f"{module}:Tied"):
        found = run(f"prune {name} --data x.npy --sparsity 0.5 --json --layers {'c' if 'Tied' in name else '0'}")
        assert found.code == 0
    answer = run(f"prune {module}:net --data x.npy -o out.safetensors")
    assert "feta.load_into(net, 'out.safetensors').eval()" in answer.out


def test_weights_are_loaded_whole_and_the_usual_options_work(run, module):
    other = torch.nn.Sequential(*import_module_here(module).make())
    with torch.no_grad():
        other[2].weight.mul_(2).add_(0.1)
    save_file(other.state_dict(), "w.safetensors")
    line = f"prune {module}:make --weights w.safetensors --data x.npy --json --records all.jsonl"
    options = "--sparsity 0.5 --allocation erk --compensate --samples 100 --batch-size 30 --mode parallel --seed 3"
    answer = run(f"{line} {options} --method wanda --refine --refine-steps 60 -o out.safetensors")
    assert (answer.code, answer.err) == (0, "")
    chosen = torch.randperm(300, generator=torch.Generator().manual_seed(3))[:100].sort().values
    data = list(torch.from_numpy(rows())[chosen].split(30))
    how = {"allocation": "erk", "compensate": True, "settings": feta.Settings(mode="parallel", batch_size=30)}
    how["seed"] = 3
    expected = feta.prune(other, data, 0.5, "wanda", refine=feta.Refinement(steps=60), **how).model
    loaded = feta.load_into(factory(module), "out.safetensors")
    for name, tensor in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    (line,) = map(json.loads, Path("all.jsonl").read_text().splitlines())
    assert (line["kind"], line["metrics"]["sparsity"]) == ("prune", pytest.approx(0.5))
    assert line["config"]["data"] == "100 of 300 samples of x.npy"


def import_module_here(name: str):
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    finally:
        sys.path.remove(os.getcwd())


def test_weights_that_share_memory_need_one_name(run, module):
    model = import_module_here(module).Tied()
    state = {key: value for key, value in model.state_dict().items() if key != "b.weight"}
    state["a.weight"] = torch.ones(20, 20)
    save_file(state, "tied.safetensors")
    run(
        f"prune {module}:Tied --weights tied.safetensors --data x.npy --layers c --sparsity 0.2 -o out.safetensors"
    ).says()
    assert "b.weight" not in load_file("out.safetensors")  # nor does the result store it twice
    assert bool((sparse_file.read("out.safetensors")[0]["b.weight"] == 1).all())


def test_files_without_counts_of_batches_are_taken(run):
    name = write_code(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4))\n"
    )
    state = {"0.weight": torch.ones(4, 20), "0.bias": torch.ones(4)}
    save_file(
        {**state, **{f"1.{key}": torch.ones(4) for key in ("weight", "bias", "running_mean", "running_var")}}, "w"
    )
    np.save("x.npy", rows())
    run(f"prune {name}:make --weights w --data x.npy --layers 0 --sparsity 0.3").says("56", "30.00 %")


def test_a_pruned_file_serves_as_weights(run, module):
    found = run(f"prune {module}:make --data x.npy --sparsity 0.5 -o half.safetensors --json")
    assert json.loads(found.out)["weights"] == f"as {module}:make gives them"
    run(f"prune {module}:make --weights half.safetensors --data x.npy --sparsity 0.6 -o more.safetensors").says()
    found = run(f"prune {module}:make --weights half.safetensors --data x.npy --sparsity 0.6 --json").json()
    assert found["weights"] == "half.safetensors"
    assert int((feta.load_into(factory(module), "more.safetensors")[0].weight != 0).sum()) == 320


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"0.weight": None}, "nothing for '0.weight'"),
        ({"extra": torch.ones(2)}, "tensors that the model does not have: 'extra'"),
        ({"0.weight": torch.ones(40, 21)}, "tensors of other shapes: '0.weight' with (40, 21) for (40, 20)"),
    ],
)
def test_weights_of_another_model_are_refused(run, module, change, words):
    state = {**import_module_here(module).make().state_dict(), **change}
    save_file({key: value for key, value in state.items() if value is not None}, "w.safetensors")
    answer = run(f"prune {module}:make --weights w.safetensors --data x.npy -o out.safetensors")
    answer.refused("--weights w.safetensors must hold the weights of this model, got", words)
    assert "out.safetensors" not in os.listdir()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MODULE:mak", ("unknown name in module", "'mak'; did you mean 'make'?")),
        ("MODULE:number", ("must be a function without arguments, an nn.Module class or object, got a int",)),
        ("MODULE:wide", ("must work without arguments, got wide(width, depth=2)",)),
        ("MODULE:broken", ("must give a model, got TypeError", "MODULE.py, line ")),
        ("MODULE:torch.manual_seed", ("must work without arguments",)),
        ("MODULE:torch.get_num_threads", ("must give an nn.Module, got a int",)),
        ("MODULE.py:make", ("got 'MODULE.py:make'; write MODULE:make",)),
        ("MODULE.py", ("model must be module:factory, got 'MODULE.py'; write MODULE:NAME, where NAME makes",)),
        ("MODULE", ("model must be module:factory, got 'MODULE'; write MODULE:NAME, where NAME makes",)),
        ("my-net.py:make", ("got 'my-net.py:make', which Python cannot import; rename my-net.py, or its folder",)),
        ("nowhere_at_all:make", ("there is no nowhere_at_all.py in the current folder",)),
        ("bad_syntax:make", ("module 'bad_syntax' cannot be imported: SyntaxError",)),
        ("bad_import:make", ("cannot be imported: ModuleNotFoundError: No module named 'not_there'", "line 2")),
        ("bad_exit:make", ("module 'bad_exit' cannot be imported: SystemExit: 3 (bad_exit.py, line 1)",)),
    ],
)
def test_names_that_are_refused(run, module, name, words):
    Path("bad_syntax.py").write_text("def make(:\n")
    Path("bad_import.py").write_text("import os\nimport not_there\n")
    Path("bad_exit.py").write_text("raise SystemExit(3)\n")
    Path("my-net.py").write_text("")
    import_module_here(module)  # what it prints is said only once
    answer = run(f"prune {name.replace('MODULE', module)} --data x.npy -o out.safetensors")
    answer.refused(*(word.replace("MODULE", module) for word in words))
    assert "out.safetensors" not in os.listdir()


def test_the_current_folder_is_searched_for_this_import_alone(run, module):
    before = list(sys.path)
    run(f"prune {module}:make --data x.npy")
    assert sys.path == before
    Path("feta.toml").write_text(f'[prune]\nnetwork = "{module}:make"\n')
    assert run("prune --data x.npy").code != 0  # a settings file cannot name code


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-o file/out.safetensors", "cannot write file/out.safetensors"),
        ("-o x.npy --data x.npy", "--output must differ from the input, got x.npy"),
        ("--records file/all.jsonl", "cannot write file/all.jsonl"),
        ("--method feta --data no.npy", "cannot read no.npy: No such file"),
        ("--method feta", "--data must be given for --method feta, got none; only --method threshold works without"),
        ("--refine", "--data must be given for --refine, got none"),
        ("--batch-size 0", "--batch-size must be >= 1, got 0"),
        ("--length 3", "--length must go with --data"),
    ],
)
def test_nothing_is_imported_before_places_and_options_are_checked(run, options, words):
    Path("file").touch()
    np.save("x.npy", rows())
    name = write_code("raise RuntimeError('imported')\n")
    run(f"prune {name}:make {options}").refused(words)


def test_a_network_file_takes_another_data_set_but_no_option_of_an_own_model(run, trained):
    run(f"prune {trained} --weights w.safetensors").refused("--weights must go with module:factory")
    run(f"prune {trained} --size 3x3").refused("--size must go with a model of your own")
    run(f"prune {trained} --data mnist-minni").refused("unknown data set 'mnist-minni'; did you mean 'mnist-mini'?")
    run(f"prune {trained} --data mnist-mini").says("test accuracy")


def test_states_that_cannot_be_saved_and_memory_that_runs_out(run, module, monkeypatch):
    code = "from torch import nn\nclass Odd(nn.Linear):\n    def get_extra_state(self):\n        return 3\n"
    name = write_code(f"{code}def make():\n    return nn.Sequential(Odd(20, 4), nn.Linear(4, 3))\n")
    run(f"prune {name}:make --data x.npy").refused(
        "must have tensors alone in its state dict, got others in '0._extra"
    )
    monkeypatch.setattr("feta.cli.subject.prune", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    import_module_here(module)
    run(f"prune {module}:make --data x.npy").refused("give a smaller --batch-size")


def test_a_file_of_weights_alone_leads_to_the_command_that_works(run, module):
    save_file(import_module_here(module).make().state_dict(), "w.safetensors")
    answer = run("prune w.safetensors")
    answer.refused("must describe its network", "feta prune my_model:make --weights w.safetensors")
    for line in ("speed w.safetensors", "export w.safetensors --onnx w.onnx"):
        known = f"feta {line.split()[0]} my_model:make --weights w.safetensors"
        run(line).refused("must describe its network", known)


# Pickles


def shell(command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.parametrize(("name", "nested"), [("it's my net.pt", False), ("net.PTH", True)])
def test_the_commands_for_a_pickle_work(run, monkeypatch, capsys, module, name, nested):
    model = import_module_here(module).make()
    state = model.state_dict()
    torch.save({"state_dict": state, "epoch": 3} if nested else state, name)
    monkeypatch.setattr(sys, "argv", ["feta", "prune", name, "--data", "x.npy"])
    from feta.cli import main

    capsys.readouterr()
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"feta: model must not be a pickle, got {name}, which feta never loads")
    convert, _, then = said.partition("convert it: ")[2].strip().partition(" and then: ")
    assert shell(convert).stderr == ""
    monkeypatch.setattr(sys, "argv", shlex.split(then.replace("my_model", module)))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_pickles_as_weights_and_as_data(run, module):
    torch.save(torch.from_numpy(rows()), "x.pt")
    Path("there.safetensors").touch()
    answer = run(f"prune {module}:make --data there.pt")
    answer.refused('"there.new.safetensors"', f"feta prune {module}:make --data there.new.safetensors")
    answer = run(f"prune {module}:make --weights w.pth --data x.npy")
    answer.refused("--weights must not be a pickle", f"feta prune {module}:make --weights w.safetensors --data x.npy")
    run(f"speed {module}:make --weights w.pth").refused(f"and then: feta speed {module}:make --weights w.safetensors")
    typed = f"prune {module}:make --weights=w.pth --sparsity 0.8 -o out.safetensors --data x.npy"
    run(typed).refused(f"and then: feta {typed.replace('w.pth', 'w.safetensors')}")
    answer = run("prune w.pt --sparsity 0.8 -o out.safetensors")
    then = "feta prune my_model:make --weights w.safetensors --data FILE --sparsity 0.8 -o out.safetensors"
    answer.refused(f"and then: {then}")
    answer = run(f"prune {module}:make --data x.pt")
    answer.refused("--data must not be a pickle", f"feta prune {module}:make --data x.safetensors")
    assert shell(answer.err.partition("convert it: ")[2].partition(" and then: ")[0]).stderr == ""
    assert run(f"prune {module}:make --data x.safetensors").code == 0


def test_a_record_after_one_that_a_kill_cut_short(run, module):
    Path("all.jsonl").write_text('{"kind": "prune", "key"')
    assert run(f"prune {module}:make --data x.npy --records all.jsonl").code == 0
    (line,) = map(json.loads, Path("all.jsonl").read_text().splitlines())
    assert line["kind"] == "prune"


def test_words_in_the_wrong_place_are_told_where_they_belong(run, module):
    save_file(import_module_here(module).make().state_dict(), "w.safetensors")
    np.savez("d.npz", x=rows())
    answer = run(f"prune {module}:make --weights d.npz --data w.safetensors")
    answer.refused(
        "--weights must be a safetensors file, got d.npz, which is data; swap them: --weights w.safetensors"
    )
    run("prune d.npz").refused("model must be a network, got d.npz", "write feta prune MODEL --data d.npz")
    for words in (f"{module}:make d.npz", f"d.npz {module}:make"):
        answer = run(f"prune {words}")
        said = " ".join(answer.err.replace("│", " ").split())
        assert (answer.code, answer.out) == (2, "")
        assert f"give its data as --data: feta prune {module}:make --data d.npz" in said
    assert "Unused Tokens" in run("eval a b").err
    answer = run("prune meta-llama/Llama-3")
    answer.refused("cannot read meta-llama/Llama-3: No such file or directory; nothing is downloaded: give a file")
    for command in ("certify", "bounds"):
        answer = run(f"{command} w.safetensors w.safetensors")
        answer.refused(f"{command} takes files of `feta train`", "in Python feta.", "(model, pruned, data)")
    os.makedirs("model")
    for name in ("w.safetensors", f"{module}:make", "model"):
        run(f"eval {name}").refused(name, "; eval takes files of `feta train`")
        run(f"retrain {name}").refused(name, "; retrain takes files of `feta prune`")


@pytest.mark.parametrize(
    "line",
    ["prune {0} --report {1}", "prune {0} --records {1}", "speed {0} --report {1}", "export {0} --safetensors {1}"],
)
@pytest.mark.parametrize("place", ["w.safetensors", "x.npy"])
def test_weights_and_data_are_never_written_to(run, module, line, place):
    save_file(torch.nn.Sequential(*import_module_here(module).make()).state_dict(), "w.safetensors")
    before = Path(place).read_bytes()
    force = "" if "--records" in line else " --force"
    words = line.format(f"{module}:make --weights w.safetensors --data x.npy", place)
    run(words + force).refused(f"must differ from the input and other outputs, got {place} for both")
    assert Path(place).read_bytes() == before


def test_the_page_names_the_command_that_measures_what_was_saved(run, module):
    run(f"prune {module}:make --data x.npy --sparsity 0.5 -o out.safetensors --report page.html")
    assert f"feta speed {module}:make --weights out.safetensors --data x.npy</code>" in Path("page.html").read_text()
