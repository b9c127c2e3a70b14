"""Sparse layers for inference, the kernels behind them, and the choice among them by measuring."""
