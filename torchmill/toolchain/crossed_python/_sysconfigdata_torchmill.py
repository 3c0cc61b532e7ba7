"""The values of sysconfig in a crossed build: those of this Python, with the names of the target.

CPython imports a module of this form in place of its own if _PYTHON_SYSCONFIGDATA_NAME names it:
https://github.com/python/cpython/blob/3.13/Lib/sysconfig/__init__.py

TORCHMILL_TARGET_TRIPLET is GNU's name of the target, "aarch64-linux-gnu"; CC and CXX are its
compilers. The other values of this Python are right for the target, because types have the same
sizes on all 64-bit machines with Linux: docs/explanation/crossed-builds.md.
"""

from __future__ import annotations

import importlib
import os
import re
import sysconfig
from typing import Any

_NAME = "_PYTHON_SYSCONFIGDATA_NAME"


def _own_values() -> dict[str, Any]:
    """Return the values of this Python, from the module that it would import otherwise."""
    name = os.environ.pop(_NAME, None)
    try:
        # There is no public function for it.
        own_name: str = getattr(sysconfig, "_get_sysconfigdata_name")()  # noqa: B009
        return dict(importlib.import_module(own_name).build_time_vars)
    finally:
        if name is not None:
            os.environ[_NAME] = name


def _target_values(
    values: dict[str, Any], triplet: str, compiler: str, cxx_compiler: str
) -> dict[str, Any]:
    """Give values the target's compilers and its suffix of modules; return the same mapping."""
    # ".cpython-311-x86_64-linux-gnu.so" becomes ".cpython-311-aarch64-linux-gnu.so".
    for key in ("EXT_SUFFIX", "SOABI", "MULTIARCH"):
        values[key] = re.sub(r"\w+-linux-\w+", triplet, str(values.get(key, "")))
    values["HOST_GNU_TYPE"] = triplet
    values["CC"] = compiler
    values["CXX"] = cxx_compiler
    values["LDSHARED"] = f"{compiler} -shared"
    values["LDCXXSHARED"] = f"{cxx_compiler} -shared"
    values["AR"] = f"{triplet}-ar"
    # Those of this Python name folders with libraries of this machine.
    values["LDFLAGS"] = ""
    values["LIBDIR"] = ""
    return values


build_time_vars: dict[str, Any] = {}
if "TORCHMILL_TARGET_TRIPLET" in os.environ:
    build_time_vars = _target_values(
        _own_values(),
        os.environ["TORCHMILL_TARGET_TRIPLET"],
        os.environ["CC"],
        os.environ["CXX"],
    )
