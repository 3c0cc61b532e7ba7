"""The promises of platform tags, judged by auditwheel's policies."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from millpress.bundling import (
    DRIVER_LIBRARY,
    INTERPRETER_LIBRARY,
    SystemNeeds,
    oldest_target,
    platform_target,
    policy_problems,
)
from millpress.errors import OptionError


def needs(versions: Mapping[str, set[str]], symbols: frozenset[str] = frozenset()) -> SystemNeeds:
    frozen = {library: frozenset(names) for library, names in versions.items()}
    return SystemNeeds("torch/lib/libtorch.so", frozenset(versions), frozen, symbols)


GLIBC = {"libc.so.6": {"GLIBC_2.2.5", "GLIBC_2.34"}, "libm.so.6": {"GLIBC_2.29"}}
STDCXX = {"libstdc++.so.6": {"GLIBCXX_3.4.30", "CXXABI_1.3.13"}}


def test_needs_that_the_tag_promises_are_no_problem() -> None:
    target = platform_target("manylinux_2_36_x86_64")
    assert policy_problems(target, [needs({**GLIBC, **STDCXX})]) == []


def test_newer_symbols_of_the_c_library_are_a_problem() -> None:
    tag = "manylinux_2_28_x86_64"
    assert policy_problems(platform_target(tag), [needs(GLIBC)]) == [
        f"torch/lib/libtorch.so needs GLIBC_2.34 of libc.so.6, which is newer than {tag}",
        f"torch/lib/libtorch.so needs GLIBC_2.29 of libm.so.6, which is newer than {tag}",
    ]


def test_newer_symbols_of_the_cpp_library_are_a_problem() -> None:
    (clause,) = policy_problems(platform_target("manylinux_2_34_x86_64"), [needs(STDCXX)])
    assert "GLIBCXX_3.4.30 of libstdc++.so.6" in clause


def test_a_tag_between_two_known_ones_is_judged_by_number() -> None:
    between = platform_target("manylinux_2_33_x86_64")
    assert policy_problems(between, [needs({"libc.so.6": {"GLIBC_2.33"}})]) == []
    assert len(policy_problems(between, [needs({"libc.so.6": {"GLIBC_2.34"}})])) == 1


def test_a_tag_newer_than_every_known_one_is_judged_by_number() -> None:
    future = platform_target("manylinux_2_99_x86_64")
    versions = {"libc.so.6": {"GLIBC_2.99"}, "libstdc++.so.6": {"GLIBCXX_3.4.99"}}
    assert policy_problems(future, [needs(versions)]) == []
    assert len(policy_problems(future, [needs({"libc.so.6": {"GLIBC_2.100"}})])) == 1


def test_no_tag_promises_private_symbols() -> None:
    target = platform_target("manylinux_2_36_x86_64")
    assert policy_problems(target, [needs({"libc.so.6": {"GLIBC_PRIVATE"}})])


def test_a_symbol_that_a_policy_forbids_is_a_problem() -> None:
    need = needs({"libz.so.1": set()}, frozenset({"deflate", "inflate_fast"}))
    (clause,) = policy_problems(platform_target("manylinux_2_36_x86_64"), [need])
    assert "uses inflate_fast of libz.so.1" in clause


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"libc.so.6": {"GLIBC_2.4"}}, "manylinux_2_5_x86_64"),
        ({"libc.so.6": {"GLIBC_2.17"}}, "manylinux_2_17_x86_64"),
        (GLIBC, "manylinux_2_34_x86_64"),
        (STDCXX, "manylinux_2_35_x86_64"),
        ({"libmvec.so.1": set()}, "manylinux_2_24_x86_64"),
        ({"libc.so.6": {"GLIBC_2.36"}}, "manylinux_2_36_x86_64"),
    ],
)
def test_the_oldest_target_is_the_first_that_meets_the_needs(
    versions: Mapping[str, set[str]], expected: str | None
) -> None:
    oldest = oldest_target(platform_target("manylinux_2_36_x86_64"), [needs(versions)])
    assert (oldest and oldest.tag) == expected


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("libc.so.6", True),
        ("libstdc++.so.6", True),
        ("ld-linux-x86-64.so.2", True),
        ("libcuda.so.1", True),
        ("libnvidia-ml.so.1", True),
        ("libcudart.so.11.0", False),
        ("libgomp.so.1", False),
        ("libprotobuf.so.32", False),
    ],
)
def test_libraries_that_every_system_of_a_tag_has(library: str, expected: bool) -> None:
    assert platform_target("manylinux_2_36_x86_64").provides(library) is expected


def test_the_old_names_of_tags_are_understood() -> None:
    assert platform_target("manylinux2014_aarch64").version == (2, 17)
    assert platform_target("manylinux2014_aarch64").arch == "aarch64"


@pytest.mark.parametrize(
    "tag", ["linux_x86_64", "manylinux_x86_64", "manylinux_2_36", "manylinux_2_36_vax"]
)
def test_other_tags_than_those_of_linux_wheels_are_refused(tag: str) -> None:
    with pytest.raises(OptionError) as caught:
        platform_target(tag)
    assert tag in str(caught.value)
    assert caught.value.code in {"invalid-platform-tag", "unknown-tag-arch"}


def test_libpython_is_recognized_by_each_of_its_names() -> None:
    for name in (
        "libpython3.10.so.1.0",
        "libpython3.so",
        "libpython3.7m.so.1.0",
        "libpython3.13t.so.1.0",
    ):
        assert INTERPRETER_LIBRARY.fullmatch(name)
    assert not INTERPRETER_LIBRARY.fullmatch("libtorch_python.so")
    assert not DRIVER_LIBRARY.fullmatch("libcudart.so.12")
