"""Conda packages and channels.

- channel: write a conda channel from the packages in dist/conda/
- layout: lay a wheel's files out as in a conda environment, and set their run paths
- package: make a .conda package of a verified wheel: the same bytes for the same files
- recipe: the metadata of a conda package, computed from a wheel and its facts
- requirements: names and requirements of conda packages, from what the wheel requires
"""
