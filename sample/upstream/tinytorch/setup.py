import os
from pathlib import Path

from tools import submodules

ROOT = Path(__file__).resolve().parent
submodules.check(ROOT)

from setuptools import Extension, setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

from tools import cmake, version  # noqa: E402


class BuildWithCMake(build_ext):
    """Let CMake make every binary, and lay them beside the Python files."""

    def run(self):
        package = Path(self.build_lib).resolve() / "tinytorch"
        cmake.build(ROOT, ROOT / "build", os.environ)
        cmake.install(ROOT / "build", package)
        (package / "version.py").write_text(version.module(ROOT))


setup(
    name="tinytorch",
    version=version.current(ROOT),
    description="Arrays in miniature",
    python_requires=">=3.8",
    packages=["tinytorch"],
    ext_modules=[Extension("tinytorch._C", sources=[])],
    cmdclass={"build_ext": BuildWithCMake},
    zip_safe=False,
)
