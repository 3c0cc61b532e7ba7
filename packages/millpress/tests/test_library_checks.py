"""Libraries of wheels against platform tags and an environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from millpress import library_checks
from press_support import compiled_wheels as tiny


def tag_problems(wheel: Path) -> list[str]:
    """Return the contradictions and broken promises of a wheel's tags."""
    judgement = library_checks.judge_tags(wheel)
    return [*judgement.contradictions, *judgement.broken_promises]


def called(wheel: Path, folder: Path, platform: str) -> Path:
    """Return a copy of the wheel under another platform tag."""
    copy = folder / wheel.name.replace(tiny.PLATFORM, platform)
    shutil.copy(wheel, copy)
    return copy


@tiny.needs_compiler
def test_a_true_tag_is_not_contradicted(torch_wheel: Path) -> None:
    assert tag_problems(torch_wheel) == []


@tiny.needs_compiler
def test_a_tag_that_promises_too_much_is_contradicted(torch_wheel: Path, tmp_path: Path) -> None:
    wheel = called(torch_wheel, tmp_path, f"manylinux_2_5_{tiny.ARCH}")
    judgement = library_checks.judge_tags(wheel)
    assert judgement.contradictions == ()
    newer = f"GLIBC_2.17 of libc.so.6, which is newer than manylinux_2_5_{tiny.ARCH}"
    assert f"tinytorch/lib/libtiny.so needs {newer}" in judgement.broken_promises


@tiny.needs_compiler
def test_each_of_several_tags_is_judged(torch_wheel: Path, tmp_path: Path) -> None:
    tags = (f"manylinux_2_5_{tiny.ARCH}", tiny.PLATFORM)
    wheel = called(torch_wheel, tmp_path, ".".join(tags))
    assert library_checks.platform_tags(wheel.name) == tags
    assert tag_problems(wheel)


@tiny.needs_compiler
def test_a_tag_of_another_machine_is_contradicted(torch_wheel: Path, tmp_path: Path) -> None:
    other = "aarch64" if tiny.ARCH != "aarch64" else "x86_64"
    clauses = tag_problems(called(torch_wheel, tmp_path, f"manylinux_2_36_{other}"))
    assert any(f"not for {other}" in clause for clause in clauses)


@tiny.needs_compiler
def test_the_plain_tag_promises_a_machine(torch_wheel: Path, tmp_path: Path) -> None:
    clauses = tag_problems(called(torch_wheel, tmp_path, "linux_riscv64"))
    assert clauses
    assert all(clause.endswith("not for riscv64") for clause in clauses)


@tiny.needs_compiler
def test_a_tag_of_another_c_library_is_contradicted(torch_wheel: Path, tmp_path: Path) -> None:
    clauses = tag_problems(called(torch_wheel, tmp_path, f"musllinux_1_2_{tiny.ARCH}"))
    expected = f"needs libc.so.6 of glibc, which systems of musllinux_1_2_{tiny.ARCH} do not have"
    assert any(expected in clause for clause in clauses)


@tiny.needs_compiler
@pytest.mark.parametrize(
    "members", [("x" * 300, "tinytorch/x.so"), ("tinytorch/x.so", "tinytorch/x.so/y.so")]
)
def test_names_that_no_folder_can_have_are_a_problem(
    torch_wheel: Path, tmp_path: Path, members: tuple[str, ...]
) -> None:
    strange = called(torch_wheel, tmp_path, tiny.PLATFORM)
    with ZipFile(strange, "a") as archive:
        library = next(name for name in archive.namelist() if name.endswith(".so"))
        for name in members:
            archive.writestr(name, archive.read(library))
    (clause,) = tag_problems(strange)
    reason = "File name too long" if members[0] != "tinytorch/x.so" else "Is a directory"
    assert clause == f"its libraries cannot be extracted ({reason}): see the names of its members"


@tiny.needs_compiler
def test_a_damaged_library_is_named_by_its_path_in_the_wheel(
    torch_wheel: Path, tmp_path: Path
) -> None:
    broken = called(torch_wheel, tmp_path, tiny.PLATFORM)
    with ZipFile(broken, "a") as archive:
        library = next(name for name in archive.namelist() if name.endswith(".so"))
        archive.writestr("tinytorch/broken.so", archive.read(library)[:100])
    (clause,) = tag_problems(broken)
    assert clause.startswith("tinytorch/broken.so: not a sound ELF file")


@tiny.needs_compiler
@pytest.mark.parametrize("platform", [f"linux_{tiny.ARCH}", "any", "win_amd64"])
def test_tags_without_promises_are_not_contradicted(
    torch_wheel: Path, tmp_path: Path, platform: str
) -> None:
    assert tag_problems(called(torch_wheel, tmp_path, platform)) == []


@tiny.needs_compiler
def test_an_unknown_machine_and_a_damaged_archive_are_problems(
    torch_wheel: Path, tmp_path: Path
) -> None:
    unknown = tag_problems(called(torch_wheel, tmp_path, "manylinux_2_5_pdp11"))
    assert len(unknown) == 1
    assert "pdp11" in unknown[0]
    cut = called(torch_wheel, tmp_path, tiny.PLATFORM)
    cut.write_bytes(cut.read_bytes()[:-100])
    (clause,) = tag_problems(cut)
    assert "not a sound zip archive" in clause


MODULE = "void PyInit__C(void) {}"


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Return a folder of libraries that the loader does not search."""
    folder = tmp_path / "away"
    folder.mkdir()
    for name in ("libcuda.so.1", "libcublas.so.11", "liblens.so.1"):
        tiny.shared("", folder / name)
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    for name in ("tinytorch/lib", "tinyvision"):
        (folder / name).mkdir(parents=True)
    return folder


def problems(site: Path, *names: str) -> list[str]:
    return library_checks.linking_problems(site, names, tiny.PLATFORM)


@tiny.needs_compiler
def test_libraries_in_the_wheel_or_its_base_are_no_problem(site: Path) -> None:
    library = tiny.shared("", site / "tinytorch/lib/libtiny.so")
    tiny.shared(MODULE, site / "tinytorch/_C.so", library, "-Wl,-rpath,$ORIGIN/lib")
    # without a run path: tinytorch, which is imported first, has loaded the library
    tiny.shared(MODULE, site / "tinyvision/_C.so", library)
    names = ("tinytorch/_C.so", "tinytorch/lib/libtiny.so", "tinytorch/__init__.py")
    assert problems(site, *names) == []
    assert problems(site, "tinyvision/_C.so") == []


@tiny.needs_compiler
def test_a_missing_library_is_a_problem(site: Path, away: Path) -> None:
    tiny.shared(MODULE, site / "tinyvision/_C.so", away / "liblens.so.1")
    assert problems(site, "tinyvision/_C.so") == [
        "tinyvision/_C.so needs liblens.so.1, which is neither in the wheel nor in what it requires"
    ]


@tiny.needs_compiler
def test_libraries_of_nvidia_packages_are_found_by_run_paths_alone(site: Path, away: Path) -> None:
    folder = site / "nvidia/cublas/lib"
    folder.mkdir(parents=True)
    (away / "libcublas.so.11").rename(folder / "libcublas.so.11")
    needed = folder / "libcublas.so.11"
    tiny.shared(
        "", site / "tinytorch/lib/libtiny.so", needed, "-Wl,-rpath,$ORIGIN/../../nvidia/cublas/lib"
    )
    assert problems(site, "tinytorch/lib/libtiny.so") == []
    tiny.shared("", site / "tinytorch/lib/libtiny.so", needed)
    (clause,) = problems(site, "tinytorch/lib/libtiny.so")
    assert clause.startswith(
        "tinytorch/lib/libtiny.so needs libcublas.so.11, which is neither in the wheel"
    )


@tiny.needs_compiler
def test_a_run_path_to_a_missing_package_is_a_problem(site: Path) -> None:
    tiny.shared("", site / "tinytorch/lib/libtiny.so", "-Wl,-rpath,$ORIGIN/../../nvidia/cufft/lib")
    (clause,) = problems(site, "tinytorch/lib/libtiny.so")
    assert clause.startswith(
        "tinytorch/lib/libtiny.so looks in $ORIGIN/../../nvidia/cufft/lib, which nothing"
    )


@tiny.needs_compiler
def test_an_import_that_loads_the_driver_is_a_problem(site: Path, away: Path) -> None:
    lazy = tiny.shared("", site / "tinytorch/lib/libtiny_nvrtc.so", away / "libcuda.so.1")
    library = tiny.shared("", site / "tinytorch/lib/libtiny.so")
    tiny.shared(MODULE, site / "tinytorch/_C.so", library, "-Wl,-rpath,$ORIGIN/lib")
    names = ("tinytorch/_C.so", "tinytorch/lib/libtiny.so", "tinytorch/lib/libtiny_nvrtc.so")
    assert problems(site, *names) == []  # opened only when it is used
    tiny.shared("", library, lazy)
    (clause,) = problems(site, *names)
    assert clause.startswith(
        "importing tinytorch/_C.so loads libcuda.so.1 of the driver, through libtiny.so "
    )
    assert clause.endswith(" and libtiny_nvrtc.so: it fails where there is no GPU")


@tiny.needs_compiler
def test_other_platforms_are_not_judged(site: Path) -> None:
    assert library_checks.linking_problems(site, ["tinytorch/_C.so"], "win_amd64") == []
