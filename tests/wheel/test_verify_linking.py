"""What installed libraries need: found or named, and nothing of the driver in an import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_wheels as tiny
from torchmill.wheel.verify import library_checks

pytestmark = tiny.needs_compiler

MODULE = "void PyInit__C(void) {}"


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Return a folder of libraries that are on no loader's way."""
    folder = tmp_path / "away"
    folder.mkdir()
    for name in ("libcuda.so.1", "libcublas.so.11", "liblens.so.1"):
        tiny.shared("", folder / name)
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    for each in ("tinytorch/lib", "tinyvision"):
        (folder / each).mkdir(parents=True)
    return folder


def problems(site: Path, *names: str) -> list[str]:
    return library_checks.linking_problems(site, names, tiny.PLATFORM)


def test_what_is_found_is_no_problem(site: Path) -> None:
    own = tiny.shared("", site / "tinytorch/lib/libtiny.so")
    tiny.shared(MODULE, site / "tinytorch/_C.so", own, "-Wl,-rpath,$ORIGIN/lib")
    tiny.shared(MODULE, site / "tinyvision/_C.so", own)  # loaded by the package it is imported after
    assert problems(site, "tinytorch/_C.so", "tinytorch/lib/libtiny.so", "tinytorch/__init__.py") == []
    assert problems(site, "tinyvision/_C.so") == []


def test_what_is_nowhere_is_named(site: Path, away: Path) -> None:
    tiny.shared(MODULE, site / "tinyvision/_C.so", away / "liblens.so.1")
    assert problems(site, "tinyvision/_C.so") == [
        "tinyvision/_C.so needs liblens.so.1, which is neither in the wheel nor in what it requires"
    ]


def test_a_required_package_is_looked_into_by_the_run_path_alone(site: Path, away: Path) -> None:
    there = site / "nvidia/cublas/lib"
    there.mkdir(parents=True)
    (away / "libcublas.so.11").rename(there / "libcublas.so.11")
    needed = there / "libcublas.so.11"
    tiny.shared("", site / "tinytorch/lib/libtiny.so", needed, "-Wl,-rpath,$ORIGIN/../../nvidia/cublas/lib")
    assert problems(site, "tinytorch/lib/libtiny.so") == []
    tiny.shared("", site / "tinytorch/lib/libtiny.so", needed)
    (told,) = problems(site, "tinytorch/lib/libtiny.so")
    assert told.startswith("tinytorch/lib/libtiny.so needs libcublas.so.11, which is neither in the wheel")


def test_a_run_path_to_what_no_package_brings_is_named(site: Path) -> None:
    tiny.shared("", site / "tinytorch/lib/libtiny.so", "-Wl,-rpath,$ORIGIN/../../nvidia/cufft/lib")
    (told,) = problems(site, "tinytorch/lib/libtiny.so")
    assert told.startswith("tinytorch/lib/libtiny.so looks in $ORIGIN/../../nvidia/cufft/lib, which nothing")


def test_an_import_must_not_need_the_driver(site: Path, away: Path) -> None:
    lazy = tiny.shared("", site / "tinytorch/lib/libtiny_nvrtc.so", away / "libcuda.so.1")
    own = tiny.shared("", site / "tinytorch/lib/libtiny.so")
    tiny.shared(MODULE, site / "tinytorch/_C.so", own, "-Wl,-rpath,$ORIGIN/lib")
    names = ("tinytorch/_C.so", "tinytorch/lib/libtiny.so", "tinytorch/lib/libtiny_nvrtc.so")
    assert problems(site, *names) == []  # opened only when it is used
    tiny.shared("", own, lazy)
    (told,) = problems(site, *names)
    assert told.startswith(
        "importing tinytorch/_C.so loads libcuda.so.1 of the driver, by way of libtiny.so "
    )
    assert told.endswith(" and libtiny_nvrtc.so: it fails where there is no GPU")


def test_other_platforms_are_left_alone(site: Path) -> None:
    assert library_checks.linking_problems(site, ["tinytorch/_C.so"], "win_amd64") == []
