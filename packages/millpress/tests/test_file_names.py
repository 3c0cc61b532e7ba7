"""File names of wheels are parsed, those of variants too."""

from __future__ import annotations

from pathlib import Path

import pytest
from millpress import content_checks, file_names, metadata, staging, wheel_file
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from press_support.expected_errors import refused
from press_support.written_wheels import Members, made

PLAIN_NAMES = [
    "torch-1.13.1-cp310-cp310-linux_x86_64.whl",
    "torch-1.13.1+cu117-1-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "six-1.16-py2.py3-none-any.whl",
    "torch-2.0-2a-cp311-none-macosx_11_0_arm64.whl",
]
INVALID_NAMES = [
    "torch-1.0-py3-none.whl",
    "torch-1.0-x-cp310-cp310-linux_x86_64.whl",  # a build number begins with a digit
    "torch-1.0-rc1-cp310-cp310-linux_x86_64.whl",
    "torch-1.0-1-cp310-cp310-linux_x86_64-.whl",
    "torch-1.0-cp310-cp310-linux_x86_64-SM86.whl",
    "torch-1.0-cp310-cp310-linux_x86_64-sm+86.whl",
    "torch-1.0-1-cp310-cp310-linux_x86_64-sm86-sm90.whl",
    "torch-1.0-cp310-cp310-linux_x86_64-sm86.zip",
    "torch-1.0-cp310-cp310-amiga-sm86.whl",
]


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_plain_name_is_read_as_packaging_reads_it(name: str) -> None:
    parsed = file_names.parse_name(name)
    assert parsed[:-1] == parse_wheel_filename(name)
    assert parsed.variant == ""
    assert file_names.split_label(name) == (name, "")


@pytest.mark.parametrize("name", PLAIN_NAMES)
@pytest.mark.parametrize("label", ["sm86", "x86_64_v3", "null", "1.0", "5"])
def test_a_variant_has_the_parts_of_its_plain_wheel_and_a_label(name: str, label: str) -> None:
    variant_name = file_names.with_label(name, label)
    with pytest.raises(InvalidWheelFilename):  # so that clients of plain wheels skip it
        parse_wheel_filename(variant_name)
    assert file_names.split_label(variant_name) == (name, label)
    parsed = file_names.parse_name(variant_name)
    assert parsed.variant == label
    assert parsed._replace(variant="") == file_names.parse_name(name)
    assert file_names.with_label(variant_name, "") == name
    assert file_names.platform_part(variant_name) == file_names.platform_part(name)


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_is_neither_is_refused(name: str) -> None:
    with pytest.raises(InvalidWheelFilename):
        file_names.parse_name(name)


def variant_wheel(folder: Path, *, metadata: bool = True, tag: str = "py3-none-any-sm86") -> Path:
    """Write a wheel whose name says that it is a variant."""

    def add_metadata(members: Members) -> None:
        content = b"{}"
        name = "tinytorch-1.0+cpu.dist-info/variant.json"
        record = "tinytorch-1.0+cpu.dist-info/RECORD"
        members[name] = content
        digest = "sha256=RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o"  # of {}
        members[record] += f"{name},{digest},{len(content)}\n".encode()

    plain_tag = tag.removesuffix("-sm86")
    wheel = made(folder, tag=plain_tag, change=add_metadata if metadata else None)
    return wheel.rename(folder / f"tinytorch-1.0+cpu-{tag}.whl")


def test_a_variant_is_read(tmp_path: Path) -> None:
    wheel = wheel_file.read_wheel(variant_wheel(tmp_path))
    assert wheel.variant == "sm86"
    assert list(wheel.platforms) == ["any"]
    assert list(content_checks.wheel_problems(wheel.path)) == []


def test_a_variant_and_its_metadata_go_together(tmp_path: Path) -> None:
    (problem,) = content_checks.wheel_problems(variant_wheel(tmp_path, metadata=False))
    assert "variant.json is missing" in problem
    wheel = variant_wheel(tmp_path, tag="py3-none-any")
    (problem,) = content_checks.wheel_problems(wheel)
    assert "name has no variant" in problem


def test_a_staged_variant_keeps_its_label(tmp_path: Path) -> None:
    wheel = variant_wheel(tmp_path, tag="cp310-cp310-linux_x86_64-sm86")
    staged = staging.stage_wheel(wheel, tmp_path / "tree")
    name = metadata.set_platform_tag(staged, "manylinux_2_17_x86_64")
    assert name == "tinytorch-1.0+cpu-cp310-cp310-manylinux_2_17_x86_64-sm86.whl"


def test_a_tree_of_a_variant_has_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "tree" / "tinytorch-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Name: tinytorch\nVersion: 1.0\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
    assert metadata.tree_file_name(tmp_path / "tree") == "tinytorch-1.0-py3-none-any.whl"
    (folder / "variant.json").write_text("{}")
    with refused("variant-without-label"):
        metadata.tree_file_name(tmp_path / "tree")
