"""feta certify: its contract with programs, its files, what it says, and refusals in one line."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import feta
from feta.certificates import radius
from feta.certificates.agreement import lower_limit
from feta.pages.words import at_least, at_most
from feta_lab import networks


def test_json_and_files(run, trained, pruned):
    found = run(f"certify {trained} {pruned} --samples 4 --json --confidence 0.9 --radii 0.01,2 -o c").json()
    assert {"agree", "accuracy_lost_upper_bound", "network", "pruning", "norm", "environment"} <= set(found)
    assert (found["samples"], found["confidence"]) == (5000, 0.9)
    assert found["agreement_lower_bound"] == lower_limit(found["agree"], 5000, 1 - 0.9)
    assert set(found["forms"]) == {"global", "local"}
    for form in found["forms"].values():
        assert form["certified_but_changed"] == 0
        assert [row["radius"] for row in form["certified"]] == [0.01, 2]
    assert found.pop("output") == "c"
    assert json.loads(Path("c/certificate.json").read_text()) == found
    assert "feta certificate" in Path("c/certificate.html").read_text()


def test_what_it_says(run, trained, pruned):
    answer = run(f"certify {trained} {pruned} --samples 2 --no-attack --norm linf --radii 0.0001,9 -o c")
    answer.says("held-out samples", "(99 % sure)", "accuracy lost", "vacuous", "not attacked", "certificate.html")
    line = f"certify {trained} {pruned} --samples 2 --no-attack"
    run(f"{line} -o c").refused("--output c must be a new file, got c/certificate.json", "--force replaces it")
    Path("c/certificate.html").unlink()
    run(f"{line} -o c --force").says()
    assert "certificate" in Path("c/certificate.html").read_text()
    shutil.rmtree("c")
    run(line).says("held-out samples")
    assert os.listdir() == []


def test_bounds_are_rounded_outwards():
    assert (at_least(93.689), at_least(50.0)) == ("93.68", "50.00")
    assert (at_most(5.351), at_most(-1.239)) == ("5.36", "-1.23")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--radii a,b", "--radii must be numbers > 0 separated by commas, got 'a,b'"),
        ("--radii 0", "feta: --radii must be numbers > 0"),
        ("--confidence 2", "--confidence must be in (0, 1), got 2.0"),
    ],
)
def test_refusals(run, trained, pruned, options, words):
    run(f"certify {trained} {pruned} {options}").refused(words)
    assert not Path("certificate").exists()


@pytest.mark.parametrize("command", ["bounds", "certify"])
def test_networks_that_do_not_match(run, trained, pruned, command):
    run(f"{command} {trained} missing.safetensors").refused("missing.safetensors")
    network = feta.load(trained)
    small = networks.build("8FC-10SM", network.info.shape, seed=0)
    feta.save(network.with_model(small, specification="8FC-10SM"), "small.safetensors")
    run(f"{command} {trained} small.safetensors").refused("must come from the dense one", "8FC-10SM")
    other = replace(network.info.normalisation, std=(0.5,))
    feta.save(network.with_model(network.model, normalisation=other), "other.safetensors")
    run(f"{command} {pruned} {trained}").refused("must come before the pruned one", "with 45576 zeros", "; swap them")
    run(f"{command} {trained} other.safetensors").refused("both networks must take the same inputs", "std=(0.5,)")


def test_a_refuted_certificate_fails(run, trained, pruned, monkeypatch):
    def wrong(chain, inputs, classes, rounding, norm):
        return torch.full((len(inputs),), 1e3, dtype=torch.float64)

    monkeypatch.setattr(radius, "global_radius", wrong)
    answer = run(f"certify {trained} {pruned} --samples 3 -o c")
    assert answer.code == 1
    assert "no certified ball may hold another class, got {'global': 3" in " ".join(answer.err.split())
    assert json.loads(Path("c/certificate.json").read_text())["forms"]["global"]["certified_any"] == 0
