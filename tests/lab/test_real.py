"""The benchmarks on pretrained models: their networks are the published ones, their records and tables are right."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from feta_lab.records import read

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
llama, resnet, real, depth, real_table, measure, outcome_picture = map(
    importlib.import_module, ("llama", "resnet", "real", "depth", "real_table", "measure", "outcome_picture")
)

SIZES = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 6, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def model():
    return llama.random_llama(seed=1, **SIZES).double()


@pytest.fixture(scope="module")
def places(tmp_path_factory, model):
    """A small model and texts under the names of the real ones."""
    models = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    for name, length in (("test", 203), ("valid", 400)):
        np.save(models / f"smollm2-wikitext2-{name}.npy", rng.integers(0, 50, length).astype(np.uint16))
    folder = models / "smollm2"
    folder.mkdir()
    state = {
        name: weight.float().contiguous() for name, weight in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(state, folder / "model.safetensors")
    config = {
        **SIZES,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "model_type": "llama",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return models


# Networks


def by_hand(model, tokens):
    """The logits of one sequence in float64, position by position; rotary pairs are turned as complex numbers."""
    weights, size = {name: value.numpy() for name, value in model.state_dict().items()}, 4

    def norm(x, name):
        return x / np.sqrt((x * x).mean() + 1e-5) * weights[name]

    def turned(head, position):
        angles = position / 10000.0 ** (np.arange(0, size, 2) / size)
        pairs = (head[: size // 2] + 1j * head[size // 2 :]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag])

    x = [weights["model.embed_tokens.weight"][token] for token in tokens]
    for i in range(2):
        block, q, k, v = f"model.layers.{i}", [], [], []
        for position, row in enumerate(x):
            y = norm(row, f"{block}.input_layernorm.weight")
            parts = {n: (weights[f"{block}.self_attn.{n}_proj.weight"] @ y).reshape(-1, size) for n in "qkv"}
            q.append([turned(head, position) for head in parts["q"]])
            k.append([turned(head, position) for head in parts["k"]])
            v.append(parts["v"])
        for position in range(len(x)):
            heads = []
            for h in range(6):
                scores = np.array([q[position][h] @ k[s][h // 3] / 2 for s in range(position + 1)])
                shares = np.exp(scores) / np.exp(scores).sum()
                heads.append(sum(share * v[s][h // 3] for s, share in enumerate(shares)))
            row = x[position] + weights[f"{block}.self_attn.o_proj.weight"] @ np.concatenate(heads)
            y = norm(row, f"{block}.post_attention_layernorm.weight")
            gate, up = (weights[f"{block}.mlp.{n}_proj.weight"] @ y for n in ("gate", "up"))
            x[position] = row + weights[f"{block}.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    return np.stack([weights["lm_head.weight"] @ norm(row, "model.norm.weight") for row in x])


def test_llama_is_what_its_formula_says(model):
    tokens = torch.randint(50, (1, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        np.testing.assert_allclose(model(tokens)[0].numpy(), by_hand(model, tokens[0].tolist()), atol=1e-6)


def test_a_saved_llama_loads_as_it_was_with_one_weight_for_embedding_and_head(model, places):
    found = llama.load_llama(places / "smollm2")
    assert found.lm_head.weight is found.model.embed_tokens.weight
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(found(tokens), model(tokens).float(), atol=1e-4, rtol=1e-4)
    assert llama.load_llama(places / "smollm2", torch.bfloat16).lm_head.weight.dtype == torch.bfloat16


def test_perplexity_counts_each_prediction_once_the_short_last_window_too(model, places):
    file = places / "smollm2-wikitext2-test.npy"
    tokens, losses = torch.from_numpy(np.load(file).astype(np.int64)), []
    for start in range(0, 203, 16):
        window = tokens[start : start + 16]
        with torch.no_grad():
            chances = model(window[None])[0].log_softmax(-1)
        losses += [-float(chances[i, window[i + 1]]) for i in range(len(window) - 1)]
    assert len(losses) == 12 * 15 + 10
    assert llama.perplexity(model, file, window=16, batch=5) == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert llama.perplexity(model, file, window=16, limit=3) == pytest.approx(
        math.exp(np.mean(losses[:45])), rel=1e-5
    )


def test_windows_are_pieces_of_the_text_and_differ_by_seed(places):
    file = places / "smollm2-wikitext2-valid.npy"
    text = np.load(file).tolist()
    drawn = llama.token_windows(file, 20, 30, seed=0).tolist()
    assert all(any(text[i : i + 30] == one for i in range(371)) for one in drawn)
    assert drawn != llama.token_windows(file, 20, 30, seed=1).tolist()


@pytest.mark.parametrize(("number", "weights"), [(20, 269_722), (32, 464_154)])
def test_resnets_have_the_published_number_of_weights(number, weights):
    assert sum(weight.numel() for weight in resnet.ResNet(number).parameters()) == weights


def test_a_shortcut_takes_every_second_pixel_and_pads_channels_on_both_sides():
    block = resnet.Block(4, 8, stride=2).eval()
    nn.init.zeros_(block.bn2.weight)  # only the shortcut is left
    x = torch.rand(2, 4, 6, 6)
    y = block(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert not y[:, [0, 1, 6, 7]].any()


# Records


def smollm2(places, out, *words):
    small = ["--sequences", "4", "--tokens", "16", "--window", "32", "--batch", "2", "--device", "cpu"]
    return real.main(["smollm2", "--models", str(places), "--out", str(out), *small, *words])


def test_a_cell_is_recorded_once_with_what_it_took(places, tmp_path):
    words = ("--methods", "threshold,wanda", "--sparsity", "0.5")
    assert smollm2(places, tmp_path, *words) == smollm2(places, tmp_path, *words) == 0
    records = read(tmp_path / "records.jsonl")
    assert [record["method"] for record in records] == ["threshold", "wanda"]
    for record in records:
        assert record["kind"] == "smollm2"
        assert record["key"]["seed"] == 0
        assert record["environment"]["commit"]
        assert record["seconds"] > 0
        assert sum(record["statuses"].values()) == record["layer_count"] == 14  # seven layers in each of two blocks
        assert record["zeros"] == pytest.approx(0.5, abs=0.01)
        assert record["perplexity"] > 1
        assert record["peak_bytes"] > 0


def test_a_cell_that_raises_is_recorded_with_its_reason(places, tmp_path):
    assert smollm2(places, tmp_path, "--methods", "nothing,threshold", "--sparsity", "0.5") == 0
    failed, done = read(tmp_path / "records.jsonl")
    assert failed["failure"] == "refused"
    assert "nothing" in failed["reason"]
    assert "failure" not in done


def test_depth_fits_the_exponent_and_records_each_depth(tmp_path, capsys):
    assert depth.exponent([4, 8, 32], [3 * n**1.5 for n in (4, 8, 32)]) == pytest.approx(1.5)
    small = "--blocks 2,1 --width 16 --sequences 2 --tokens 8 --methods threshold --device cpu"
    assert depth.main([*small.split(), "--out", str(tmp_path)]) == 0
    assert [record["blocks"] for record in read(tmp_path / "records.jsonl")] == [1, 2]
    assert "threshold: exponent" in capsys.readouterr().out


# Tables


def record(method, sparsity, accuracy, seed=0, **changes):
    key = {"net": "resnet-20", "seed": seed, "allocation": "uniform", "sparsity": sparsity, "method": method}
    key |= {"limit": None, "images": 1000, **changes}
    place = {"processor": "a processor", "threads": "1", "gpu": "none", "commit": "0123456789ab"}
    numbers = {"accuracy": accuracy, "dense_accuracy": 81.0, "timed": True, "environment": place}
    return {"kind": "resnet", "key": key, **key, **numbers, **({} if accuracy is None else {"seconds": 2.0})}


def test_the_table_says_what_the_records_say():
    lines = [record("alps", 0.5, 70.0), record("alps", 0.5, 74.0, seed=1), record("feta", 0.5, 75.0)]
    lines += [record("alps", 0.9, 50.0), record("feta", 0.9, 90.0), record("feta", 0.9, None, seed=1)]
    lines += [record("threshold", 0.9, None), record("feta", 0.5, 99.0, limit=10)]
    text = real_table.tables(lines)
    assert text.startswith("Measured on a processor, threads: 1, code of commit 0123456.\n\n")
    assert "| accuracy at 50 / 90 % | threshold | alps | feta |\n" in text  # methods that were run
    scores = "– / failed | 72.0 / **50.0** | **75.0** / 90.0 (1 of 2) |"
    assert f"| resnet-20, uniform (dense 81.0) | {scores}\n| seconds | – | 2.0 | 2.0 |" in text


def test_means_never_mix_settings():
    rows = real_table.tables([record("feta", 0.5, 70.0), record("feta", 0.5, 60.0, images=500)])
    assert "resnet-20, uniform, 1000 (dense" in rows
    assert "resnet-20, uniform, 500 (dense" in rows


# The picture


def test_the_picture_takes_means_and_the_better_way_to_spread_where_it_was_run():
    shared = {"allocation": "sensitivity"}
    found = [record("alps", 0.9, 50.0), record("alps", 0.9, 60.0, **shared), record("alps", 0.9, 70.0, 1, **shared)]
    found += [record("default", 0.9, 80.0, **shared), record("default", 0.5, 81.0, **shared)]
    drawn = outcome_picture.chart(found, "resnet-20", "A net", "accuracy (%)", "accuracy")
    assert drawn.title == "A net; dense 81.0"
    lines = {name: [(point.x, point.y) for point in points] for name, points in drawn.lines.items()}
    assert lines == {"feta, default call": [(50, 81.0), (90, 80.0)], "ALPS": [(90, 65.0)]}


def test_an_effort_may_have_a_method_of_ones_own_first():
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)), torch.randn(60, 8)
    pruned, _ = measure.measured_prune(model, rows, "fast:threshold", 0.5, allocation="uniform")
    kept = pruned[0].weight != 0
    assert 0 < kept.sum() < kept.numel()
    assert torch.equal(pruned[0].weight[kept], model[0].weight[kept])  # feta's own would be fitted
