"""Facts are compared with wheels, and every kind of difference is found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.changed_facts import change_facts, change_groups
from tools import upstream_wheels
from tools.remote_wheel import RemoteWheel
from tools.upstream_check import release_differences
from torchmill.config.facts import Facts
from torchmill.config.release import OfficialCuda
from torchmill.config.wheel_code import LibraryReading, WheelCode

TAG = "1" * 40
CANDIDATE = "2" * 40  # a commit before the tag
LINUX = "manylinux1_x86_64"
ARM = "manylinux2014_aarch64"
WINDOWS = "win_amd64"
PINS = (
    "nvidia-cudnn-cu11 (==8.5.0.96); platform_system == 'Linux'",
    "nvidia-nccl-cu11==2.14.3",
    "triton==2.0.0",
)


def make_wheel(python: str, platform: str, **changes: Any) -> RemoteWheel:
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


WHEELS = [make_wheel(python, platform) for platform in (LINUX, ARM) for python in ("3.9", "3.10")]
ADDONS = [
    make_wheel("3.9", LINUX, version="0.1.0", requires=("base==1.0.0",), commit=None, cuda=None),
    make_wheel("3.10", ARM, version="0.1.0", requires=("base",), commit=None),
]


def facts_of(small_facts: Facts, **changes: Any) -> Facts:
    """Return facts that agree with WHEELS, except for the changes of the base release."""
    old = small_facts.releases["base"][0]
    official = OfficialCuda(
        "8.5.0.96",
        "2.14.3",
        capabilities={"x86_64": "3.7;7.0+PTX"},
        requires=("nvidia-cudnn-cu11==8.5.0.96", "nvidia-nccl-cu11==2.14.3"),
    )
    release = change_groups(
        old,
        cuda={"pypi": "11.7", "official": {"11.7": official}},
        wheel={"partners": {"triton": "2.0.0"}},
        upstream={
            "date": "2022-12-15",
            "wheels": {LINUX: ("3.9", "3.10"), ARM: ("3.9", "3.10")},
            "sizes": {"libtorch_cpu.so": 5_000_000},
        },
    )
    addon = change_groups(
        small_facts.releases["addon"][0],
        upstream={"date": "2022-12-15", "wheels": {LINUX: ("3.9",), ARM: ("3.10",)}},
    )
    releases = {"base": (change_groups(release, **changes),), "addon": (addon,)}
    readings = (
        *readings_of("base", "1.0.0", small_facts),
        *readings_of("addon", "0.1.0", small_facts),
    )
    facts = change_facts(small_facts, official={"wheel_code": readings})
    return replace(facts, releases=releases)


def readings_of(package: str, version: str, small_facts: Facts) -> list[WheelCode]:
    """Return readings of a release for every arch; the base package has CUDA on x86_64."""
    readings = []
    for arch in small_facts.arches:
        reading = WheelCode(package, version, arch, (), None, {})
        if arch == "x86_64" and package == "base":
            reading = replace(reading, cuda="11.7", kernel_targets="3.7;7.0+PTX")
        readings.append(reading)
    return readings


def names(
    facts: Facts, base: Sequence[RemoteWheel] = WHEELS, addon: Sequence[RemoteWheel] = ADDONS
) -> list[str]:
    return [
        difference.name
        for difference in release_differences(facts, {"base": base, "addon": addon}, ())
    ]


def with_first_changed(**changes: Any) -> list[RemoteWheel]:
    return [replace(WHEELS[0], **changes), *WHEELS[1:]]


def test_agreement_is_not_reported(small_facts: Facts) -> None:
    assert names(facts_of(small_facts)) == []
    assert names(facts_of(small_facts), [*WHEELS, make_wheel("2.7", LINUX, commit=None)]) == [], (
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
def test_each_difference_of_one_wheel_is_found(
    small_facts: Facts, changes: dict[str, Any], expected: list[str]
) -> None:
    assert names(facts_of(small_facts), with_first_changed(**changes)) == expected


def test_pythons_are_compared_with_the_wheels(small_facts: Facts) -> None:
    wheels = {LINUX: ("3.9", "3.10"), ARM: ("3.9", "3.10")}
    assert names(
        facts_of(small_facts, pythons=("3.9", "3.10", "3.13"), upstream={"wheels": wheels})
    ) == ["pythons"]
    assert "pythons" in names(facts_of(small_facts, pythons=("3.10",)))


def test_requires_python_that_admits_more_is_reported(small_facts: Facts) -> None:
    base = facts_of(small_facts, pythons=("3.10", "3.13"))
    other = small_facts.releases["base"][0]
    facts = replace(
        base,
        releases={**base.releases, "base": (*base.releases["base"], replace(other, version="0.9"))},
    )
    wheels = [wheel for wheel in WHEELS if wheel.python == "3.10"]
    text = {
        difference.name: difference.text
        for difference in release_differences(facts, {"base": wheels}, ())
    }
    assert text["requires-python"] == "Requires-Python is >=3.9, which admits 3.9"


def test_commits_may_be_recorded_for_single_wheels(small_facts: Facts) -> None:
    wheels = with_first_changed(commit=CANDIDATE)
    assert (
        names(
            facts_of(small_facts, upstream={"built_from": {CANDIDATE: ("3.9 manylinux1_x86_64",)}}),
            wheels,
        )
        == []
    )
    assert names(facts_of(small_facts, upstream={"built_from": {CANDIDATE: (LINUX,)}}), wheels) == [
        "commit 11111111"
    ]
    rebuilt = [replace(wheel, commit=CANDIDATE) for wheel in WHEELS]
    assert names(facts_of(small_facts, upstream={"built_from": {CANDIDATE: ()}}), rebuilt) == []
    assert names(facts_of(small_facts, upstream={"built_from": {"3" * 40: (ARM,)}})) == [
        "commit 11111111",
        "commit 33333333",
    ]


def test_commits_are_grouped_as_a_file_records_them() -> None:
    assert upstream_wheels.commits_not_tag(WHEELS, TAG) == {}
    assert upstream_wheels.commits_not_tag(WHEELS, None) == {TAG: ()}
    assert upstream_wheels.commits_not_tag(with_first_changed(commit=CANDIDATE), TAG) == {
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
def test_the_pairing_is_compared_with_the_requirements(
    small_facts: Facts, requires: str, text: str
) -> None:
    addon = [replace(wheel, requires=(requires,)) for wheel in ADDONS]
    (difference,) = release_differences(facts_of(small_facts), {"base": WHEELS, "addon": addon}, ())
    assert (difference.package, difference.version, difference.name, difference.text) == (
        "addon",
        "0.1.0",
        "pairing",
        text,
    )


def test_a_release_without_a_file_is_reported_unless_withdrawn(small_facts: Facts) -> None:
    newer = make_wheel("3.10", LINUX, version="1.0.1")
    assert names(facts_of(small_facts), [*WHEELS, newer]) == ["release 1.0.1"]
    assert names(facts_of(small_facts), [*WHEELS, replace(newer, yanked=True)]) == []
    assert names(facts_of(small_facts), [*WHEELS, replace(newer, version="0.4")]) == [], (
        "older than all known releases"
    )
    explained = facts_of(
        small_facts, upstream={"explained": {"release 1.0.1": "replaced on the same day"}}
    )
    (difference,) = release_differences(explained, {"base": [*WHEELS, newer]}, ())
    assert difference.reason == "replaced on the same day"


def test_a_release_that_left_the_index_is_reported(small_facts: Facts) -> None:
    assert names(facts_of(small_facts), []) == ["absent"]
    assert names(facts_of(small_facts, upstream={"wheels": {}}), []) == [], (
        "the file says that there are no wheels"
    )
    assert names(facts_of(small_facts), [replace(wheel, yanked=True) for wheel in WHEELS]) == [
        "withdrawn"
    ]


def test_an_explanation_belongs_to_its_difference(small_facts: Facts) -> None:
    facts = facts_of(
        small_facts, upstream={"explained": {"rebuild 2 manylinux1_x86_64": "a folder too many"}}
    )
    differences = release_differences(
        facts, {"base": with_first_changed(build=2, uploaded="2022-12-01")}, ()
    )
    assert {difference.name: difference.reason for difference in differences} == {
        "rebuild 2 manylinux1_x86_64": "a folder too many",
        "date": None,
    }


def test_a_wheel_for_every_python_covers_those_of_the_release(small_facts: Facts) -> None:
    universal = make_wheel(
        "3.9", "any", interpreter="py3", abi="none", libraries={}, cuda=None, requires=()
    )
    facts = facts_of(
        small_facts,
        upstream={"wheels": {"any": ("3.9", "3.10")}, "sizes": {}},
        cuda={"pypi": None},
        wheel={"partners": {}},
    )
    assert names(facts, [universal]) == []


def test_a_check_may_be_restricted(small_facts: Facts) -> None:
    facts = facts_of(small_facts)
    assert (
        release_differences(
            facts, {"base": with_first_changed(build=2), "addon": ADDONS}, ("2.0.0",)
        )
        == ()
    )
    assert (
        len(
            release_differences(
                facts, {"base": with_first_changed(build=2), "addon": ADDONS}, ("1.0.0",)
            )
        )
        == 1
    )


def test_wheels_that_were_not_read_are_reported(small_facts: Facts) -> None:
    facts = change_facts(facts_of(small_facts), official={"wheel_code": ()})
    differences = release_differences(facts, {"base": WHEELS}, ())
    assert [difference.name for difference in differences] == [
        f"code {LINUX}",
        f"code {LINUX}",
        f"code {ARM}",
        f"code {ARM}",
    ]
    assert "`invoke facts --code --write`" in differences[0].text


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1_000_000, []), (1_004_096, []), (1_100_000, [f"code {LINUX}"]), (0, None)],
)
def test_a_library_of_another_size_was_not_read(
    small_facts: Facts, size: int, expected: list[str] | None
) -> None:
    facts = facts_of(small_facts)
    name = "base/lib/libtorch_cuda.so"
    first, *other_readings = facts.official.wheel_code
    library = LibraryReading(name, (1_000_000,), {"3.7;7.0;7.0 PTX": 3})
    readings = (replace(first, code={name: library}), *other_readings)
    facts = change_facts(facts, official={"wheel_code": readings})
    assert first.arch == "x86_64"
    wheels = [
        replace(wheel, members={name: size} if size else {})
        for wheel in WHEELS
        if wheel.platform == LINUX
    ]
    difference_names = [
        difference.name
        for difference in release_differences(facts, {"base": wheels[:1]}, ())
        if difference.name.startswith("code")
    ]
    assert difference_names == ([f"code {LINUX}"] if expected is None else expected)


def test_a_list_of_capabilities_that_differs_is_reported(small_facts: Facts) -> None:
    facts = facts_of(small_facts)
    first, *other_readings = facts.official.wheel_code
    readings = (replace(first, kernel_targets="5.0", files=("a.whl",)), *other_readings)
    facts = change_facts(facts, official={"wheel_code": readings})
    (difference,) = release_differences(facts, {"base": WHEELS, "addon": ADDONS}, ())
    assert difference.text == "a.whl has code for 5.0, the file says 3.7;7.0+PTX"
