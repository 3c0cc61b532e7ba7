"""Tasks of torchmill: `invoke --list`. Facts in build_configs/ go before its own."""

import runpy
from pathlib import Path

import torchmill_suite

torchmill_suite.start(Path(__file__).parent)
namespace = runpy.run_path(str(torchmill_suite.SUITE / "tasks.py"))["namespace"]
