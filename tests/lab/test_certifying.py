"""Certificates of the lab's networks: grey levels, the two files, the page in a browser, refusals."""

import json
from dataclasses import replace

import pytest
import torch

from feta.certificates.attack import Attack
from feta.cli.certify import certify_subjects, verdict, write_certificate
from feta.cli.subject import Subject, prune_subject
from feta.errors import DataError
from feta_lab import networks
from feta_lab.data import Normalisation
from feta_lab.page.certificate import certificate_page
from feta_lab.page.document import write
from feta_lab.store import Network, NetworkInfo
from feta_lab.subject import subject_of
from feta_lab.training import Training, train


@pytest.fixture(scope="module")
def pair(tiny_data) -> tuple[Subject, Subject]:
    dense = subject_of(train("12FC-8FC-3SM", tiny_data, Training(max_epochs=3)), tiny_data)
    before = [weight.clone() for weight in dense.model.parameters()]
    model, _, kept = prune_subject(dense, 0.6, "threshold")
    assert all(map(torch.equal, before, dense.model.parameters()))
    return dense, replace(dense, model=model, pruning=kept)


@pytest.fixture(scope="module")
def found(pair) -> dict:
    attack = Attack(points=5, restarts=1, steps=5, beyond=(50.0,))
    return certify_subjects(*pair, samples=15, attack=attack, radii=(0.001, 0.1, 100.0))


def test_the_object(found, pair, tiny_data):
    assert found["samples"] == len(tiny_data.test) == 120
    assert found["pruning"]["method"] == "threshold"
    (std,) = pair[0].deviations
    assert found["grey_levels_per_unit"] == pytest.approx(255 * std)
    for form in found["forms"].values():
        assert [row["grey_levels"] for row in form["certified"]] == [
            pytest.approx(row["radius"] * 255 * std) for row in form["certified"]
        ]
        assert form["one_grey_level"] == sum(radius * 255 * std >= 1 for radius in form["radius"])
        assert form["certified_but_changed"] == 0
        assert form["certified"][2]["samples"] == 0


def test_files(found, tmp_path):
    data, shown = write_certificate(tmp_path / "new", found)
    assert json.loads(data.read_text()) == json.loads(json.dumps(found))
    text = shown.read_text()
    assert text == certificate_page(found)
    for words in ("at least", "vacuous", "threshold", "test half", "grey levels"):
        assert words in text
    assert "not attacked" not in text


def test_the_page_of_a_certificate_with_holes(found):
    """No labels, no attack, one form, nothing certified."""
    row = {"radius": 1.0, "grey_levels": 80.0, "samples": 0, "share": 0.0}
    none = {"radius": [0.0] * 15, "certified": [row], "certified_any": 0, "vacuous": True, "median_radius": 0.0}
    form = {**found["forms"]["global"], **none, "certified_but_changed": None, "changed_beyond": []}
    missing = dict.fromkeys(("pruning", "accuracy_lost", "accuracy_lost_upper_bound", "attack"))
    bare = {**found, **missing, "forms": {"global": form}}
    text = certificate_page(bare)
    assert "vacuous: no sample is certified" in text
    assert "not attacked" in text
    assert "accuracy lost" not in text
    assert verdict(form).startswith("vacuous")


def test_several_channels_count_by_the_smallest_factor(tiny_data):
    info = NetworkInfo("4FC-3SM", (2, 3, 3), "tiny", Normalisation((0.1, 0.2), (0.5, 0.2)))
    network = Network(networks.build(info.specification, info.shape, seed=0), info)
    images = torch.randint(0, 256, (20, 2, 3, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = replace(tiny_data.test, images=images, labels=torch.zeros(20, dtype=torch.int64))
    subject = subject_of(network, replace(tiny_data, train=split, test=split))
    said = certify_subjects(subject, subject, samples=2, attack=None, forms=("global",))
    assert said["grey_levels_per_unit"] == pytest.approx(255 * 0.2)
    with pytest.raises(DataError, match=r"'tiny' must have images of \(2, 3, 3\), got \(1, 6, 6\)"):
        subject_of(network, tiny_data)


@pytest.mark.browser
def test_the_page_opens(found, browser, tmp_path):
    write(tmp_path / "page.html", certificate_page(found))
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.querySelectorAll('figure svg.beside').length") == 1
    assert "Inputs nobody has tried" in browser.find_element("tag name", "body").text
