"""End a Python that is too old for the suite with a sentence. This module is imported first."""

import sys

OLDEST = (3, 11)

if sys.version_info < OLDEST:
    oldest = ".".join(map(str, OLDEST))
    version = sys.version.split()[0]
    sys.exit(f"error: torchmill needs Python {oldest} or newer to run, and this is {version}")
