"""Data of a user's own: arrays, images and text reach the model as they should, and what is wrong is one line."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from own_models import rows, write_code
from safetensors.torch import save_file
from torch import nn

from feta.cli.arrays import read_arrays
from feta.cli.images import parse_size, read_images
from feta.cli.own_data import read_batches
from feta.cli.own_options import OwnOptions
from feta.cli.text import read_text

NONE = OwnOptions()


class Pair(nn.Module):
    def forward(self, x, mask=None):
        return x


def batches(path: str, model: nn.Module, options: OwnOptions = NONE, size: int | None = None):
    return read_batches(Path(path), model, options, samples=None, seed=0, batch_size=size)[0]


# Arrays


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_one_array_is_the_first_argument_and_labels_are_left_out(kind):
    x, y = rows(50), np.arange(50)
    if kind == "npy":
        np.save("d.npy", x)
    elif kind == "npz":
        np.savez("d.npz", inputs=x, Labels=y, targets=y)
    else:
        save_file({"inputs": torch.from_numpy(x), "y": torch.from_numpy(y)}, "d.safetensors")
    found = batches(f"d.{kind}", Pair(), size=20)
    assert [len(batch) for batch in found] == [20, 20, 10]
    assert torch.equal(torch.cat(found), torch.from_numpy(x))


def test_several_arrays_are_keyword_arguments_in_step():
    mask = np.arange(50) % 3 == 0
    np.savez("d.npz", mask=mask, x=rows(50))
    found = batches("d.npz", Pair(), size=20)
    assert [set(batch) for batch in found] == [{"x", "mask"}] * 3
    assert torch.equal(torch.cat([batch["mask"] for batch in found]), torch.from_numpy(mask))
    assert found[0]["mask"].dtype == torch.bool
    np.savez("one.npz", mask=mask)
    assert isinstance(batches("one.npz", Optional())[0], dict)  # one array that bears another argument's name


class Optional(nn.Module):
    def forward(self, x=None, mask=None):
        return mask.float()


@pytest.mark.parametrize("kind", ["int32", "uint16", "int64", ">i4"])
def test_integers_stay_integers(kind):
    np.save("d.npy", np.arange(60).reshape(20, 3).astype(kind))
    (found,) = batches("d.npy", Pair())
    assert torch.equal(found, torch.arange(60).reshape(20, 3))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f8"])
def test_floats_are_floats(kind):
    np.save("d.npy", rows(20).astype(kind))
    (found,) = batches("d.npy", Pair())
    assert torch.allclose(found.float(), torch.from_numpy(rows(20)), atol=1e-2)


def test_a_draw_of_samples_is_seeded_and_keeps_rows_together():
    np.savez("d.npz", x=np.arange(1000.0)[:, None], mask=np.arange(1000))
    first, again, other = (read_arrays(Path("d.npz"), NONE, 100, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first["x"][:, 0].long(), first["mask"])
    assert torch.equal(first["mask"], again["mask"])
    assert not torch.equal(first["mask"], other["mask"])
    assert read_arrays(Path("d.npz"), NONE, 1, 0)[0]["x"].shape == (1, 1)
    assert 350 < first["mask"].float().mean() < 650


def test_one_row_of_tokens_is_cut_into_windows():
    np.save("d.npy", np.arange(103, dtype=np.uint16))
    (found,) = batches("d.npy", Pair(), OwnOptions(length=10))
    assert torch.equal(found, torch.arange(100).reshape(10, 10))
    with pytest.raises(Exception, match=r"one row of 200 tokens or more, got d.npy with 103 of uint16"):
        batches("d.npy", Pair(), OwnOptions(length=200))


def test_one_row_of_tokens_for_a_language_model_needs_no_length():
    class Language(Pair):
        config = SimpleNamespace(max_position_embeddings=20)

    np.save("d.npy", np.arange(103))
    found, note = read_batches(Path("d.npy"), Language(), NONE, samples=None, seed=0, batch_size=None)
    assert torch.equal(found[0], torch.arange(100).reshape(5, 20))
    assert note == "5 windows of 20 tokens of d.npy"
    np.save("d.npy", np.arange(7))
    assert batches("d.npy", Language())[0].shape == (1, 7)


def test_one_row_of_tokens_that_a_model_cannot_take_leads_to_the_length():
    class Positions(nn.Module):
        def forward(self, ids):
            return ids[:, :2]

    np.save("d.npy", np.arange(103))
    with pytest.raises(Exception, match=r"too many indices.*; for one row of tokens give --length"):
        batches("d.npy", Positions())


def test_bytes_are_scaled_and_normalised_channel_by_channel():
    pixels = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), dtype=np.uint8)
    np.save("d.npy", pixels)
    with pytest.raises(Exception, match=r"got bytes \(uint8\); for images give --scale 255"):
        batches("d.npy", Pair())
    (found,) = batches("d.npy", Pair(), OwnOptions(scale=255, mean="0.1,0.2,0.3", std="0.5"))
    expected = (pixels / 255 - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.5
    assert torch.allclose(found, torch.from_numpy(expected).float(), atol=1e-6)


def test_whole_numbers_are_scaled_and_floats_are_not():
    np.save("d.npy", np.arange(40).reshape(2, 20))
    (found,) = batches("d.npy", Pair(), OwnOptions(scale=10))
    assert torch.allclose(found, torch.arange(40.0).reshape(2, 20) / 10)
    np.savez("d.npz", x=np.full((2, 20), 51, np.uint8), mask=np.ones((2, 20), np.int64))
    (found,) = batches("d.npz", Pair(), OwnOptions(scale=255))
    assert float(found["x"].unique()) == pytest.approx(0.2)
    assert torch.equal(found["mask"], torch.ones(2, 20, dtype=torch.int64))  # no number to divide
    np.save("d.npy", rows(20))
    with pytest.raises(
        Exception, match=r"--scale must go with bytes, or one array of whole numbers, got d\.npy with f"
    ):
        batches("d.npy", Pair(), OwnOptions(scale=10))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.where(rows() > 2.9, np.nan, rows())}, "'x' must be finite, got"),
        ({"x": np.full((3, 20), 1e300)}, "'x' must be finite, got 60 NaN or infinite of 60"),
        ({"x": rows(20), "mask": rows(30)}, "the same number in each, got x of 20×20 and mask of 30×20"),
        ({"x": rows(0)}, "arrays must have one row per sample, the same number in each, got 0×20"),
        ({"x": np.float32(3)}, "arrays must have one row per sample"),
        ({"y": rows()}, "must hold inputs for the model, got ['y']: labels alone"),
        ({"x": np.array(["a", "b"])}, "'x' must be an array of numbers, got <U1"),
        ({"x": rows().astype(complex)}, "'x' must hold real numbers"),
        ({"x": np.array([{}, []], dtype=object)}, "cannot be read without pickle"),
        ({"x_train": rows(), "x_test": rows()}, "names of the model's arguments, x, mask, got x_train, x_test"),
    ],
)
def test_arrays_that_are_refused(arrays, words):
    np.savez("d.npz", **arrays)
    with pytest.raises(Exception) as error:  # noqa: PT011
        batches("d.npz", Pair())
    assert words in str(error.value)
    assert type(error.value).__module__ == "feta.errors"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--data d.csv", "--data must be a file (.npz, .npy, .safetensors, .jsonl, .txt) or a folder of images"),
        ("--data text.npy", "text.npy must be a whole .npy or .npz file of numbers"),
        ("--data text.npz", "text.npz must be a whole .npy or .npz file of numbers"),
        ("--data text.safetensors", "text.safetensors must be a whole safetensors file"),
        ("--data narrow.npy", "the model must run on one sample, 1×7, got RuntimeError: mat1 and mat2"),
        ("--data x.npy --size 3x3", "--size must go with a folder of images, got --data x.npy, which is arrays"),
        ("--data x.npy --tokenizer t", "--tokenizer must go with text, got --data x.npy"),
        ("--data x.npy --mean 0.5", "--mean and --std must go with images"),
        ("--data x.npy --std 0,1,1", "--std must be numbers > 0 separated by commas, got '0,1,1'"),
        ("--data photos --mean 0,1", "--mean must be one number or one per channel, got 2 for 3 channels"),
        ("--data x.npy --scale 0", "--scale must be a number > 0, got 0.0"),
    ],
)
def test_data_that_is_refused_on_the_command_line(run, options, words):
    name = write_code()
    np.save("narrow.npy", rows(30, 7))
    np.save("x.npy", rows())
    for kind in ("npy", "npz", "safetensors"):
        Path(f"text.{kind}").write_text("I am data, honestly")
    Path("d.csv").touch()
    os.makedirs("photos")  # without images: which is not looked at
    answer = run(f"prune {name}:make {options} -o out.safetensors")
    assert (answer.code, answer.out) == (1, "")
    assert words in answer.err.splitlines()[-1]
    assert "out.safetensors" not in os.listdir()


# Images


def photos() -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    draw = np.random.default_rng(0)
    os.makedirs("photos/sub/deep")
    for index, name in enumerate(("a.png", "sub/b.png", "sub/deep/c.jpg")):
        image.fromarray(draw.integers(0, 256, (20 + index, 30, 3), dtype=np.uint8)).save(f"photos/{name}")
    image.fromarray(draw.integers(0, 60000, (20, 30), dtype=np.uint16)).save("photos/deep16.png")
    Path("photos/broken.png").write_bytes(Path("photos/a.png").read_bytes()[:200])
    Path("photos/notes.csv").write_text("a,b")
    Path("photos/.hidden").write_text("not looked at")


def test_images_are_read_from_all_folders_and_the_others_are_named(run):
    photos()
    name = write_code()
    answer = run(f"prune {name}:Conv --data photos --size 16x12 --layers second --json")
    assert answer.code == 0
    warning = answer.err.splitlines()[-1]
    assert "3 of 6 files in photos are no images that can be read" in warning
    assert "'broken.png', 'deep16.png', 'notes.csv'" in warning
    answer = run(f"prune {name}:Conv --data photos --layers second")
    assert "images must be of one size" in answer.err
    assert "give --size HEIGHTxWIDTH" in answer.err
    answer = run(f"prune {name}:Conv --data photos --size 16x12 --channels 1 --layers second")
    assert "see --size and --channels" in answer.err


def test_pixels_channels_and_normalisation(capsys):
    photos()
    from PIL import Image

    one = Path("one")
    one.mkdir()
    Path("photos/a.png").rename("one/a.png")
    colour, _ = read_images(one, OwnOptions(mean="0.5", std="0.25"), nn.Conv2d(3, 2, 3), None, 0)
    grey, _ = read_images(one, NONE, nn.Conv2d(1, 2, 3), None, 0)
    pixels = np.asarray(Image.open("one/a.png"), dtype=np.float64) / 255
    assert torch.allclose(colour[0], torch.from_numpy((pixels - 0.5) / 0.25).permute(2, 0, 1).float(), atol=1e-5)
    assert grey.shape == (1, 1, 20, 30)
    assert torch.allclose(grey[0, 0].double(), torch.from_numpy(pixels @ [0.299, 0.587, 0.114]), atol=0.005)
    sized, _ = read_images(one, OwnOptions(size="8x6", channels="1"), nn.Conv2d(3, 2, 3), None, 0)
    assert sized.shape == (1, 1, 8, 6)


def test_of_many_images_as_many_as_asked_for_are_read(capsys):
    photos()
    found, note = read_images(Path("photos"), OwnOptions(size="4"), nn.Linear(1, 1), 2, 0)
    assert (found.shape, note) == ((2, 3, 4, 4), "2 of 6 images of photos")
    os.makedirs("none")
    with pytest.raises(Exception, match="none must hold images, got 0 files"):
        read_images(Path("none"), NONE, nn.Linear(1, 1), None, 0)


@pytest.mark.parametrize("text", ["", "x", "3x", "0x4", "3x4x5", "-3x4", "a"])
def test_sizes_that_are_refused(text):
    with pytest.raises(Exception, match="--size must be HEIGHTxWIDTH"):
        parse_size(text)


def test_missing_packages_name_their_cure(run, monkeypatch):
    import sys

    name = write_code()
    os.makedirs("photos")
    Path("t.txt").write_text("a b c")
    Path("tokenizer.json").write_text("{}")
    for package, data in (("PIL", "photos"), ("tokenizers", "t.txt")):
        monkeypatch.setitem(sys.modules, package, None)
        answer = run(f"prune {name}:Conv --data {data}")
        assert f"pip install {'pillow' if package == 'PIL' else package}" in answer.err.splitlines()[-1]


# Text


def tokenizer(path: str = "tokenizer.json") -> Path:
    package = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {"[UNK]": 0, "[CLS]": 1, **{f"w{i}": i for i in range(2, 100)}}
    made = package.Tokenizer(package.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = package.pre_tokenizers.Whitespace()
    made.post_processor = package.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    made.enable_truncation(5)  # as many tokenizers come
    made.enable_padding(length=50)
    made.save(path)
    return Path(path)


def test_texts_are_packed_into_windows_without_padding():
    place, draw = tokenizer(), np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in draw.integers(2, 100, draw.integers(1, 30))) for _ in range(40)]
    Path("t.jsonl").write_text("".join(json.dumps({"text": text, "id": 3}) + "\n\n" for text in texts))
    windows, note = read_text(Path("t.jsonl"), place, 16, None, 0)
    total = sum(len(text.split()) + 1 for text in texts)
    assert (windows.shape, windows.dtype) == ((total // 16, 16), torch.int64)
    assert note == f"{total // 16} windows of 16 tokens of t.jsonl"
    assert int((windows == 1).sum()) in range(38, 41)  # one mark per text, the cut-off end aside
    assert int((windows == 0).sum()) == 0
    joined = " ".join(f"w{i}" for i in windows.flatten().tolist() if i > 1)
    assert all(text in joined for text in texts[:1])
    few, _ = read_text(Path("t.jsonl"), place, 16, 3, 1)
    assert few.shape == (3, 16)


def test_plain_text_is_one_text():
    Path("t.txt").write_text("\n".join(f"w{i}" for i in range(2, 90)), encoding="utf-8-sig")
    windows, _ = read_text(Path("t.txt"), tokenizer(), 8, None, 0)
    assert windows.flatten().tolist() == [1, *range(2, 89)]


def test_text_prunes_a_model_of_tokens(run):
    tokenizer("tokenizer.json")
    draw = np.random.default_rng(0)
    Path("t.txt").write_text(" ".join(f"w{i}" for i in draw.integers(2, 100, 3000)))
    answer = run(
        f"prune {write_code()}:Tokens --data t.txt --length 20 --sparsity 0.5 --method feta --json --samples 90"
    )
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["layers"][0]["nonzeros"] == 144


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("t.txt", "w2 w3", "t.txt must hold 16 tokens or more, got 3; give a --length of at most 3"),
        (
            "t.jsonl",
            '{"text": "w2"}\n{"txt": 1}\n',
            "t.jsonl, line 2 must be a JSON object with a \"text\", got ['txt']",
        ),
        ("t.jsonl", "[1]\n", "got list"),
        ("t.jsonl", "{\n", "line 1 must be a JSON object"),
        ("t.jsonl", '{"text": ' + "[" * 100000 + "\n", "line 1 must be a JSON object"),
        ("t.jsonl", "\n", "t.jsonl must hold texts, got none"),
    ],
)
def test_texts_that_are_refused(run, file, content, words):
    tokenizer()
    Path(file).write_text(content)
    answer = run(f"prune {write_code()}:Tokens --data {file} --length 16")
    assert answer.code == 1
    assert words in answer.err.splitlines()[-1]


def test_tokenizers_that_are_refused(run):
    tokenizer("other.json")
    Path("t.txt").write_bytes(b"w2 \xff w3")
    line = f"prune {write_code()}:Tokens --data t.txt"
    for extra, words in (
        ("", "got no tokenizer.json in .; give --tokenizer FILE"),
        ("--tokenizer none.json", "cannot read none.json"),
        ("--tokenizer t.txt", "t.txt must be a tokenizer.json, got one that cannot be read"),
        ("--tokenizer other.json", "t.txt must be text in UTF-8, got a byte that is not at 3"),
        ("--tokenizer other.json --length 0", "--length must be >= 1, got 0"),
    ):
        assert words in run(f"{line} {extra}").err.splitlines()[-1]
