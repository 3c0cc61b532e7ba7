"""Run a setup.py without compiling anything, and write down the compile commands that it would run.

    python record_compiles.py HEADERS COMMANDS.json     in the folder of setup.py

HEADERS is a folder in which `torch_headers` unpacked a torch without its libraries. Python imports that torch in
place of a real one, so that setup.py and torch.utils.cpp_extension choose the flags for it. This file imports nothing
but what the Python of a cell has, and its stand-in for torch knows no GPU.
"""

import json
import os
import runpy
import sys

headers, output = sys.argv[1:]
sys.path.insert(0, headers)
sys.path.insert(0, os.getcwd())

from setuptools._distutils import ccompiler  # noqa: E402
from torch.utils import cpp_extension  # noqa: E402

commands = []


def record(compiler, argv, *rest, **options):  # noqa: ARG001 - the method of a compiler
    """Note a command of the compiler instead of running it; links are left out."""
    if "-c" in argv:
        commands.append([str(word) for word in argv])


ccompiler.CCompiler.spawn = record
# Without ninja, torch hands every command to the method above; ninja would run them by itself.
cpp_extension.is_ninja_available = lambda: False
sys.argv = [
    "setup.py",
    "build_ext",
    "--force",
    "--build-temp",
    "recorded",
    "--build-lib",
    "recorded",
]
runpy.run_path("setup.py", run_name="__main__")
with open(output, "w", encoding="utf-8") as file:
    json.dump(commands, file, indent=1)
