"""Settings for all tests: Hypothesis draws the same examples in every run, torch uses one thread."""

from __future__ import annotations

import torch
from hypothesis import settings

settings.register_profile("feta", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("feta")
torch.set_num_threads(1)
