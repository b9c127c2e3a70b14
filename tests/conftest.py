"""Settings for all tests: Hypothesis draws the same examples in every run, torch uses one thread."""

import resource
from contextlib import contextmanager

import pytest
import torch
from hypothesis import settings

settings.register_profile("feta", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("feta")
torch.set_num_threads(1)


@pytest.fixture
def files_limited_to():
    """A context in which the system itself refuses larger files: a real error in the middle of a write."""

    @contextmanager
    def limited(n_bytes: int):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
