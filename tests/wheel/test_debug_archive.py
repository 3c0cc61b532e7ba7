"""The archive with debug information: its layout, its bytes, and whose it is."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
from millpress.debug_info import SeparatedLibrary, StrippedFiles
from press_support import written_wheels

from torchmill.core.digests import hash_file
from torchmill.core.strict_json import LARGEST_JSON_BYTES
from torchmill.wheel import debug_archive, dist_files, finished_wheel
from torchmill.wheel.finished_wheel import FinishedWheel

FIRST = "ab" + "1" * 38
SECOND = "ab" + "2" * 38


@pytest.fixture
def wheel(tmp_path: Path) -> FinishedWheel:
    return finished_wheel.read_wheel(written_wheels.made(tmp_path))


def stripped(folder: Path) -> tuple[StrippedFiles, Path]:
    """Return two libraries of one folder as they are after they were stripped, and that folder."""
    root = folder / "stage"
    libraries = []
    for build_id, name in ((SECOND, "tiny/b.so"), (FIRST, "tiny/a.so")):
        debug_file = folder / f"{build_id}.debug"
        debug_file.write_bytes(build_id.encode())
        libraries.append(SeparatedLibrary(root / name, debug_file, 100, build_id))
    return StrippedFiles((), tuple(libraries), reduced=True), root


def write(file: Path, wheel: FinishedWheel, folder: Path) -> dict[str, object]:
    files, root = stripped(folder)
    return debug_archive.write_archive(
        file, files, wheel=wheel.path.name, sha256=wheel.sha256, level="full", root=root
    )


def test_an_archive_has_the_layout_of_debuggers(wheel: FinishedWheel, tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    entry = write(file, wheel, tmp_path)
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == [
            "index.json",
            f".build-id/ab/{FIRST[2:]}.debug",
            f".build-id/ab/{SECOND[2:]}.debug",
        ]
        assert archive.read(f".build-id/ab/{FIRST[2:]}.debug") == FIRST.encode()
        assert json.loads(archive.read("index.json")) == {
            "format": 1,
            "level": "full",
            "libraries": {"tiny/a.so": FIRST, "tiny/b.so": SECOND},
            "wheel": wheel.path.name,
            "wheel_sha256": wheel.sha256,
        }
    assert entry == {
        "file": "a.zip",
        "sha256": hash_file(file),
        "size": file.stat().st_size,
        "level": "full",
        "reduced": True,
        "libraries": {"tiny/a.so": FIRST, "tiny/b.so": SECOND},
    }


def test_the_same_files_give_the_same_bytes(wheel: FinishedWheel, tmp_path: Path) -> None:
    write(tmp_path / "a.zip", wheel, tmp_path)
    write(tmp_path / "b.zip", wheel, tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def archive_problems(file: Path, wheel: FinishedWheel) -> list[str]:
    recorded = wheel.manifest.get("debug_info")
    return list(debug_archive.archive_problems(file, wheel.sha256, recorded))


def problem(file: Path, wheel: FinishedWheel) -> str:
    (clause,) = archive_problems(file, wheel)
    return clause


def test_the_archive_of_another_build_is_named(wheel: FinishedWheel, tmp_path: Path) -> None:
    file = dist_files.document_path(wheel.path, dist_files.DEBUG_SUFFIX)
    write(file, wheel, tmp_path)
    assert archive_problems(file, wheel) == []
    assert debug_archive.may_belong_to(file, wheel.sha256)
    assert not debug_archive.may_belong_to(file, "0" * 64)
    other = finished_wheel.read_wheel(written_wheels.made(tmp_path, body="other = 1"))
    assert problem(file, other).startswith(f"{file.name} belongs to another build")


def test_an_archive_that_was_written_over_is_named(wheel: FinishedWheel, tmp_path: Path) -> None:
    file = dist_files.document_path(wheel.path, dist_files.DEBUG_SUFFIX)
    entry = write(file, wheel, tmp_path)
    manifest = {"sha256": wheel.sha256, "debug_info": {**entry, "sha256": "0" * 64}}
    dist_files.manifest_path(wheel.path).write_text(json.dumps(manifest), encoding="utf-8")
    assert "is not the file that the manifest" in problem(
        file, finished_wheel.read_wheel(wheel.path)
    )


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (None, "cannot be read as an archive"),
        ({"other": "{}"}, "cannot be read as an archive"),
        ({"index.json": "[]"}, "cannot be read as an archive"),
        ({"index.json": '{"format": 1}'}, "without libraries"),
        (
            {"index.json": '{"format": 1, "libraries": {"a.so": "abcd"}}'},
            "lacks the debug file of a.so",
        ),
        ({"index.json": '{"format": 2, "libraries": {}}'}, "was made by a newer torchmill"),
        ({"index.json": '{"libraries": {}}'}, "has an index of format None"),
        ({"index.json": '{"format": "1", "libraries": {}}'}, "has an index of format '1'"),
    ],
)
def test_what_is_no_such_archive_is_named(
    wheel: FinishedWheel, tmp_path: Path, members: dict[str, str] | None, expected: str
) -> None:
    file = tmp_path / "a.zip"
    file.write_bytes(b"no archive")
    if members is not None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    assert expected in problem(file, wheel)


def test_few_bytes_that_stand_for_a_long_index_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("index.json", b" " * (LARGEST_JSON_BYTES + 1))
    (problem,) = debug_archive.archive_problems(file, "0" * 64, None)
    assert "has an index of more than" in problem


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "a.zip"
    os.mkfifo(pipe)
    assert list(debug_archive.archive_problems(pipe, "0" * 64, None)) == ["a.zip is not a file"]
    assert debug_archive.newer_clause(pipe) == ""
    assert not debug_archive.may_belong_to(pipe, "0" * 64)
