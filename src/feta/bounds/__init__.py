"""Bounds: how far a pruned network can be from the one it was made of."""
