"""Read images.toml."""

import re
from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchmill.model import BaseImage, Companion, Images
from torchmill.tables import Table, read

ROLES = ("manylinux", "system", "cuda", "toolkit", "python")
MANAGERS = ("apt", "dnf", "yum")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def images(path: Path, problems: list[str]) -> Images:
    """Read what is known of images; without the file nothing is."""
    if not path.exists():
        return Images()
    file = read(path, problems)
    bases = tuple(_base(table) for table in file.tables("base"))
    companions = tuple(_companion(table) for table in file.tables("companion"))
    tools, uv = file.table("tools"), file.table("uv")
    found = Images(
        bases,
        {manager: tools.texts(manager) for manager in MANAGERS},
        uv.version("version"),
        uv.texts("pythons"),
        file.mapping("unsupported"),
        companions,
    )
    uv.text("source")
    for table in (tools, uv, file):
        table.done()
    return found


def _base(table: Table) -> BaseImage:
    found = BaseImage(
        role=table.choice("role", ROLES),
        image=table.text("image"),
        tag=table.text("tag"),
        digest=table.text("digest", ""),
        arches=table.texts("arches"),
        distribution=table.text("distribution"),
        version=table.text("version"),
        manager=table.choice("manager", MANAGERS),
        glibc=table.optional("glibc"),
        pythons=table.texts("pythons", ()),
        toolkit=table.optional("toolkit"),
        gcc=table.optional("gcc"),
        compilers=table.texts("compilers", ()),
        compiler=table.text("compiler", ""),
        lacks=table.texts("lacks", ()),
        source=table.text("source"),
    )
    if found.digest and not DIGEST.fullmatch(found.digest):
        table.problem(f"'digest' is '{found.digest}', expected sha256: and 64 hexadecimal digits")
    if found.role in {"cuda", "toolkit"} and found.toolkit is None:
        table.problem("key 'toolkit' is missing")
    table.done()
    return found


def _companion(table: Table) -> Companion:
    found = Companion(
        table.specifier("release") or SpecifierSet(),
        table.text("package", ""),
        table.texts("requires"),
        table.text("source"),
    )
    table.done()
    return found
