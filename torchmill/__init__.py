"""Build the PyTorch wheels that do not exist: python x CUDA x arch, from source, verified.

The ten wings and their laws are in docs/architecture.md.
"""
