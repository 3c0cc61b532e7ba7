"""Refuse to build from a checkout without its submodules."""

import sys

NEEDED = ("third_party/tinymath", "third_party/tinymath/third_party/tinybits")


def check(root):
    """Leave with exit code 1 unless every submodule is there."""
    for folder in NEEDED:
        if not (root / folder / "CMakeLists.txt").exists():
            sys.exit(
                f"Could not find CMakeLists.txt in {root / folder}\n"
                "Did you run 'git submodule update --init --recursive'?"
            )
