"""feta certify: its contract with programs, its files, what it says, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feta.certificates.agreement import lower_limit

KEYS = {"samples", "agree", "agreement_lower_bound", "confidence", "accuracy_lost_upper_bound", "forms"}


@pytest.fixture
def pruned(run, trained) -> Path:
    assert run("prune", trained, "--sparsity", "0.8", "-o", "pruned.safetensors").code == 0
    return Path("pruned.safetensors")


def test_json_and_files(run, trained, pruned):
    answer = run(
        "certify",
        trained,
        pruned,
        "--samples",
        "4",
        "--json",
        "--confidence",
        "0.9",
        "--radii",
        "0.01,2",
        "-o",
        "c",
    )
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert set(found) >= KEYS
    assert (found["samples"], found["confidence"]) == (5000, 0.9)
    assert found["agreement_lower_bound"] == lower_limit(found["agree"], 5000, 1 - 0.9)
    assert set(found["forms"]) == {"global", "local"}
    for form in found["forms"].values():
        assert form["certified_but_changed"] == 0
        assert [row["radius"] for row in form["certified"]] == [0.01, 2]
    assert json.loads(Path("c/certificate.json").read_text()) == found
    assert "feta certificate" in Path("c/certificate.html").read_text()


def test_what_it_says(run, trained, pruned):
    answer = run("certify", trained, pruned, "--samples", "2", "--no-attack", "--norm", "linf", "--radii", "0.0001,9")
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "held-out samples",
        "(99 % sure)",
        "accuracy lost",
        "vacuous",
        "not attacked",
        "certificate.html",
    ):
        assert words in answer.out


def test_refusals(run, trained, pruned):
    run("certify", trained, pruned, "--radii", "a,b").refused("--radii must be numbers > 0", "got 'a,b'")
    run("certify", trained, pruned, "--radii", "0").refused("certify.radii must be numbers > 0")
    run("certify", trained, pruned, "--confidence", "2").refused("certify.confidence must be in (0, 1), got 2.0")
    run("certify", trained, "missing.safetensors").refused("missing.safetensors")
    assert not Path("certificate/certificate.json").exists()


def test_a_refuted_certificate_fails(run, trained, pruned, monkeypatch):
    import torch

    from feta.certificates import radius

    def wrong(chain, inputs, classes, rounding, norm):
        return torch.full((len(inputs),), 1e3, dtype=torch.float64)

    monkeypatch.setattr(radius, "global_radius", wrong)
    answer = run("certify", trained, pruned, "--samples", "3", "-o", "c")
    assert answer.code == 1
    assert "no certified ball may hold another class, got {'global': 3" in " ".join(answer.err.split())
    assert json.loads(Path("c/certificate.json").read_text())["forms"]["global"]["certified_any"] == 0
