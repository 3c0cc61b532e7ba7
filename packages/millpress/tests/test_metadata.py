"""METADATA and WHEEL: edited, normalized, compared."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from millpress import dependencies, metadata
from millpress.dependencies import WheelNeeds
from millpress.metadata import normalize_headers, normalize_metadata
from millpress.staging import StagedWheel, read_headers
from press_support.expected_errors import refused

RAW = "torch-1.13.1+cpu-cp310-cp310-linux_x86_64.whl"


def staged(root: Path, raw: str = RAW, requires: str = "") -> StagedWheel:
    info = root / "torch-1.13.1+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: 1.13.1+cpu\n{requires}\nText\n"
    )
    (info / "WHEEL").write_text(
        "Wheel-Version: 1.0\nGenerator: bdist_wheel (0.38.4)\nRoot-Is-Purelib: true\nTag: cp310-cp310-linux_x86_64\n\n"
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
    assert (
        metadata.set_platform_tag(wheel, "win_amd64")
        == "torch-1.13.1+cpu-cp310.cp311-abi3-win_amd64.whl"
    )
    text = (wheel.dist_info / "WHEEL").read_text()
    assert text.endswith("Tag: cp310-abi3-win_amd64\nTag: cp311-abi3-win_amd64\n")
    tags = "manylinux2014_x86_64.manylinux_2_17_x86_64"
    assert metadata.set_platform_tag(wheel, tags).endswith(f"-{tags}.whl")
    text = (wheel.dist_info / "WHEEL").read_text()
    assert re.findall("Tag: cp310-abi3-(.*)", text) == tags.split("."), "expanded (PEP 427)"


def test_the_build_number_stays(tmp_path: Path) -> None:
    wheel = staged(tmp_path, "torch-1.13.1+cpu-7-cp310-cp310-linux_x86_64.whl")
    name = metadata.set_platform_tag(wheel, "win_amd64")
    assert name == "torch-1.13.1+cpu-7-cp310-cp310-win_amd64.whl"


def test_a_raw_wheel_without_tags_in_its_name_is_refused(tmp_path: Path) -> None:
    with refused("invalid-raw-wheel"):
        metadata.set_platform_tag(staged(tmp_path, "torch.whl"), "win_amd64")


@pytest.mark.parametrize("line", ["git_version = 'Unknown'", "git_version: Optional[str] = None"])
def test_the_commit_is_written_in_place_of_what_was_there(tmp_path: Path, line: str) -> None:
    wheel = staged(tmp_path)
    (tmp_path / "torch").mkdir()
    version = tmp_path / "torch" / "version.py"
    version.write_text(f"__version__ = '1.13.1+cpu'\n{line}\nhip = None\n")
    metadata.set_git_version(wheel, "torch/version.py", "49444c3e546bf240bed24a101e747422d1f8a0ee")
    values: dict[str, object] = {}
    exec("from typing import Optional\n" + version.read_text(), values)  # noqa: S102
    assert values["git_version"] == "49444c3e546bf240bed24a101e747422d1f8a0ee"
    assert values["hip"] is None


def test_a_version_file_without_the_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("__version__ = '1'\n")
    with refused("no-version-module"):
        metadata.set_git_version(staged(tmp_path), "version.py", "0")


def test_requirements_on_one_name_only(tmp_path: Path) -> None:
    lines = (
        "Requires-Dist: numpy\nRequires-Dist: Torch (==1.13.1+cpu)\nRequires-Dist: torchdata\n"
        "Requires-Dist: pillow !=8.3.*,>=5.3.0\nRequires-Dist: ><\n"
    )
    headers = read_headers(staged(tmp_path, requires=lines).dist_info / "METADATA")
    assert dependencies.requirements_on(headers, "torch") == ["Torch (==1.13.1+cpu)"]
    assert dependencies.requirements_on(headers, "scipy") == []


def test_stamping_sets_the_version_and_the_requirement_on_the_base(tmp_path: Path) -> None:
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
    file_name = metadata.wheel_file_name(stamped, "any")
    assert file_name == "torch_scatter-2.1.2+cu130-cp310-cp310-any.whl"
    headers = read_headers(stamped.dist_info / "METADATA")
    assert dependencies.requirements_on(headers, "torch") == ["torch==2.11.0+cu130"]


def test_a_replaced_header_goes_with_its_continuation_lines(tmp_path: Path) -> None:
    wheel = staged(tmp_path, requires="Requires-Dist: base\n >=1,\n <2\nRequires-Dist: numpy\n")
    stamped = metadata.stamp_version(wheel, "1.13.1+cpu", "base==1.5")
    head = (stamped.dist_info / "METADATA").read_text().partition("\n\n")[0]
    assert head.endswith("Requires-Dist: numpy\nRequires-Dist: base==1.5")
    assert "<2" not in head


def test_stamping_changes_nothing_that_is_right(tmp_path: Path) -> None:
    wheel = staged(tmp_path, requires="Requires-Dist: base==1\n")
    before = (wheel.dist_info / "METADATA").read_text()
    assert metadata.stamp_version(wheel, "1.13.1+cpu", "base==1") == wheel
    assert metadata.stamp_version(wheel, "1.13.1+cpu", None) == wheel
    assert (wheel.dist_info / "METADATA").read_text() == before


@pytest.mark.parametrize("base", [None, "base==1"])
def test_stamping_keeps_a_requirement_that_cannot_be_parsed(
    tmp_path: Path, base: str | None
) -> None:
    wheel = staged(tmp_path, requires="Requires-Dist: a (>=1.*)\n")
    stamped = metadata.stamp_version(wheel, "1.13.1+cpu", base)
    assert "Requires-Dist: a (>=1.*)\n" in (stamped.dist_info / "METADATA").read_text()


@pytest.mark.parametrize("version", ["1.13.0", "1.13.1a0+git", "unknown"])
def test_a_source_of_another_release_is_refused(tmp_path: Path, version: str) -> None:
    wheel = replace(staged(tmp_path), version=version)
    with refused("wrong-source-version"):
        metadata.stamp_version(wheel, "1.13.1+cpu", None)


OLD = """\
Metadata-Version: 2.1
Name: torch
Version: 1.13.1+cpu
Platform: UNKNOWN
License: BSD
 and more of it
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3.7
Classifier: Programming Language :: Python :: 3.8
Provides-Extra: opt_einsum
Requires-Dist: typing-extensions
Requires-Dist: opt-einsum (>=3.3) ; extra == 'opt_einsum'
Requires-Python: >=3.7.0, !=3.9.0"""
NEW = """\
Metadata-Version: 2.1
Name: torch
Version: 1.13.1+cpu
License: BSD
 and more of it
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3.7
Classifier: Programming Language :: Python :: 3.8
Classifier: Programming Language :: Python :: 3.9
Classifier: Programming Language :: Python :: 3.11
Requires-Python: !=3.9.0,>=3.7.0
Requires-Dist: typing-extensions
Provides-Extra: opt-einsum
Requires-Dist: opt-einsum>=3.3; extra == "opt_einsum\""""
PYTHONS = ("3.9", "3.11", "3.8", "3.13t", "3.13")


def test_two_ways_to_write_the_same_become_one() -> None:
    assert normalize_headers(OLD, PYTHONS) == normalize_headers(NEW, PYTHONS)


def test_what_is_written() -> None:
    lines = normalize_headers(OLD, PYTHONS).split("\n")
    assert lines[3:5] == ["License: BSD", " and more of it"]
    numbers = ["3", "3.8", "3.9", "3.11", "3.13"]
    assert lines[6:11] == [
        f"Classifier: Programming Language :: Python :: {number}" for number in numbers
    ]
    assert lines[11:] == [
        "Requires-Python: >=3.7.0,!=3.9.0",
        "Provides-Extra: opt-einsum",
        "Requires-Dist: typing-extensions",
        'Requires-Dist: opt-einsum>=3.3; extra == "opt-einsum"',
    ]


def test_nothing_is_added_and_a_second_time_changes_nothing() -> None:
    plain = "Metadata-Version: 2.1\nName: a\nVersion: 1"
    assert normalize_headers(plain, PYTHONS) == plain
    once = normalize_headers(OLD, PYTHONS)
    assert normalize_headers(once, PYTHONS) == once


def test_a_doubled_classifier_is_replaced_once() -> None:
    classifier = "Classifier: Programming Language :: Python :: 3.8"
    lines = normalize_headers(f"Name: a\n{classifier}\n{classifier}", ("3.8", "3.9")).split("\n")
    assert lines == ["Name: a", classifier, classifier.replace("3.8", "3.9")]


@pytest.mark.parametrize("line", ["Requires-Dist: a (>=1.*)", "Requires-Python: three"])
def test_what_nobody_reads_stays(line: str) -> None:
    assert line in normalize_headers(f"Name: a\n{line}", PYTHONS).split("\n")


@pytest.mark.parametrize(
    ("end", "rest"),
    [("", "\n"), ("\n", "\n"), ("\n\n", "\n\n"), ("\n\nA text.\n", "\n\nA text.\n")],
)
def test_a_file_keeps_its_text_and_gets_no_gap(tmp_path: Path, end: str, rest: str) -> None:
    head = "Name: torch\nRequires-Dist: numpy\nSummary: tensors"
    (tmp_path / "METADATA").write_text(head + end)
    normalize_metadata(
        StagedWheel("torch.whl", tmp_path, tmp_path, "torch", "1.0", "torch"), ("3.9",)
    )
    assert (
        tmp_path / "METADATA"
    ).read_text() == "Name: torch\nSummary: tensors\nRequires-Dist: numpy" + rest


def test_the_same_in_another_spelling_is_equal() -> None:
    needs = dependencies.declared_needs(
        ">=3.8,<4",
        ["Typing_Extensions (>=4)", "numpy<2,>=1.20 ; python_version<'3.12'"],
        ["Opt_Einsum"],
    )
    other = dependencies.declared_needs(
        "<4, >=3.8",
        ['numpy >=1.20, <2; python_version < "3.12"', "typing-extensions>=4"],
        ["opt-einsum"],
    )
    assert needs == other
    assert dependencies.needs_difference(WheelNeeds("a", needs), WheelNeeds("b", other)) == ""


def test_each_side_of_a_difference_is_told() -> None:
    sentence = dependencies.needs_difference(
        WheelNeeds("a.whl", dependencies.declared_needs(">=3.8", ["x"], [])),
        WheelNeeds("b.whl", dependencies.declared_needs(None, ["y y"], ["e"])),
    )
    assert sentence.startswith(
        "b.whl has other requirements than a.whl: also extra e, y y, but not Python >=3.8, x; uv reads"
    )
