"""Debian's binary packages: parsing apt's output, and dependencies."""

from collections.abc import Iterable

from torchmill.fetch.source.apt import BinaryPackage, package_closure, parse_show

APT_OUTPUT = """\
Package: libcudart11.0
Source: nvidia-cuda-toolkit (11.8.0-5~deb12u1)
Version: 1:11.8.89~11.8.0-5~deb12u1
Architecture: amd64
Depends: libc6 (>= 2.14), libgcc-s1 (>= 3.0) | libgcc1:any, a [amd64]
Description: runtime
 of CUDA
Filename: pool/non-free/n/x_11.deb
Size: 167000
SHA256: abc

Package: virtual
"""


def test_binary_packages_are_parsed() -> None:
    packages = list(parse_show(APT_OUTPUT))
    assert packages == [
        BinaryPackage(
            "libcudart11.0",
            "1:11.8.89~11.8.0-5~deb12u1",
            "nvidia-cuda-toolkit",
            (("libc6",), ("libgcc-s1", "libgcc1"), ("a",)),
            "2.14",
            "libcudart11.0_1%3a11.8.89~11.8.0-5~deb12u1_amd64.deb",
            167000,
            "abc",
        )
    ]
    assert packages[0].upstream == "11.8.89~11.8.0"


def package(name: str, source: str, *depends: str) -> BinaryPackage:
    groups = tuple(tuple(dependency.split("|")) for dependency in depends)
    return BinaryPackage(name, "1-1", source, groups, None, f"{name}.deb", 1, "")


ARCHIVE = {
    listed.name: listed
    for listed in (
        package("kit", "cuda", "dev", "gcc|clang", "libc"),
        package("dev", "cuda", "driver|rt", "rt", "kit"),
        package("rt", "cuda"),
        package("extra", "cuda"),
        package("driver", "drivers"),
        package("gcc", "gcc"),
        package("thrust", "thrust", "cub"),
        package("cub", "thrust"),
    )
}


def closure_names(roots: Iterable[str]) -> list[str]:
    def ask(names: Iterable[str]) -> dict[str, BinaryPackage]:
        return {name: ARCHIVE[name] for name in names if name in ARCHIVE}

    return [package.name for package in package_closure(list(roots), ask)]


def test_dependencies_from_the_same_sources_come_along() -> None:
    assert closure_names(["kit"]) == ["kit", "dev", "rt"]
    assert closure_names(["kit", "thrust"]) == ["kit", "thrust", "dev", "cub", "rt"]


def test_roots_that_are_not_listed_are_left_out() -> None:
    assert closure_names(["nothing", "rt"]) == ["rt"]
    assert closure_names(["nothing"]) == []
