"""A family of extensions of the sample's torch, and an index on which a new release of it appears."""

import hashlib
import io
import shutil
import zipfile
from pathlib import Path

from tests.support.commands import ROOT
from tests.support.index_server import Index
from tests.support.sampled import THIS
from torchmill.host.native import native_arch

TAG = f"cp{THIS.replace('.', '')}-cp{THIS.replace('.', '')}-manylinux_2_17_{native_arch()}"
_FACTS = """\
name = "tiny-{word}"
session = "{word}"
after = "tinytorch"
pypi = "tiny-{word}"
import_name = "tiny_{word}"
compilers = "path"
memory_per_job = "0.3 GiB"
disk = "200 MiB"
imports = {imports}
smoke = ["from tiny_{word} import _C"]

[[release]]
version = "0.3"
torch = "{bounds}"
source = "a test"

[[rule]]
reason = "setup.py compiles one extension with setuptools alone"
requires = ["setuptools<81", "wheel"]
"""
_SETUP = """\
import tinytorch
from setuptools import Extension, setup
setup(
    name="tiny-{word}", version="0.3", packages=["tiny_{word}"], install_requires=["tinytorch"],
    ext_modules=[Extension("tiny_{word}._C", ["module.c"])],
)
"""
_MODULE = """\
#include <Python.h>
{line}
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_C", 0, -1, 0}};
PyMODINIT_FUNC PyInit__C(void) {{ return PyModule_Create(&module); }}
"""
ERROR_LINE = '#error "this torch has no tensors"'  # a line of C that does not compile


def copy_sample_facts(folder: Path) -> Path:
    """Copy the facts of the sample into a folder, and return their folder."""
    configs = folder / "build_configs"
    shutil.copytree(ROOT / "sample" / "build_configs", configs)
    return configs


def add_package(
    configs: Path,
    index: Index,
    word: str,
    *,
    imports: str = "[]",
    bounds: str = "<1.2",
    line: str = "",
    rule: str = "",
) -> None:
    """Add the facts of an extension, "tiny-WORD", and put its archive on an index.

    `line` is a line of its C, and `rule` a further rule.
    """
    facts = _FACTS.format(word=word, imports=imports, bounds=bounds)
    (configs / "packages" / f"tiny-{word}.toml").write_text(facts + rule, encoding="utf-8")
    tree = configs.parent / "archives" / f"tiny_{word}-0.3"
    package = tree / f"tiny_{word}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import tinytorch\n")
    (tree / "setup.py").write_text(_SETUP.format(word=word))
    (tree / "module.c").write_text(_MODULE.format(line=line))
    archive = shutil.make_archive(str(tree), "gztar", tree.parent, tree.name)
    _put(index, f"{tree.name}.tar.gz", Path(archive).read_bytes())


def put_torch(index: Index, version: str, *, tag: str = TAG, yanked: bool = False) -> None:
    """Put a wheel of the sample's torch on an index: a stand-in without libraries."""
    stream = io.BytesIO()
    info = f"tinytorch-{version}.dist-info"
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("tinytorch/__init__.py", f"__version__ = '{version}'\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tinytorch\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    _put(index, f"tinytorch-{version}-{tag}.whl", stream.getvalue(), yanked=yanked)


def _put(index: Index, name: str, content: bytes, *, yanked: bool = False) -> None:
    """Put a file on an index with its digest, as pip and torchmill both check it."""
    digest = hashlib.sha256(content).hexdigest()
    attributes = {"url": f"../../files/{name}", "hashes": {"sha256": digest}, "yanked": yanked}
    index.add(name, content, **attributes)
