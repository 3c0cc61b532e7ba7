from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from torchmill.core.errors import BuildError
from torchmill.wheel.pack import metadata
from torchmill.wheel.pack.staging import StagedWheel

RAW = "torch-1.13.1+cpu-cp310-cp310-linux_x86_64.whl"


def staged(root: Path, raw: str = RAW, requires: str = "") -> StagedWheel:
    info = root / "torch-1.13.1+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: 1.13.1+cpu\n{requires}\nText\n"
    )
    (info / "WHEEL").write_text(
        "Wheel-Version: 1.0\nGenerator: bdist_wheel (0.38.4)\nRoot-Is-Purelib: true\n"
        "Tag: cp310-cp310-linux_x86_64\n\n"
    )
    return StagedWheel(raw, root, info, "torch", "1.13.1+cpu", "torch")


def test_only_the_platform_of_the_tag_changes(tmp_path: Path) -> None:
    wheel = staged(tmp_path)
    name = metadata.set_platform_tag(wheel, "manylinux_2_36_x86_64")
    assert name == "torch-1.13.1+cpu-cp310-cp310-manylinux_2_36_x86_64.whl"
    assert (wheel.dist_info / "WHEEL").read_text() == (
        "Wheel-Version: 1.0\nGenerator: bdist_wheel (0.38.4)\nRoot-Is-Purelib: false\n"
        "Tag: cp310-cp310-manylinux_2_36_x86_64\n"
    )


def test_a_compressed_tag_is_written_out(tmp_path: Path) -> None:
    wheel = staged(tmp_path, "torch-1.13.1+cpu-cp310.cp311-abi3-linux_x86_64.whl")
    assert metadata.set_platform_tag(wheel, "win_amd64") == "torch-1.13.1+cpu-cp310.cp311-abi3-win_amd64.whl"
    text = (wheel.dist_info / "WHEEL").read_text()
    assert text.endswith("Tag: cp310-abi3-win_amd64\nTag: cp311-abi3-win_amd64\n")


def test_a_raw_wheel_without_tags_in_its_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not the name of a wheel"):
        metadata.set_platform_tag(staged(tmp_path, "torch.whl"), "win_amd64")


@pytest.mark.parametrize("line", ["git_version = 'Unknown'", "git_version: Optional[str] = None"])
def test_the_commit_is_written_in_place_of_what_was_there(tmp_path: Path, line: str) -> None:
    wheel = staged(tmp_path)
    (tmp_path / "torch").mkdir()
    version = tmp_path / "torch" / "version.py"
    version.write_text(f"__version__ = '1.13.1+cpu'\n{line}\nhip = None\n")
    metadata.set_git_version(wheel, "torch/version.py", "49444c3e546bf240bed24a101e747422d1f8a0ee")
    values: dict[str, object] = {}
    exec("from typing import Optional\n" + version.read_text(), values)  # noqa: S102 (the module as Python sees it)
    assert values["git_version"] == "49444c3e546bf240bed24a101e747422d1f8a0ee"
    assert values["hip"] is None


def test_a_version_file_without_the_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("__version__ = '1'\n")
    with pytest.raises(BuildError, match=r"version\.py has 0 lines that set git_version"):
        metadata.set_git_version(staged(tmp_path), "version.py", "0")


def test_requirements_on_one_name_only(tmp_path: Path) -> None:
    lines = (
        "Requires-Dist: numpy\nRequires-Dist: Torch (==1.13.1+cpu)\nRequires-Dist: torchdata\n"
        "Requires-Dist: pillow !=8.3.*,>=5.3.0\nRequires-Dist: ><\n"
    )
    wheel = staged(tmp_path, requires=lines)
    assert metadata.requirements_of_wheel_on(wheel, "torch") == ["Torch (==1.13.1+cpu)"]
    assert metadata.requirements_of_wheel_on(wheel, "scipy") == []


def test_a_build_that_knows_neither_version_nor_base_is_stamped(tmp_path: Path) -> None:
    info = tmp_path / "torch_scatter-2.1.2.dist-info"
    info.mkdir()
    (tmp_path / "torch_scatter-2.1.2.data").mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch-scatter\nVersion: 2.1.2\n"
        'Requires-Dist: Torch>=1.4\nRequires-Dist: torchtext; extra == "test"\nProvides-Extra: test\n'
        "\n# Scatter\nVersion: 9 of it\nRequires-Dist: torch\n"
    )
    raw = "torch_scatter-2.1.2-cp310-cp310-linux_x86_64.whl"
    wheel = StagedWheel(raw, tmp_path, info, "torch-scatter", "2.1.2", "torch_scatter")
    stamped = metadata.stamp_version(wheel, "2.1.2+cu130", "torch==2.11.0+cu130")
    assert {path.name for path in tmp_path.iterdir()} == {
        "torch_scatter-2.1.2+cu130.dist-info",
        "torch_scatter-2.1.2+cu130.data",
    }
    assert (stamped.dist_info / "METADATA").read_text() == (
        "Metadata-Version: 2.1\nName: torch-scatter\nVersion: 2.1.2+cu130\n"
        'Requires-Dist: torchtext; extra == "test"\nProvides-Extra: test\n'
        "Requires-Dist: torch==2.11.0+cu130\n\n# Scatter\nVersion: 9 of it\nRequires-Dist: torch\n"
    )
    assert metadata.wheel_file_name(stamped, "any") == "torch_scatter-2.1.2+cu130-cp310-cp310-any.whl"
    assert metadata.requirements_of_wheel_on(stamped, "torch") == ["torch==2.11.0+cu130"]


def test_stamping_changes_nothing_that_is_right(tmp_path: Path) -> None:
    wheel = staged(tmp_path, requires="Requires-Dist: base==1\n")
    before = (wheel.dist_info / "METADATA").read_text()
    assert metadata.stamp_version(wheel, "1.13.1+cpu", "base==1") == wheel
    assert metadata.stamp_version(wheel, "1.13.1+cpu", None) == wheel
    assert (wheel.dist_info / "METADATA").read_text() == before


@pytest.mark.parametrize("version", ["1.13.0", "1.13.1a0+git", "unknown"])
def test_a_source_of_another_release_is_refused(tmp_path: Path, version: str) -> None:
    wheel = replace(staged(tmp_path), version=version)
    with pytest.raises(BuildError, match=f"calls itself {re.escape(version)}, but 1.13.1 was asked for"):
        metadata.stamp_version(wheel, "1.13.1+cpu", None)
