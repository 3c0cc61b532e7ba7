"""A Python that describes another processor to uv, which asks the interpreter what it runs on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What uv's query prints is changed on its way: uv itself, with its providers, is the real one.
PROGRAM = """#!{python}
import json, subprocess, sys

words = [{python!r}, *sys.argv[1:]]
done = subprocess.run(words, capture_output=True, text=True)
text = done.stdout
if "get_interpreter_info" in " ".join(words):
    answer = json.loads(text) | json.loads({changes!r})
    answer["markers"]["platform_machine"] = answer["arch"]
    text = json.dumps(answer)
sys.stdout.write(text)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""
# Cores of Arm, by their numbers in /proc/cpuinfo: implementer and part.
NEOVERSE_N1 = ("0x41", "0xd0c")
NEOVERSE_V1 = ("0x41", "0xd40")
NEOVERSE_V2 = ("0x41", "0xd4f")
UNKNOWN_CORE = ("0x99", "0xd40")
# The bits of AT_HWCAP, of arch/arm64/include/uapi/asm/hwcap.h, from the first on.
HWCAPS = tuple(
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma "  # noqa: SIM905
    "lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg".split()
)


def x86_64(folder: Path, features: Sequence[str]) -> Path:
    """Write a Python on a processor of x86-64 with some features, and return it."""
    detected = {"kind": "flags", "flags": " ".join(features)}
    return _write(folder, {"arch": "x86_64", "cpu_info": {"detected": detected}})


def aarch64(folder: Path, features: Sequence[str], core: tuple[str, str] = NEOVERSE_V1) -> Path:
    """Write a Python on an Arm processor with some features, and return it."""
    bits = sum(1 << HWCAPS.index(feature) for feature in features if feature in HWCAPS)
    detected = {"kind": "linux_aarch64", "cores": [core], "hwcaps": [bits, 0, 0, 0]}
    return _write(folder, {"arch": "aarch64", "cpu_info": {"detected": detected}})


def _write(folder: Path, changes: dict[str, Any]) -> Path:
    """Write the program that stands before the Python of the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(PROGRAM.format(python=sys.executable, changes=json.dumps(changes)))
    path.chmod(0o755)
    return path
