"""Attacks on torchmill, a module for each class of faults: `python -m tests.faults --help`."""
