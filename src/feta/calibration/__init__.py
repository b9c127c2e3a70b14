"""Calibration: unlabelled data streamed through the networks, and one-pass statistics of it."""
