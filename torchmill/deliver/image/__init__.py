"""Dockerfiles of `invoke image`."""
