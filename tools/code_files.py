"""Write build_configs/wheel_code/: the device code that was read in wheels, as TOML.

`WheelCode` and `PackageCode` in torchmill/config/wheel_code.py say what the keys mean.
"""

from collections.abc import Sequence
from pathlib import Path

from tools.fact_schemas import schema_line
from torchmill.config.facts import Facts
from torchmill.config.wheel_code import PackageCode, WheelCode
from torchmill.core.atomic_writes import write_atomically
from torchmill.deliver.templates import toml_string

WHEELS_HEAD = """\
# What was read in the wheels of {package} on PyPI: which libraries have device code for what. Written by
# `invoke facts --code --write`; docs/reference/facts.md says what the keys mean.
"""
LIBRARIES_HEAD = """\
# What was read in NVIDIA's packages of libraries that official wheels require, and libraries of single features.
# Written by `invoke facts --code --write`, except for the [[feature]] tables, which are written by hand.
"""


def write_wheel_code(folder: Path, package: str, wheels: Sequence[WheelCode]) -> Path:
    """Write the file that lists the device code in a package's wheels, and return its path."""
    name = f"wheel_code/{package}.toml"
    lines = [schema_line(name), "", WHEELS_HEAD.format(package=package)]
    for wheel in wheels:
        lines += [
            "[[wheel]]",
            f"release = {toml_string(wheel.release)}",
            f"arch = {toml_string(wheel.arch)}",
            f"date = {toml_string(str(wheel.date))}",
        ]
        if wheel.cuda:
            lines.append(f"cuda = {toml_string(wheel.cuda)}")
        if wheel.kernel_targets:
            lines.append(f"kernel_targets = {toml_string(wheel.kernel_targets)}")
        lines += _list_lines("files", wheel.files)
        lines += _list_lines("required_packages", wheel.required_packages)
        for library in wheel.code.values():
            table = f"wheel.code.{toml_string(library.name)}"
            lines += [f"[{table}]", f"sizes = {list(library.sizes)}"]
            lines.append(f"[{table}.fatbins]" if library.fatbins else "fatbins = {}")
            for targets, count in library.fatbins.items():
                lines.append(f"{toml_string(targets)} = {count}")
        lines.append("")
    path = folder / name
    write_atomically(path, "\n".join(lines))
    return path


def write_package_code(folder: Path, facts: Facts, packages: Sequence[PackageCode]) -> Path:
    """Write the file that lists the device code in NVIDIA's packages, and return its path.

    The tables [[feature]], which are written by hand, are kept.
    """
    name = "wheel_code/nvidia.toml"
    lines = [schema_line(name), "", LIBRARIES_HEAD]
    for feature in facts.official.feature_libraries:
        lines += [
            "[[feature]]",
            f"pattern = {toml_string(feature.pattern)}",
            f"feature = {toml_string(feature.feature)}",
            f"source = {toml_string(feature.source)}",
            "",
        ]
    for package in packages:
        lines += [
            "[[package]]",
            f"name = {toml_string(package.name)}",
            f"version = {toml_string(package.version)}",
            f"arch = {toml_string(package.arch)}",
            f"file = {toml_string(package.file)}",
            f"date = {toml_string(str(package.date))}",
            "[package.code]",
        ]
        for library, targets in package.code.items():
            lines.append(f"{toml_string(library)} = {toml_string(targets)}")
        lines.append("")
    path = folder / name
    write_atomically(path, "\n".join(lines))
    return path


def _list_lines(key: str, values: Sequence[str]) -> list[str]:
    """Return the lines of a TOML array, one for each value; none for an empty array."""
    if not values:
        return []
    return [f"{key} = [", *(f"    {toml_string(value)}," for value in values), "]"]
