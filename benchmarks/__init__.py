"""Measured speed: `python -m benchmarks kernels` on a GPU. Not part of the installed package."""
