"""Models of transformers: folders and files in each layout give the same model back."""

import importlib.util
import json
import warnings
from pathlib import Path

import markdown_it
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

import feta
from feta.errors import ConfigError, FileError, ModelError, printable
from feta.files import card, folder

# Imported by the tests themselves: it takes seconds, in every process that only collects them.
pytestmark = pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="transformers is not installed")
LAYOUTS = ["dense", "small", "compressed-tensors"]
SIZES = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 32}


def llama(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Tied, and sparse in its linear layers."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)
    return sparse(transformers.LlamaForCausalLM(config).to(dtype).eval())


def bert() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return sparse(transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=3)).eval())


@torch.no_grad()
def sparse(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.in_features in (32, 64) and module.out_features in (32, 64):
            module.weight[torch.rand(module.weight.shape) < 0.8] = 0
    return model


def equal(model: nn.Module, other: nn.Module) -> bool:
    one, two = model.state_dict(), other.state_dict()
    same = all(torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one)
    if set(one) != set(two) or not same or model.dtype == torch.bfloat16:  # .to() rounds the angles of positions too
        return set(one) == set(two) and same
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        return torch.equal(model(ids).logits, other(ids).logits)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [llama, bert, lambda: llama(torch.bfloat16)], ids=["llama", "bert", "bfloat16"])
def test_a_folder_gives_the_model_back(tmp_path, layout, make):
    model = make()
    n_bytes = feta.save(model, tmp_path / "out", layout=layout)
    assert n_bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    network = feta.load(tmp_path / "out")
    assert type(network.model) is type(model)
    assert not network.model.training
    assert equal(network.model, model)
    assert network.info.config["model_type"] == model.config.model_type
    if type(model).__name__.startswith("Llama"):
        assert network.model.lm_head.weight is network.model.model.embed_tokens.weight
        names = [name for path in (tmp_path / "out").glob("*.safetensors") for name in load_file(path)]
        assert not any("lm_head" in name for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    filled = make()
    for parameter in filled.parameters():
        parameter.data.zero_()
    assert equal(feta.load_into(filled, tmp_path / "out"), model)


def test_small_is_smaller_and_transformers_does_not_take_it_for_its_own(tmp_path):
    import transformers

    sizes = {layout: feta.save(bert(), tmp_path / layout, layout=layout) for layout in LAYOUTS}
    assert sizes["small"] < sizes["compressed-tensors"] < sizes["dense"]
    with pytest.raises(OSError, match="no file named"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / "small")


def test_what_compressed_tensors_needs_to_know(tmp_path):
    feta.save(llama(), tmp_path / "out", layout="compressed-tensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["sparsity_config"]["format"] == "sparse-bitmask"
    assert 0 < config["sparsity_config"]["global_sparsity"] < 0.8
    stored = load_file(tmp_path / "out" / "model.safetensors")
    stem = "model.layers.0.mlp.up_proj"
    assert {f"{stem}.{part}" for part in ("compressed", "bitmask", "shape", "row_offsets")} <= set(stored)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rounded_weights(tmp_path, dtype):
    model = llama()
    with pytest.raises(
        ConfigError, match=f"save.dtype must go with layout='small' for a folder, got {dtype} with dense"
    ):
        feta.save(model, tmp_path / "out", dtype=dtype)
    exact = feta.save(model, tmp_path / "exact", layout="small")
    assert feta.save(model, tmp_path / "out", layout="small", dtype=dtype) < 0.75 * exact
    back = feta.load(tmp_path / "out").model
    weight, other = model.model.layers[0].mlp.up_proj.weight, back.model.layers[0].mlp.up_proj.weight
    assert other.dtype == torch.float32
    assert bool((other[weight == 0] == 0).all())
    assert 0 < float((weight - other).detach().norm() / weight.detach().norm()) < 0.02


def test_what_else_is_in_the_folder_comes_along(tmp_path):
    """A model that came from a folder, sharded, leaves with its tokenizer and its card."""
    source = tmp_path / "in"
    bert().save_pretrained(source, max_shard_size="20KB")
    assert (source / "model.safetensors.index.json").exists()
    for name, text in {"tokenizer.json": "{}", "README.md": "# Mine\n", "code.py": "", "old.bin": ""}.items():
        (source / name).write_text(text)
    model = feta.load(source).model
    assert equal(model, bert())
    feta.save(model, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    text = (tmp_path / "out" / "README.md").read_text()
    assert text.startswith("# Mine\n")
    weight = "bert.encoder.layer.0.output.dense.weight"
    zeros = 100 * float((model.state_dict()[weight] == 0).double().mean())
    assert f"| `{weight}` | {zeros:.2f} % |" in text


def test_a_file_knows_its_model(tmp_path):
    model = llama(torch.bfloat16)
    feta.save(model, tmp_path / "x.safetensors")
    network = feta.load(tmp_path / "x.safetensors")
    assert equal(network.model, model)
    feta.save(network, tmp_path / "y.safetensors")
    assert equal(feta.load(tmp_path / "y.safetensors").model, model)
    feta.save(network, tmp_path / "out")
    assert equal(feta.load(tmp_path / "out").model, model)


def test_folders_that_are_refused(tmp_path):
    model = llama()
    feta.save(model, tmp_path / "out")
    with pytest.raises(FileError, match="out must be a new or an empty folder, got one with"):
        feta.save(model, tmp_path / "out")
    with pytest.raises(FileError, match="must be a Hugging Face folder, got one without"):
        feta.load(tmp_path)
    (tmp_path / "out" / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ModelError, match="must hold float weights, got a quantised model"):
        feta.load(tmp_path / "out")


def test_a_full_disk_is_a_file_error_and_nothing_stays(tmp_path, monkeypatch):
    model = llama()

    def full(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(type(model), "save_pretrained", full)
    with pytest.raises(FileError, match=r"cannot write .*out: SafetensorError: I/O error: No space left on device"):
        feta.save(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_their_configuration(tmp_path):
    feta.save(llama(), tmp_path / "out", layout="small")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(ModelError, match="must be a model that transformers can build, got RuntimeError"):
        feta.load(tmp_path / "out")


def test_weights_that_a_model_does_not_use_are_named(tmp_path):
    from safetensors.torch import save_file

    feta.save(llama(), tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    save_file({**load_file(path), "extra.weight": torch.ones(3)}, path, {"format": "pt"})
    with pytest.warns(UserWarning, match="LlamaForCausalLM does not use 'extra.weight'"):
        feta.load(tmp_path / "out")


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_write_card", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(FileError, match=r"cannot write .*out: No space left"):
        feta.save(llama(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_card_keeps_the_rest_and_has_one_section():
    first = card.with_pruning("---\nlicense: mit\n---\n# Mine\n", {"a": 0.5}, {"method": "feta", "layers": ["a"]})
    again = card.with_pruning(first + "More.\n", {"b": 0.9}, {})
    assert first.startswith("---\nlicense: mit\n---\n# Mine\n")
    block = first.split("```json\n")[1].split("```")[0]
    assert json.loads(block) == {"pruning": {"method": "feta"}}
    assert "| `a` | 50.00 % |" in first
    assert (again.count("## Pruning"), "`a`" in again, "| `b` | 90.00 % |" in again) == (1, False, True)
    assert again.startswith("---\nlicense: mit\n---\n# Mine\n")
    assert again.endswith("More.\n")


def test_other_models_with_a_name_like_a_folder_are_files(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feta.save(nn.Linear(3, 3), tmp_path / "net")
    assert Path(tmp_path / "net").is_file()


EVIL = ("a|b", "<b>", "`x`\n| c |", "*x*", "\x1b[2J\u202e", card.END, "[a](b)", "y" * 100_000)


@pytest.mark.parametrize("name", EVIL, ids=lambda name: ascii(name[:20]))
def test_names_in_a_card_are_words(name):
    """One row and one section, whatever the name is."""
    first = card.with_pruning("", {name: 0.5, "plain": 0.5}, {"method": name})
    again = card.with_pruning(first + "More.\n", {name: 0.5}, {})
    parsed = markdown_it.MarkdownIt("commonmark").enable("table").parse(first)
    cells = [token.children for token in parsed if token.type == "inline"][3:]  # after the heading and the head
    assert len(cells) == 4
    assert {child.type for cell in cells for child in cell} <= {"text", "code_inline"}
    assert "".join(child.content for child in cells[0])[:4000] == printable(name[:4000])[:4000]
    assert first.replace("\n", "").isprintable()
    assert (again.count("## Pruning"), again.count("| tensor | zeros |")) == (1, 1)
    assert again.endswith(f"{card.END}\nMore.\n")


def test_a_name_without_an_end_has_one_on_the_card():
    long = "x" * 1_000_000
    found = card.with_pruning("", {long: 0.5}, {"method": long, "sparsity": {long: 0.5}, "kept": [long]})
    assert len(found) < 5 * 5000
    assert found.count("…") + found.count("\\u2026") == 4
