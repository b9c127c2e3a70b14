"""Soaking: the library under hostile input for as long as one likes; `make soak` runs every kind in full."""
