"""Build the PyTorch wheels that do not exist: python x CUDA x arch, from source, verified.

The ten wings and their laws are in docs/architecture.md.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - older ones read it, too
    sys.exit(f"error: torchmill needs Python 3.11 or newer to run, and this is {sys.version.split()[0]}")
