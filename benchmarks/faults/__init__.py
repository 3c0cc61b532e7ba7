"""Attacks on torchmill, each class by itself: `python -m benchmarks.faults --help`."""
