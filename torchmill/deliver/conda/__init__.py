"""Conda packages and channels."""
