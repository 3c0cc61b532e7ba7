"""The facts held against wheels: nothing is said where they agree, and every kind of difference is found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tools import upstream_wheels
from tools.remote_wheel import RemoteWheel
from tools.upstream_check import release_differences
from torchmill.config.facts import Facts
from torchmill.config.release import Cuda
from torchmill.config.wheel_code import ReadLibrary, WheelCode

TAG, CANDIDATE = "1" * 40, "2" * 40
LINUX, ARM, WINDOWS = "manylinux1_x86_64", "manylinux2014_aarch64", "win_amd64"
PINS = (
    "nvidia-cudnn-cu11 (==8.5.0.96); platform_system == 'Linux'",
    "nvidia-nccl-cu11==2.14.3",
    "triton==2.0.0",
)


def made(python: str, platform: str, **changes: Any) -> RemoteWheel:
    number = python.rstrip("t").replace(".", "")
    cuda = platform == LINUX
    wheel = RemoteWheel(
        name=f"base-1.0.0-cp{number}-cp{number}-{platform}.whl",
        version="1.0.0",
        build=0,
        interpreter=f"cp{number}",
        abi=f"cp{number}t" if python.endswith("t") else f"cp{number}",
        platform=platform,
        uploaded="2022-12-15T10:00:00Z",
        yanked=False,
        requires_python=">=3.9",
        requires=PINS,
        commit=TAG,
        cuda="11.7" if cuda else None,
        libraries={"libtorch_cpu.so": 5_000_000, "libshm.so": 10} if cuda else {},
    )
    return replace(wheel, **changes)


WHEELS = [made(python, platform) for platform in (LINUX, ARM) for python in ("3.9", "3.10")]
ADDONS = [
    made("3.9", LINUX, version="0.1.0", requires=("base==1.0.0",), commit=None, cuda=None),
    made("3.10", ARM, version="0.1.0", requires=("base",), commit=None),
]


def facts_of(known: Facts, **changes: Any) -> Facts:
    """Return facts that agree with WHEELS, but for the changes of the base release."""
    old = known.releases["base"][0]
    release = replace(
        old,
        date="2022-12-15",
        wheels={LINUX: ("3.9", "3.10"), ARM: ("3.9", "3.10")},
        cuda_pypi="11.7",
        cuda_official={
            "11.7": Cuda(
                "8.5.0.96",
                "2.14.3",
                capabilities={"x86_64": "3.7;7.0+PTX"},
                requires=("nvidia-cudnn-cu11==8.5.0.96", "nvidia-nccl-cu11==2.14.3"),
            )
        },
        partners={"triton": "2.0.0"},
        sizes={"libtorch_cpu.so": 5_000_000},
    )
    addon = replace(
        known.releases["addon"][0], date="2022-12-15", wheels={LINUX: ("3.9",), ARM: ("3.10",)}
    )
    releases = {"base": (replace(release, **changes),), "addon": (addon,)}
    return replace(
        known,
        releases=releases,
        wheel_code=(*read("base", "1.0.0", known), *read("addon", "0.1.0", known)),
    )


def read(package: str, version: str, known: Facts) -> list[WheelCode]:
    """Return readings of the wheels of a release for every machine; on Linux x86_64 the base package's have CUDA."""
    return [
        WheelCode(package, version, arch, (), None, {}, *(("11.7", "3.7;7.0+PTX") if cuda else ()))
        for arch in known.arches
        for cuda in [arch == "x86_64" and package == "base"]
    ]


def names(
    facts: Facts, base: Sequence[RemoteWheel] = WHEELS, addon: Sequence[RemoteWheel] = ADDONS
) -> list[str]:
    return [one.name for one in release_differences(facts, {"base": base, "addon": addon}, ())]


def changed(**changes: Any) -> list[RemoteWheel]:
    return [replace(WHEELS[0], **changes), *WHEELS[1:]]


def test_agreement_is_silent(known: Facts) -> None:
    assert names(facts_of(known)) == []
    assert names(facts_of(known), [*WHEELS, made("2.7", LINUX, commit=None)]) == [], (
        "Python 2 is left out"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"platform": WINDOWS}, ["wheels manylinux1_x86_64", "wheels win_amd64"]),
        ({"abi": "cp39m"}, ["tag cp39-cp39m-manylinux1_x86_64"]),
        ({"build": 2}, ["rebuild 2 manylinux1_x86_64"]),
        ({"uploaded": "2022-12-14T23:59:59Z"}, ["date"]),
        ({"commit": CANDIDATE}, ["commit 22222222"]),
        ({"commit": None}, []),
        ({"requires_python": ">=3.10"}, ["requires-python"]),
        ({"requires_python": "!=3.9.2,>=3.9.1"}, []),
        ({"cuda": "11.8"}, ["cuda"]),
        ({"requires": PINS[1:]}, ["requires"]),
        ({"requires": ("nvidia-cudnn-cu11==8.6", *PINS[1:])}, ["requires", "cudnn"]),
        ({"requires": (*PINS[:2], "triton==2.1.0")}, ["triton"]),
        ({"capabilities": ("3.7", "7.0+PTX")}, []),
        ({"capabilities": ("3.7", "7.0")}, ["capabilities"]),
        ({"capabilities": ("3.7", "7.5+PTX")}, ["capabilities"]),
        ({"libraries": {"libtorch_cpu.so": 5_000_001}}, ["size libtorch_cpu.so"]),
        ({"libraries": {"libtorch_cpu.so": 5_000_000, "libc10.so": 1_000_000}}, ["size libc10.so"]),
    ],
)
def test_each_kind_is_found_in_one_wheel(
    known: Facts, changes: dict[str, Any], expected: list[str]
) -> None:
    assert names(facts_of(known), changed(**changes)) == expected


def test_pythons_are_those_of_the_wheels(known: Facts) -> None:
    wheels = {LINUX: ("3.9", "3.10"), ARM: ("3.9", "3.10")}
    assert names(facts_of(known, pythons=("3.9", "3.10", "3.13"), wheels=wheels)) == ["pythons"]
    assert "pythons" in names(facts_of(known, pythons=("3.10",)))


def test_requires_python_that_admits_more_is_told(known: Facts) -> None:
    base, other = facts_of(known, pythons=("3.10", "3.13")), known.releases["base"][0]
    facts = replace(
        base,
        releases={**base.releases, "base": (*base.releases["base"], replace(other, version="0.9"))},
    )
    wheels = [wheel for wheel in WHEELS if wheel.python == "3.10"]
    text = {one.name: one.text for one in release_differences(facts, {"base": wheels}, ())}
    assert text["requires-python"] == "Requires-Python is >=3.9, which admits 3.9"


def test_commits_may_be_told_wheel_by_wheel(known: Facts) -> None:
    wheels = changed(commit=CANDIDATE)
    assert names(facts_of(known, built_from={CANDIDATE: ("3.9 manylinux1_x86_64",)}), wheels) == []
    assert names(facts_of(known, built_from={CANDIDATE: (LINUX,)}), wheels) == ["commit 11111111"]
    every = [replace(wheel, commit=CANDIDATE) for wheel in WHEELS]
    assert names(facts_of(known, built_from={CANDIDATE: ()}), every) == []
    assert names(facts_of(known, built_from={"3" * 40: (ARM,)})) == [
        "commit 11111111",
        "commit 33333333",
    ]


def test_built_from_is_what_a_file_would_say() -> None:
    assert upstream_wheels.commits_not_tag(WHEELS, TAG) == {}
    assert upstream_wheels.commits_not_tag(WHEELS, None) == {TAG: ()}
    assert upstream_wheels.commits_not_tag(changed(commit=CANDIDATE), TAG) == {
        CANDIDATE: ("3.9 manylinux1_x86_64",)
    }
    mixed = [
        replace(wheel, commit=CANDIDATE) if wheel.platform == ARM else wheel for wheel in WHEELS
    ]
    assert upstream_wheels.commits_not_tag(mixed, TAG) == {CANDIDATE: (ARM,)}


@pytest.mark.parametrize(
    ("requires", "text"),
    [
        ("base==2.0.0", "wheels ask for base ==2.0.0, the file says 1.0.0"),
        ("base==1.0.0+cu117", "wheels ask for base ==1.0.0+cu117, the file says 1.0.0"),
        ("base>=1.0.0", "wheels ask for no single base (they say >=1.0.0), the file says 1.0.0"),
        ("base", "wheels ask for no single base (they say none), the file says 1.0.0"),
    ],
)
def test_the_pairing_is_what_the_dependent_asks_for(known: Facts, requires: str, text: str) -> None:
    addon = [replace(wheel, requires=(requires,)) for wheel in ADDONS]
    (one,) = release_differences(facts_of(known), {"base": WHEELS, "addon": addon}, ())
    assert (one.package, one.version, one.name, one.text) == ("addon", "0.1.0", "pairing", text)


def test_a_release_without_a_file_is_told_unless_withdrawn(known: Facts) -> None:
    newer = made("3.10", LINUX, version="1.0.1")
    assert names(facts_of(known), [*WHEELS, newer]) == ["release 1.0.1"]
    assert names(facts_of(known), [*WHEELS, replace(newer, yanked=True)]) == []
    assert names(facts_of(known), [*WHEELS, replace(newer, version="0.4")]) == [], (
        "older than what is known"
    )
    explained = facts_of(known, explained={"release 1.0.1": "replaced on the same day"})
    (one,) = release_differences(explained, {"base": [*WHEELS, newer]}, ())
    assert one.reason == "replaced on the same day"


def test_a_release_that_left_the_index_is_told(known: Facts) -> None:
    assert names(facts_of(known), []) == ["absent"]
    assert names(facts_of(known, wheels={}), []) == [], "it was never there, and the file says so"
    assert names(facts_of(known), [replace(wheel, yanked=True) for wheel in WHEELS]) == [
        "withdrawn"
    ]


def test_an_explanation_is_that_of_the_difference(known: Facts) -> None:
    facts = facts_of(known, explained={"rebuild 2 manylinux1_x86_64": "a folder too many"})
    found = release_differences(facts, {"base": changed(build=2, uploaded="2022-12-01")}, ())
    assert {one.name: one.reason for one in found} == {
        "rebuild 2 manylinux1_x86_64": "a folder too many",
        "date": None,
    }


def test_a_wheel_for_every_python_covers_those_of_the_release(known: Facts) -> None:
    one = made("3.9", "any", interpreter="py3", abi="none", libraries={}, cuda=None, requires=())
    facts = facts_of(known, wheels={"any": ("3.9", "3.10")}, cuda_pypi=None, sizes={}, partners={})
    assert names(facts, [one]) == []


def test_a_check_may_be_restricted(known: Facts) -> None:
    facts = facts_of(known)
    assert release_differences(facts, {"base": changed(build=2), "addon": ADDONS}, ("2.0.0",)) == ()
    assert (
        len(release_differences(facts, {"base": changed(build=2), "addon": ADDONS}, ("1.0.0",)))
        == 1
    )


def test_wheels_that_nobody_read_are_told(known: Facts) -> None:
    facts = replace(facts_of(known), wheel_code=())
    found = release_differences(facts, {"base": WHEELS}, ())
    assert [one.name for one in found] == [
        f"code {LINUX}",
        f"code {LINUX}",
        f"code {ARM}",
        f"code {ARM}",
    ]
    assert "`invoke facts --code --write`" in found[0].text


@pytest.mark.parametrize(
    ("size", "told"), [(1_000_000, []), (1_004_096, []), (1_100_000, [f"code {LINUX}"]), (0, None)]
)
def test_a_library_of_another_size_was_not_read(
    known: Facts, size: int, told: list[str] | None
) -> None:
    facts, name = facts_of(known), "base/lib/libtorch_cuda.so"
    first, *others = facts.wheel_code
    library = ReadLibrary(name, (1_000_000,), {"3.7;7.0;7.0 PTX": 3})
    facts = replace(facts, wheel_code=(replace(first, code={name: library}), *others))
    assert first.arch == "x86_64"
    wheels = [
        replace(wheel, members={name: size} if size else {})
        for wheel in WHEELS
        if wheel.platform == LINUX
    ]
    found = [
        one.name
        for one in release_differences(facts, {"base": wheels[:1]}, ())
        if one.name.startswith("code")
    ]
    assert found == ([f"code {LINUX}"] if told is None else told)


def test_a_list_that_was_not_read_so_is_told(known: Facts) -> None:
    facts = facts_of(known)
    first, *others = facts.wheel_code
    facts = replace(facts, wheel_code=(replace(first, own="5.0", files=("a.whl",)), *others))
    (one,) = release_differences(facts, {"base": WHEELS, "addon": ADDONS}, ())
    assert one.text == "a.whl has code for 5.0, the file says 3.7;7.0+PTX"
