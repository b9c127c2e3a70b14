"""Projection on principal components: against a singular value decomposition, its file, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from feta.errors import ConfigError
from feta_lab.experiments import fig3c as projection
from feta_lab.experiments.fig3c import cached_basis, fit_basis


@pytest.fixture
def inputs(tiny_data):
    return tiny_data.train.images, tiny_data.normalisation


def rows_of(images, normalisation) -> np.ndarray:
    return normalisation.apply(images, "cpu").flatten(1).double().numpy()


def test_the_basis_is_that_of_the_svd(inputs, monkeypatch):
    monkeypatch.setattr(projection, "CHUNK", 70)  # 300 images in chunks that do not divide them
    basis = fit_basis(*inputs, 5, "cpu")
    X = rows_of(*inputs)
    _, values, right = np.linalg.svd(X - X.mean(0), full_matrices=False)
    np.testing.assert_allclose(basis.mean, X.mean(0), atol=1e-6)
    np.testing.assert_allclose(basis.variances, values**2 / 299, rtol=1e-5)
    V = right[:5].T
    np.testing.assert_allclose(basis.components @ basis.components.T, V @ V.T, atol=1e-4)
    assert basis.energy(5) == pytest.approx((values[:5] ** 2).sum() / (values**2).sum(), rel=1e-5)


@pytest.mark.parametrize("k", [1, 4, 36])
def test_projected_images_have_rank_k_and_keep_their_shape(inputs, k):
    basis = fit_basis(*inputs, 36, "cpu")
    projected = basis.project(*inputs, k, "cpu")
    assert projected.shape == inputs[0].shape
    assert projected.dtype == torch.float32
    X, P = rows_of(*inputs), projected.flatten(1).double().numpy()
    V = np.linalg.svd(X - X.mean(0), full_matrices=False)[2][:k].T
    np.testing.assert_allclose(P, X.mean(0) + (X - X.mean(0)) @ V @ V.T, atol=1e-4)
    assert np.linalg.matrix_rank(P - P.mean(0), tol=1e-3) == k


def test_the_file_is_used_and_made_anew_when_it_does_not_fit(tiny_data, tmp_path, monkeypatch):
    first = cached_basis(tiny_data, 4, tmp_path, "cpu")
    fitted = []
    monkeypatch.setattr(projection, "fit_basis", lambda *given: fitted.append(given[2]) or fit_basis(*given))
    again = cached_basis(tiny_data, 3, tmp_path, "cpu")
    assert not fitted
    assert torch.equal(again.components, first.components)
    assert cached_basis(tiny_data, 6, tmp_path, "cpu").components.shape == (36, 6)
    cached_basis(replace(tiny_data, train=tiny_data.validation), 4, tmp_path, "cpu")
    assert fitted == [6, 4]


def test_signs_do_not_depend_on_the_solver(inputs):
    components = fit_basis(*inputs, 8, "cpu").components
    assert (components.gather(0, components.abs().argmax(0, keepdim=True)) > 0).all()


def test_too_many_components(inputs):
    basis = fit_basis(*inputs, 4, "cpu")
    for wrong in (0, 37):
        with pytest.raises(ConfigError, match=f"components must be between 1 and 36, got {wrong}"):
            fit_basis(*inputs, wrong, "cpu")
    for wrong in (0, 5):
        with pytest.raises(ConfigError, match=f"k must be between 1 and 4 components, got {wrong}"):
            basis.project(*inputs, wrong, "cpu")
