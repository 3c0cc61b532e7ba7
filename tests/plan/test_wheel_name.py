"""The parts of a wheel's name: the word for its source, and its tags."""

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.tags import mac_platforms
from packaging.version import Version

from tests.support.hosts import change_host
from tests.support.plans import LINUX, MACOS, plan_base, plan_torch
from tests.support.refusals import refused
from tests.support.source_upstream import release
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host
from torchmill.plan import wheel_name
from torchmill.plan.build_options import Options

COMMIT = "49444c3e" + "0" * 32
OTHER_COMMIT = "7118d887" + "0" * 32
PROVEN = Source(
    "torch", "1", "v1", "git", "url", COMMIT, Path("/tree"), verified=True, contents="0123456789"
)
UNPROVEN = replace(PROVEN, provider="path", commit=None, verified=False)
DECLARED = replace(UNPROVEN, declared=OTHER_COMMIT)


@pytest.mark.parametrize(
    ("source", "recorded", "modified", "label", "git_version"),
    [
        (None, COMMIT, False, "git49444c3", COMMIT),
        (None, None, False, "", None),
        (PROVEN, None, False, "git49444c3", COMMIT),
        (PROVEN, COMMIT, True, "git49444c3.modified", "49444c3+modified"),
        (UNPROVEN, COMMIT, False, "src0123456.unverified", "49444c3+unverified"),
        (
            UNPROVEN,
            COMMIT,
            True,
            "src0123456.unverified.modified",
            "49444c3+unverified.modified",
        ),
        (DECLARED, None, False, "src0123456.unverified", "7118d88+unverified"),
        (UNPROVEN, None, False, "src0123456.unverified", None),
    ],
)
def test_a_source_is_called_by_its_commit_only_if_it_is_proven_and_unchanged(
    source: Source | None, recorded: str | None, modified: bool, label: str, git_version: str | None
) -> None:
    name = wheel_name.name_source(release("v1", recorded), source, modified=modified)
    assert name.label == label
    assert name.git_version == git_version
    if label:
        normalised = str(Version(f"1.0+{label}"))
        assert normalised == f"1.0+{label}", "no installer spells it in another way"


def test_an_unproven_source_is_no_commit_whatever_the_facts_record() -> None:
    name = wheel_name.name_source(release("v1", COMMIT), UNPROVEN, modified=False)
    assert name.commit is None
    assert name.title == "no proven commit, contents 01234567"


@pytest.mark.parametrize(
    ("python", "tags"),
    [("3.7", "cp37-cp37m"), ("3.10", "cp310-cp310"), ("3.13t", "cp313-cp313t")],
)
def test_python_tags(python: str, tags: str) -> None:
    assert wheel_name.python_tag(python) == tags


def test_a_wheel_is_called_by_the_normalised_name_of_its_package(small_facts: Facts) -> None:
    package = replace(small_facts.packages["addon"], name="torch-Scatter.extra")
    build = Build("addon", "vision", "3.10", "cu118", "x86_64", "11.8")
    name = wheel_name.wheel_file_name(
        package, small_facts.releases["addon"][0], build, "2.1.2+cu118", "linux_x86_64"
    )
    assert name == "torch_scatter_extra-2.1.2+cu118-cp310-cp310-linux_x86_64.whl"


def test_a_wheel_for_every_python_is_named_so(shipped: Facts) -> None:
    wheel = plan_torch(shipped, "vision-3.12-cpu", "v2.15.0").wheel
    assert wheel.file_name == "torchvision-0.29.2+cpu-py3-none-manylinux_2_36_x86_64.whl"


def test_a_host_of_unknown_glibc_promises_no_manylinux(small_facts: Facts) -> None:
    host = change_host(LINUX, platform={"glibc": None})
    assert plan_base(small_facts, host=host).wheel.platform_tag == "linux_x86_64"


@pytest.mark.parametrize(
    ("platform", "tag", "upper_bound"),
    [
        ("auto", "manylinux_2_36_x86_64", True),
        ("linux", "linux_x86_64", False),
        ("manylinux_2_28", "manylinux_2_28_x86_64", False),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64", False),
        ("manylinux2014", "manylinux2014_x86_64", False),
        ("manylinux1_x86_64", "manylinux1_x86_64", False),
        ("manylinux_2_36", "manylinux_2_36_x86_64", False),
        ("linux_x86_64", "linux_x86_64", False),
    ],
)
def test_the_platform_is_computed_or_the_requested_one(
    small_facts: Facts, platform: str, tag: str, upper_bound: bool
) -> None:
    wheel = plan_base(small_facts, options=Options(platform=platform)).wheel
    assert wheel.platform_tag == tag
    assert wheel.tag_is_upper_bound == upper_bound
    assert wheel.file_name == f"base-1.0.0+cpu-cp310-cp310-{tag}.whl"


@pytest.mark.parametrize(
    ("platform", "host", "code"),
    [
        ("manylinux_2_28_aarch64", LINUX, "platform-of-another-arch"),
        ("linux_aarch64", LINUX, "platform-of-another-arch"),
        ("musllinux_1_2", LINUX, "platform-of-another-libc"),
        ("manylinux_2_37", LINUX, "platform-too-new"),
        ("manylinux_99_0", LINUX, "platform-too-new"),
        ("manylinux_2_4", LINUX, "platform-too-old"),
        ("manylinux_0_0", LINUX, "platform-too-old"),
        (
            "manylinux2014",
            change_host(LINUX, platform={"glibc": None}, complete=True),
            "platform-of-another-libc",
        ),
        ("linux", MACOS, "platform-of-another-system"),
    ],
)
def test_a_platform_that_no_wheel_can_have_is_refused(
    small_facts: Facts, platform: str, host: Host, code: str
) -> None:
    with refused(code):
        plan_base(small_facts, host=host, options=Options(platform=platform))


def test_each_machine_has_its_oldest_tag_and_its_own_c_library(small_facts: Facts) -> None:
    """Nothing is known of the system in a container for another machine but its wheels' tags."""
    identifier = "wheel-3.10-cpu-aarch64"
    for old in ("manylinux1", "manylinux_2_12"):
        with refused("platform-too-old") as caught:
            plan_base(small_facts, identifier, options=Options(platform=old))
        assert str(caught.value).endswith("manylinux_2_17")
    newer = plan_base(small_facts, identifier, options=Options(platform="manylinux_2_39"))
    assert newer.wheel.platform_tag == "manylinux_2_39_aarch64"


def test_the_macos_tag_follows_the_deployment_target(shipped: Facts) -> None:
    def tag_for(target: str) -> str:
        options = Options(settings={"MACOSX_DEPLOYMENT_TARGET": target})
        return plan_torch(
            shipped, "wheel-3.12-cpu", "v2.15.0", MACOS, options=options
        ).wheel.platform_tag

    default = plan_torch(shipped, "wheel-3.12-cpu", "v2.15.0", MACOS).wheel
    assert default.file_name == "torch-2.15.0-cp312-cp312-macosx_14_0_arm64.whl"
    tags = set(mac_platforms((26, 1), "arm64"))
    for target in ("15.0", "26.0"):
        assert tag_for(target) == f"macosx_{target.replace('.', '_')}_arm64"
        assert tag_for(target) in tags
    for target in ("14.5", "14", "15.0.1", ""):
        assert f"macosx_{target.replace('.', '_')}_arm64" not in tags
        with refused("invalid-platform"):
            tag_for(target)


def test_apple_silicon_runs_no_macos_before_11(shipped: Facts) -> None:
    assert "macosx_10_15_arm64" not in set(mac_platforms((26, 1), "arm64"))
    options = Options(settings={"MACOSX_DEPLOYMENT_TARGET": "10.15"})
    with refused("invalid-platform"):
        plan_torch(shipped, "wheel-3.12-cpu", "v2.4.1", MACOS, options=options)
