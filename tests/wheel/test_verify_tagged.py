"""The platform tags in a wheel's name against what its files need."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support import tiny_wheels as tiny
from torchmill.wheel.verify import library_checks

pytestmark = tiny.needs_compiler


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    raw = tiny.build(folder / "raw")
    return tiny.finish(raw.torch, folder / "dist", folder / "stage", folders=(raw.outside,))[0]


def called(wheel: Path, folder: Path, platform: str) -> Path:
    """Return a copy of the wheel under another platform tag."""
    copy = folder / wheel.name.replace(tiny.PLATFORM, platform)
    shutil.copy(wheel, copy)
    return copy


def test_a_true_tag_is_not_contradicted(wheel: Path) -> None:
    assert library_checks.tag_problems(wheel) == []


def test_a_tag_that_promises_too_much_is_contradicted(wheel: Path, tmp_path: Path) -> None:
    found = library_checks.tag_problems(called(wheel, tmp_path, f"manylinux_2_5_{tiny.ARCH}"))
    newer = f"GLIBC_2.17 of libc.so.6, which is newer than manylinux_2_5_{tiny.ARCH}"
    assert any(one.startswith("tinytorch/lib/libtiny.so needs") and newer in one for one in found)


def test_each_of_several_tags_is_judged(wheel: Path, tmp_path: Path) -> None:
    both = f"manylinux_2_5_{tiny.ARCH}.{tiny.PLATFORM}"
    assert library_checks.platform_tags(called(wheel, tmp_path, both).name) == tuple(both.split("."))
    assert library_checks.tag_problems(called(wheel, tmp_path, both))


def test_a_tag_of_another_machine_is_contradicted(wheel: Path, tmp_path: Path) -> None:
    other = "aarch64" if tiny.ARCH != "aarch64" else "x86_64"
    found = library_checks.tag_problems(called(wheel, tmp_path, f"manylinux_2_36_{other}"))
    assert any(f"not for {other}" in one for one in found)


def test_the_plain_tag_promises_a_machine(wheel: Path, tmp_path: Path) -> None:
    found = library_checks.tag_problems(called(wheel, tmp_path, "linux_riscv64"))
    assert found
    assert all(one.endswith("not for riscv64") for one in found)


def test_a_tag_of_another_c_library_is_contradicted(wheel: Path, tmp_path: Path) -> None:
    found = library_checks.tag_problems(called(wheel, tmp_path, f"musllinux_1_2_{tiny.ARCH}"))
    told = f"needs libc.so.6 of glibc, which systems of musllinux_1_2_{tiny.ARCH} do not have"
    assert any(told in one for one in found)


@pytest.mark.parametrize("more", [("x" * 300, "tinytorch/x.so"), ("tinytorch/x.so", "tinytorch/x.so/y.so")])
def test_names_that_no_folder_takes_are_told(wheel: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    strange = called(wheel, tmp_path, tiny.PLATFORM)
    with ZipFile(strange, "a") as archive:
        library = next(name for name in archive.namelist() if name.endswith(".so"))
        for name in more:
            archive.writestr(name, archive.read(library))
    (clause,) = library_checks.tag_problems(strange)
    assert clause.startswith("its libraries cannot be laid out to be read (File ")


def test_a_damaged_library_is_named_as_the_wheel_names_it(wheel: Path, tmp_path: Path) -> None:
    broken = called(wheel, tmp_path, tiny.PLATFORM)
    with ZipFile(broken, "a") as archive:
        library = next(name for name in archive.namelist() if name.endswith(".so"))
        archive.writestr("tinytorch/broken.so", archive.read(library)[:100])
    (clause,) = library_checks.tag_problems(broken)
    assert clause.startswith("tinytorch/broken.so: not a sound ELF file")


@pytest.mark.parametrize("platform", [f"linux_{tiny.ARCH}", "any", "win_amd64"])
def test_of_tags_that_promise_nothing_nothing_is_said(wheel: Path, tmp_path: Path, platform: str) -> None:
    assert library_checks.tag_problems(called(wheel, tmp_path, platform)) == []


def test_what_cannot_be_read_is_told(wheel: Path, tmp_path: Path) -> None:
    unknown = library_checks.tag_problems(called(wheel, tmp_path, "manylinux_2_5_pdp11"))
    assert len(unknown) == 1
    assert "pdp11" in unknown[0]
    cut = called(wheel, tmp_path, tiny.PLATFORM)
    cut.write_bytes(cut.read_bytes()[:-100])
    (clause,) = library_checks.tag_problems(cut)
    assert "no sound zip archive" in clause
