"""Wheels of one version that require different things."""

from pathlib import Path
from zipfile import ZipFile

from torchmill.wheel.verify import static_checks


def wheel(folder: Path, python: str, *lines: str, version: str = "1.0+cpu") -> Path:
    path = folder / f"torch-{version}-{python}-{python}-manylinux_2_17_x86_64.whl"
    head = "\n".join(("Metadata-Version: 2.1", "Name: torch", f"Version: {version}", *lines))
    with ZipFile(path, "w") as archive:
        archive.writestr(f"torch-{version}.dist-info/METADATA", f"{head}\n\ntext")
    return path


def test_the_same_in_another_spelling_is_no_difference(tmp_path: Path) -> None:
    one = wheel(tmp_path, "cp310", "Requires-Python: >=3.7,<4", "Requires-Dist: typing-extensions (>=4)")
    wheel(tmp_path, "cp311", "Requires-Python: <4, >=3.7", "Requires-Dist: typing_extensions>=4")
    assert static_checks.sibling_differences(one, static_checks.sibling_wheels(one)) == []


def test_a_difference_is_told_with_both_sides(tmp_path: Path) -> None:
    one = wheel(tmp_path, "cp310", "Requires-Dist: numpy<2", "Requires-Dist: sympy")
    other = wheel(tmp_path, "cp312", "Requires-Dist: setuptools", "Requires-Dist: sympy")
    (sentence,) = static_checks.sibling_differences(one, static_checks.sibling_wheels(one))
    assert sentence.startswith(f"{other.name} says otherwise than {one.name} what it needs: ")
    assert "also setuptools, but not numpy<2; uv asks one of them" in sentence


def test_other_versions_and_what_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    one = wheel(tmp_path, "cp310", "Requires-Dist: numpy<2")
    wheel(tmp_path, "cp310", version="1.0+cu118")
    wheel(tmp_path, "cp310", version="1.0.1+cpu")
    (tmp_path / "torch-1.0+cpu-cp39-cp39-linux_x86_64.whl").write_text("half")
    assert [path.name.split("-")[2] for path in static_checks.sibling_wheels(one)] == ["cp39"]
    assert static_checks.sibling_differences(one, static_checks.sibling_wheels(one)) == []
