"""Debian's binary packages, listed and downloaded by an apt of our own."""

from collections.abc import Iterable

from torchmill.fetch.source.apt import BinaryPackage, package_closure, parse_show

SHOWN = """\
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


def test_what_apt_shows() -> None:
    shown = list(parse_show(SHOWN))
    assert shown == [
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
    assert shown[0].upstream == "11.8.89~11.8.0"


def package(name: str, source: str, *depends: str) -> BinaryPackage:
    groups = tuple(tuple(one.split("|")) for one in depends)
    return BinaryPackage(name, "1-1", source, groups, None, f"{name}.deb", 1, "")


ARCHIVE = {
    one.name: one
    for one in (
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


def take(roots: Iterable[str]) -> list[str]:
    def ask(names: Iterable[str]) -> dict[str, BinaryPackage]:
        return {name: ARCHIVE[name] for name in names if name in ARCHIVE}

    return [one.name for one in package_closure(list(roots), ask)]


def test_what_is_needed_of_the_same_sources() -> None:
    assert take(["kit"]) == ["kit", "dev", "rt"]
    assert take(["kit", "thrust"]) == ["kit", "thrust", "dev", "cub", "rt"]


def test_roots_that_are_not_listed_are_left_out() -> None:
    assert take(["nothing", "rt"]) == ["rt"]
    assert take(["nothing"]) == []
