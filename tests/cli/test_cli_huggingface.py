"""feta prune FOLDER: a Hugging Face folder in, one out that transformers loads; every refusal before any work."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_cli_own_data import tokenizer

import feta

LAYERS = {
    "llama": ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"),
    "bert": ("bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.1.output.dense"),
}


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


def write(transformers, kind: str) -> Path:
    """A tiny model with its tokenizer, in bfloat16 and tied, or in parts."""
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 32}
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=True)
        transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(kind)
    else:
        config = transformers.BertConfig(**sizes, num_labels=3)
        transformers.BertForSequenceClassification(config).save_pretrained(kind, max_shard_size="20KB")
        assert len(list(Path(kind).glob("*.safetensors"))) > 2
    tokenizer(f"{kind}/tokenizer.json")
    Path(kind, "notes.py").write_text("raise SystemExit(1)")
    Path("t.txt").write_text(" ".join(f"w{i}" for i in np.random.default_rng(0).integers(2, 100, 4000)))
    return Path(kind)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_folder_comes_out_that_transformers_loads(run, transformers, kind):
    source = write(transformers, kind)
    answer = run(f"prune {kind} --data t.txt --sparsity 0.5 --method wanda --samples 40 -o deep/out")
    assert answer.code == 0
    assert "data: 40 windows of 32 tokens of t.txt" in answer.out
    assert ".from_pretrained('deep/out')" in answer.out
    names = {path.name for path in Path("deep/out").iterdir()}
    assert {"config.json", "tokenizer.json"} <= names
    assert "notes.py" not in names
    for name in ("config.json", "tokenizer.json"):
        assert Path("deep/out", name).read_bytes() == (source / name).read_bytes()
    card = Path("deep/out/README.md").read_text()
    assert '"method": "wanda"' in card
    assert f"| `{LAYERS[kind][0]}.weight` | 50.00 % |" in card
    known = transformers.LlamaForCausalLM if kind == "llama" else transformers.BertForSequenceClassification
    pruned, loaded = known.from_pretrained("deep/out", output_loading_info=True, dtype="auto")
    assert not any(loaded[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    dense = known.from_pretrained(source, dtype="auto")
    assert next(pruned.parameters()).dtype == next(dense.parameters()).dtype
    for name in LAYERS[kind]:
        weight = pruned.get_submodule(name).weight
        assert int((weight != 0).sum()) == weight.numel() // 2
    assert torch.equal(pruned.get_input_embeddings().weight, dense.get_input_embeddings().weight)
    assert os.listdir("deep") == ["out"]


def test_a_feta_file_comes_out_where_its_name_says_so(run, transformers):
    write(transformers, "llama")
    answer = run("prune llama --data t.txt --length 8 --sparsity 0.7 --method alps --json -o out.safetensors")
    found = answer.json()
    dense = sum(path.stat().st_size for path in Path("llama").glob("*.safetensors"))
    assert found["file_bytes"] == {"dense": dense, "pruned": Path("out.safetensors").stat().st_size}
    model = transformers.LlamaForCausalLM.from_pretrained("llama")
    feta.load_into(model, "out.safetensors")
    assert int((model.model.layers[0].mlp.up_proj.weight != 0).sum()) == round(0.3 * 64 * 32)
    rebuilt = feta.load("out.safetensors").model
    assert type(rebuilt) is transformers.LlamaForCausalLM
    assert all(
        torch.equal(a, b) for a, b in zip(rebuilt.state_dict().values(), model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("layout", ["small", "compressed-tensors"])
def test_a_smaller_folder_comes_out_and_goes_in_again(run, transformers, layout):
    write(transformers, "llama")
    prune = "--data t.txt --sparsity 0.8 --method threshold --json"
    found = run(f"prune llama {prune} --layout {layout} -o out").json()
    assert found["file_bytes"]["pruned"] == sum(path.stat().st_size for path in Path("out").glob("*.safetensors"))
    assert found["file_bytes"]["pruned"] < 0.65 * found["file_bytes"]["dense"]
    model = feta.load("out").model
    run(f"prune out {prune} -o again")  # and as transformers has it
    again = transformers.LlamaForCausalLM.from_pretrained("again", dtype="auto")
    assert "quantization_config" not in json.loads(Path("again/config.json").read_text())
    assert Path("again/tokenizer.json").exists()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


def test_without_an_output_the_size_is_that_of_the_folder_that_would_be_written(run, transformers):
    write(transformers, "llama")
    prune = "prune llama --data t.txt --sparsity 0.5 --method threshold"
    answer = run(prune)
    small = run(f"{prune} --layout small -o small --json").json()
    answer.says("(no smaller); with --layout small 19.", " kB (2.3× smaller); nothing was saved, give -o FOLDER\n")
    assert 19_000 < small["file_bytes"]["pruned"] < 20_000
    found = run(f"{prune} --json").json()
    assert found["file_bytes"]["pruned"] == pytest.approx(found["file_bytes"]["dense"], rel=0.05)
    assert (found["output"], small["output"]) == (None, "small")


def test_rounded_weights_in_a_folder(run, transformers):
    write(transformers, "llama")
    prune = "prune llama --data t.txt --sparsity 0.5 --dtype int8"
    run(f"{prune} -o out").refused("--dtype must go with --layout small for a folder, got none")
    answer = run(f"{prune} --layout small -o out")
    answer.says("weights rounded to int8: off by", "feta.load('out').model")
    assert feta.load("out").model.dtype == torch.bfloat16


def test_arrays_reach_it_by_their_names(run, transformers):
    write(transformers, "bert")
    ids = np.random.default_rng(0).integers(2, 100, (30, 12))
    np.savez("d.npz", input_ids=ids, attention_mask=np.ones_like(ids), labels=ids[:, 0])
    assert run("prune bert --data d.npz --sparsity 0.3 --json").json()["sparsity"] == pytest.approx(0.3, abs=1e-3)


def test_weights_that_are_not_all_there(run, transformers):
    folder = write(transformers, "llama")
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    del state["model.layers.0.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    answer = run("prune llama --data t.txt -o out")
    answer.refused("llama must hold all weights of LlamaForCausalLM", "'model.layers.0.mlp.up_proj.weight'")
    assert "out" not in os.listdir()


def test_code_that_comes_with_a_model_is_not_run(run, transformers):
    folder = write(transformers, "llama")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnModel"], "model_type": "own", "auto_map": {"AutoModel": "notes.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    run("prune llama --data t.txt").refused("llama must be a model that transformers can load, got ValueError")


# Refusals, which need no transformers


def folder(config: str = "{}") -> None:
    os.makedirs("model", exist_ok=True)
    Path("model/config.json").write_text(config)
    save_file({"x": torch.ones(2)}, "model/model.safetensors")
    np.save("x.npy", np.ones((3, 4), dtype=np.float32))


def test_without_transformers_the_cure_is_named(run, monkeypatch):
    folder()
    monkeypatch.setitem(sys.modules, "transformers", None)
    run("prune model --data x.npy").refused("model: a Hugging Face folder", "pip install transformers")


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ("{}", "--data x.npy -o model", "--output must differ from the input"),
        ("{}", "--data x.npy -o model/new", "--output must be a new folder outside of the input"),
        ("{}", "--data x.npy -o full", "--output must be a new or an empty folder, got full with 1 files"),
        ("{}", "--data x.npy -o x.npy/out", "cannot write x.npy/out"),
        ("{}", "--weights w.safetensors", "--weights must go with module:factory"),
        ("{", "--data x.npy", "model/config.json must be a JSON object, got Expecting"),
        ("[]", "--data x.npy", "model/config.json must be a JSON object, got [], which is no object"),
        ('{"quantization_config": {}}', "--data x.npy", "must hold float weights, got a quantised model"),
    ],
)
def test_folders_that_are_refused(run, monkeypatch, config, options, words):
    folder(config)
    os.makedirs("full/inner")
    monkeypatch.setitem(sys.modules, "transformers", None)  # it does not come to that
    run(f"prune model {options}").refused(words)


def test_weights_out_of_a_folder_are_not_enough(run):
    folder()
    answer = run("prune model/model.safetensors --data x.npy --sparsity 0.5")
    answer.refused("give the folder that it is in: feta prune model --data x.npy --sparsity 0.5")


def test_folders_without_configuration_or_with_pickles(run):
    folder()
    os.makedirs("empty")
    run("prune empty --data x.npy").refused("empty must be a Hugging Face folder, got one without config.json")
    Path("model/model.safetensors").unlink()
    run("prune model --data x.npy").refused("model must hold model.safetensors or its parts")
    Path("model/pytorch_model.bin").touch()
    answer = run("prune model --data x.npy")
    answer.refused("must not be a pickle, got model/pytorch_model.bin", "model/model.safetensors")
    answer.refused("and then: feta prune model --data x.npy")


# A file that describes its model, and commands without data


def test_a_file_that_feta_load_takes_is_taken_by_commands(run, transformers):
    write(transformers, "llama")
    run("prune llama --data t.txt --sparsity 0.5 -o half.safetensors").says("written to half.safetensors")
    again = run(
        "prune half.safetensors --data t.txt --tokenizer llama/tokenizer.json --sparsity 0.8 -o more.safetensors"
    )
    again.says("windows of 32 tokens", "load it with: feta.load('more.safetensors').model")
    assert type(feta.load("more.safetensors").model) is transformers.LlamaForCausalLM
    found = json.loads(run("speed half.safetensors --batch 1 --json").out)
    assert found["file_bytes"] == Path("half.safetensors").stat().st_size
    run("export half.safetensors --safetensors plain.safetensors").says("plain.safetensors")
    run("prune half.safetensors --weights w").refused("--weights must go with module:factory, got half.safetensors")
    run("eval half.safetensors").refused("got a model of transformers; eval takes files of `feta train`")


def test_info_of_folders_and_of_files_that_describe_their_model(run, transformers):
    write(transformers, "llama")
    run("prune llama --data t.txt --sparsity 0.5 --layout small -o small").says()
    run("prune llama --data t.txt --sparsity 0.5 -o half.safetensors").says()
    tensors = {name: value.shape for name, value in feta.load("small").model.state_dict().items()}
    for place in ("llama", "small", "half.safetensors"):
        run(f"info {place}").says("Network: LlamaForCausalLM of transformers\n", "mlp.up_proj.weight")
        found = run(f"info {place} --json").json()
        assert {entry["name"]: torch.Size(entry["shape"]) for entry in found["tensors"]}.items() <= tensors.items()
    # What is stored for another tensor is counted once, as in the folder of transformers.
    dense, small = (run(f"info {place}").out for place in ("llama", "small"))
    assert dense.splitlines()[0].split(" on disk for ")[1].split(" of ")[0] in small.splitlines()[0]
    assert re.search(r"lm_head.weight, tied to model.embed_tokens.weight .* – +│ +– ", small)
    tied = [entry for entry in run("info small --json").json()["tensors"] if entry["tied_to"]]
    assert [(one["name"], one["bytes"], one["dense_bytes"]) for one in tied] == [("lm_head.weight", 0, 0)]
    parts = write(transformers, "bert")
    found = run("info bert --json").json()
    assert found["file_bytes"] == sum(path.stat().st_size for path in parts.glob("*.safetensors"))
    os.makedirs("empty")
    run("info empty").refused("empty must be a Hugging Face folder, got one without config.json")


def test_tokens_are_made_up_for_a_language_model_without_data(run, transformers):
    write(transformers, "llama")
    run("export llama --safetensors plain.safetensors").says("plain.safetensors")
    assert len(json.loads(run("speed llama --batch 1 --json").out)["batches"]) == 1
    np.save("tokens.npy", np.random.default_rng(0).integers(2, 100, 1000))
    run("prune llama --data tokens.npy --sparsity 0.5").says("data: 31 windows of 32 tokens of tokens.npy")
