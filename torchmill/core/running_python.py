"""The Python that runs the suite: an old one that imports this ends with a sentence, and so it is imported first."""

import sys

OLDEST = (3, 11)

if sys.version_info < OLDEST:
    found, oldest = sys.version.split()[0], ".".join(map(str, OLDEST))
    sys.exit(f"error: torchmill needs Python {oldest} or newer to run, and this is {found}")
