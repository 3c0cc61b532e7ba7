"""Tasks of torchmill, for `invoke`; `torchmill TASK` needs no such file.

Facts in build_configs/ go before its own.
Whoever calls `invoke` here runs this file: look at it first in a repository that you do not know. `torchmill matrix`,
`torchmill plan` and `torchmill explain` do not run it.
"""

import runpy
from pathlib import Path

import torchmill_suite

torchmill_suite.start(Path(__file__).parent)
namespace = runpy.run_path(str(torchmill_suite.SUITE / "tasks.py"))["namespace"]
