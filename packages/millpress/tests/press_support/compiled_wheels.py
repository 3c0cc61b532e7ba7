"""Raw wheels with libraries of C, like torch's and torchvision's, that compile in a second."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from millpress import metadata, wheel_writer
from millpress.repair import RepairResult, repair_staged
from millpress.staging import stage_wheel

COMPILER = shutil.which("cc")
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
ABI = PYTHON + getattr(sys, "abiflags", "")
ARCH = platform.machine()
PLATFORM = f"manylinux_{platform.libc_ver()[1].replace('.', '_')}_{ARCH}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LIBPYTHON = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"

needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux" or not platform.libc_ver()[1],
    reason="needs a C compiler and glibc",
)

# The sources of the outside libraries and of the package's. secure_getenv came with glibc 2.17.
INNER = "double inner_add(double a, double b) { return a + b; }"
OUTER = "double inner_add(double, double); double outer_add(double a, double b) { return inner_add(a, b); }"
LENS = "double lens(double x) { return x; }"
TINY = """
    #define _GNU_SOURCE
    #include <stdlib.h>
    double outer_add(double, double);
    double tiny_add(double a, double b) { return secure_getenv("TINY_NONSENSE") ? 0 : outer_add(a, b); }
    double tiny_scale(double x, double y) { return x * y; }
"""
MODULE = """
    #include <Python.h>
    %(prototypes)s
    static PyObject *call(PyObject *self, PyObject *args) {
        double a, b;
        if (!PyArg_ParseTuple(args, "dd", &a, &b)) return NULL;
        return PyFloat_FromDouble(%(expression)s);
    }
    static PyMethodDef methods[] = {{"%(function)s", call, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
    static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", NULL, -1, methods};
    PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&definition); }
"""
TORCH_INIT = """
    from tinytorch._C import add
    from tinytorch.version import __version__

    def config():
        return {"USE_FAST": "ON", "USE_SLOW": "OFF"}
"""
VISION_INIT = """
    import tinytorch
    from tinyvision._C import scale

    __version__ = "0.5+cpu"
"""


@dataclass(frozen=True)
class Raw:
    """Two wheels as a build leaves them, and the folder of the libraries that they need."""

    # Folder of libouter.so.2, which needs libinner.so.1; of liblens.so.1; and of an empty library
    # with the name of libpython.
    outside: Path
    torch: Path
    vision: Path


def build(folder: Path) -> Raw:
    """Compile and zip both wheels below `folder`."""
    outside = folder / "outside"
    trees = folder / "trees"
    libraries = trees / "torch" / "tinytorch" / "lib"
    for new_folder in (outside, libraries, trees / "vision" / "tinyvision"):
        new_folder.mkdir(parents=True)
    script = folder / "outer.map"
    script.write_text("OUTER_1 { global: outer_add; local: *; };")
    shared(INNER, outside / "libinner.so.1")
    # A versioned symbol names its library: the name has to change together with DT_NEEDED.
    shared(
        OUTER,
        outside / "libouter.so.2",
        outside / "libinner.so.1",
        f"-Wl,--version-script={script}",
    )
    shared(LENS, outside / "liblens.so.1")
    shared("", outside / LIBPYTHON)
    shared(
        TINY,
        libraries / "libtiny.so",
        outside / "libouter.so.2",
        f"-Wl,-rpath,{outside}:/nowhere/build/lib",
    )
    extension(
        trees / "torch" / "tinytorch",
        "add",
        "tiny_add(a, b)",
        libraries / "libtiny.so",
        outside / LIBPYTHON,
    )
    extension(
        trees / "vision" / "tinyvision",
        "scale",
        "tiny_scale(lens(a), b)",
        libraries / "libtiny.so",
        outside / "liblens.so.1",
        f"-Wl,-rpath,{libraries}",
    )
    sources = {
        "torch/tinytorch/__init__.py": dedent(TORCH_INIT),
        "torch/tinytorch/version.py": "__version__ = '1.0+cpu'\ngit_version = 'Unknown'\n",
        "torch/tinytorch/include/tiny.h": "double tiny_add(double, double);\n",
        "torch/tinytorch/include/pybind11/pybind11.h": "",
        "vision/tinyvision/__init__.py": dedent(VISION_INIT),
    }
    for name, text in sources.items():
        (trees / name).parent.mkdir(parents=True, exist_ok=True)
        (trees / name).write_text(text)
    torch = raw_wheel(trees / "torch", "tinytorch", "1.0+cpu", folder)
    vision = raw_wheel(trees / "vision", "tinyvision", "0.5+cpu", folder, "tinytorch==1.0+cpu")
    shutil.rmtree(trees)
    return Raw(outside, torch, vision)


def shared(source: str, path: Path, *arguments: str | Path) -> Path:
    """Compile one file of C into the shared library `path`."""
    code = path.with_name(f"{path.name}.c")
    code.write_text(dedent(source))
    assert COMPILER is not None
    # --no-as-needed: a library stays needed although nothing of it is used, as with libpython
    flags = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed"]
    subprocess.run([COMPILER, *flags, "-o", path, code, *arguments], check=True)
    code.unlink()
    return path


def extension(package: Path, function: str, expression: str, *arguments: str | Path) -> None:
    """Compile the extension module _C of `package`, for the interpreter that runs this."""
    words = {
        "function": function,
        "expression": expression,
        "prototypes": "double tiny_add(double, double), tiny_scale(double, double), lens(double);",
    }
    include = f"-I{sysconfig.get_path('include')}"
    shared(MODULE % words, package / f"_C{SUFFIX}", include, *arguments)


def raw_wheel(tree: Path, name: str, version: str, folder: Path, *requires: str) -> Path:
    """Zip `tree` the way setuptools does, with the plain linux tag."""
    info = tree / f"{name}-{version}.dist-info"
    info.mkdir()
    tag = f"{PYTHON}-{ABI}-linux_{ARCH}"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    )
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: {tag}\n"
    )
    (info / "RECORD").write_text("")
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(tree.rglob("*")):
            archive.write(file, file.relative_to(tree))
    return path


def finish(
    raw: Path,
    dist: Path,
    staging: Path,
    *,
    folders: tuple[Path, ...] = (),
    under: Path | None = None,
) -> tuple[Path, RepairResult]:
    """Take a raw wheel through every step of packing, as the pipeline does."""
    staged = stage_wheel(raw, staging, {"tinytorch/version.py"})
    if staged.name == "tinytorch":
        metadata.set_git_version(staged, "tinytorch/version.py", COMMIT)
    provided = shared_library_names(under) if under else frozenset[str]()
    repaired = repair_staged(staged, PLATFORM, folders=folders, provided=provided)
    name = metadata.set_platform_tag(staged, PLATFORM)
    return wheel_writer.pack_wheel(staging, dist / name, unstaged=staged.unstaged).path, repaired


def shared_library_names(wheel: Path) -> frozenset[str]:
    """Return the names of the shared libraries in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist()]
    return frozenset(name for name in names if ".so" in name)


def rewrite(source: Path, destination: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Copy a wheel, each member as `change` returns it; None leaves it out."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(destination, "w") as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info))
            if data is not None:
                new.writestr(info, data)
    return destination
