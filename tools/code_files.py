"""Write build_configs/wheel_code/: the device code that was read in wheels, as TOML."""

from collections.abc import Sequence
from pathlib import Path

from tools.fact_schemas import schema_line
from torchmill.config.facts import Facts
from torchmill.config.wheel_code import PackageCode, WheelCode
from torchmill.core.atomic_writes import write_atomically

WHEELS_HEAD = """\
# What was read in the wheels of {package} on PyPI: which libraries have device code for what. Written by
# `invoke facts --code --write`; docs/reference/facts.md says what the keys mean.
"""
LIBRARIES_HEAD = """\
# What was read in NVIDIA's packages of libraries that official wheels require, and libraries of single features.
# Written by `invoke facts --code --write`, but for [[feature]].
"""


def write_wheel_code(folder: Path, package: str, wheels: Sequence[WheelCode]) -> Path:
    """Write the code in the wheels of a package, and return the file."""
    name = f"wheel_code/{package}.toml"
    lines = [schema_line(name), "", WHEELS_HEAD.format(package=package)]
    for wheel in wheels:
        lines += [
            "[[wheel]]",
            f'release = "{wheel.release}"',
            f'arch = "{wheel.arch}"',
            f'date = "{wheel.date}"',
        ]
        if wheel.cuda:
            lines.append(f'cuda = "{wheel.cuda}"')
        if wheel.own:
            lines.append(f'own = "{wheel.own}"')
        lines += _list_lines("files", wheel.files)
        lines += _list_lines("beside", wheel.beside)
        for library in wheel.code.values():
            table = f'wheel.code."{library.name}"'
            lines += [f"[{table}]", f"sizes = {list(library.sizes)}"]
            lines.append(f"[{table}.fatbins]" if library.fatbins else "fatbins = {}")
            lines += [f'"{targets}" = {number}' for targets, number in library.fatbins.items()]
        lines.append("")
    path = folder / name
    write_atomically(path, "\n".join(lines))
    return path


def write_package_code(folder: Path, facts: Facts, packages: Sequence[PackageCode]) -> Path:
    """Write the code in NVIDIA's packages, and return the file.

    The tables [[feature]], which are written by hand, are kept.
    """
    name = "wheel_code/nvidia.toml"
    lines = [schema_line(name), "", LIBRARIES_HEAD]
    for feature in facts.official.feature_libraries:
        lines += [
            "[[feature]]",
            f'pattern = "{feature.pattern}"',
            f'feature = "{feature.feature}"',
            f'source = "{feature.source}"',
            "",
        ]
    for package in packages:
        lines += [
            "[[package]]",
            f'name = "{package.name}"',
            f'version = "{package.version}"',
            f'arch = "{package.arch}"',
            f'file = "{package.file}"',
            f'date = "{package.date}"',
            "[package.code]",
        ]
        lines += [f'"{name}" = "{targets}"' for name, targets in package.code.items()]
        lines.append("")
    path = folder / name
    write_atomically(path, "\n".join(lines))
    return path


def _list_lines(key: str, values: Sequence[str]) -> list[str]:
    """Return a list of TOML with a line for each value; nothing for an empty list."""
    if not values:
        return []
    return [f"{key} = [", *(f'    "{value}",' for value in values), "]"]
