"""What this source tree is called."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git_sha(root):
    """Return the commit that is checked out, or "Unknown" outside of git."""
    if not (root / ".git").exists():
        return "Unknown"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, stdout=subprocess.PIPE, text=True)
    return head.stdout.strip() or "Unknown"


def current(root):
    """Return the version that the environment sets, else that of a development build."""
    version = os.environ.get("PYTORCH_BUILD_VERSION")
    if version:
        number = os.environ.get("PYTORCH_BUILD_NUMBER")
        if number is None:
            sys.exit("PYTORCH_BUILD_VERSION is set, but PYTORCH_BUILD_NUMBER is not: set both")
        return f"{version}.post{number}" if int(number) > 1 else version
    sha = git_sha(root)
    base = (root / "version.txt").read_text().strip()
    return base if sha == "Unknown" else f"{base}+git{sha[:7]}"


def module(root):
    """Return the text of tinytorch/version.py."""
    return f"__version__ = {current(root)!r}\ngit_version = {git_sha(root)!r}\n"


def dynamic_metadata(settings, project):
    """Answer scikit-build-core, which asks for what pyproject.toml leaves open."""
    return {"version": current(ROOT)}


if __name__ == "__main__":
    sys.stdout.write(module(ROOT))
