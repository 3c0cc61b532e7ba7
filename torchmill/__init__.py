"""Builds the PyTorch wheels that do not exist: python x CUDA x arch, from source, verified."""
