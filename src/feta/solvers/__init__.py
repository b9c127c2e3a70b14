"""Solvers: numerical algorithms on matrices and streams; they know nothing of models."""
