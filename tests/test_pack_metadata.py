from __future__ import annotations

from pathlib import Path

import pytest

from torchwright.errors import BuildError
from torchwright.pack import metadata
from torchwright.pack.stage import StagedWheel

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
    name = metadata.set_platform(wheel, "manylinux_2_36_x86_64")
    assert name == "torch-1.13.1+cpu-cp310-cp310-manylinux_2_36_x86_64.whl"
    assert (wheel.dist_info / "WHEEL").read_text() == (
        "Wheel-Version: 1.0\nGenerator: bdist_wheel (0.38.4)\nRoot-Is-Purelib: false\n"
        "Tag: cp310-cp310-manylinux_2_36_x86_64\n"
    )


def test_a_compressed_tag_is_written_out(tmp_path: Path) -> None:
    wheel = staged(tmp_path, "torch-1.13.1+cpu-cp310.cp311-abi3-linux_x86_64.whl")
    assert metadata.set_platform(wheel, "win_amd64") == "torch-1.13.1+cpu-cp310.cp311-abi3-win_amd64.whl"
    text = (wheel.dist_info / "WHEEL").read_text()
    assert text.endswith("Tag: cp310-abi3-win_amd64\nTag: cp311-abi3-win_amd64\n")


def test_a_raw_wheel_without_tags_in_its_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not the name of a wheel"):
        metadata.set_platform(staged(tmp_path, "torch.whl"), "win_amd64")


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
    assert metadata.requires(wheel, "torch") == ["Torch (==1.13.1+cpu)"]
    assert metadata.requires(wheel, "scipy") == []
