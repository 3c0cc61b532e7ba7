import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup

try:
    import tinytorch
except ImportError as error:
    sys.exit(f"tinyvision is built against an installed tinytorch: install it into {sys.prefix} first ({error})")

ROOT = Path(__file__).resolve().parent


def git_sha():
    if not (ROOT / ".git").exists():
        return "Unknown"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return head.stdout.strip() or "Unknown"


def current_version(sha):
    base = (ROOT / "version.txt").read_text().strip()
    return os.environ.get("BUILD_VERSION") or (base if sha == "Unknown" else f"{base}+{sha[:7]}")


def requirement():
    pin = os.environ.get("PYTORCH_VERSION")
    return f"tinytorch=={pin}" if pin else "tinytorch"


sha = git_sha()
version = current_version(sha)
(ROOT / "tinyvision" / "version.py").write_text(f"__version__ = {version!r}\ngit_version = {sha!r}\n")

setup(
    name="tinyvision",
    version=version,
    description="Pictures in miniature",
    python_requires=">=3.8",
    install_requires=[requirement()],
    packages=["tinyvision"],
    ext_modules=[
        Extension(
            "tinyvision._C",
            sources=["tinyvision/csrc/module.cpp"],
            include_dirs=[tinytorch.include_path()],
            library_dirs=[str(Path(tinytorch.lib_path()).parent)],
            libraries=["tiny"],
            extra_compile_args=["-std=c++17"],
            language="c++",
        )
    ],
    zip_safe=False,
)
