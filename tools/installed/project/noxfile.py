"""Sessions of torchmill: `nox -s wheel-3.12-cpu`. Facts in build_configs/ go before its own."""

import runpy
from pathlib import Path

import torchmill_suite

torchmill_suite.start(Path(__file__).parent)
runpy.run_path(str(torchmill_suite.SUITE / "noxfile.py"))
