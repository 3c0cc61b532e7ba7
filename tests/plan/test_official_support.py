"""Which official builds run on which GPUs, and the newest wheel for a GPU."""

from dataclasses import replace

import pytest

from tests.support.changed_facts import change_facts
from tests.support.hosts import change_host
from tests.support.processors import PROCESSORS
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import official_support, published, wheel_fit
from torchmill.plan.published import with_gpus

HOST = Host(
    "x86_64",
    "linux",
    HostResources(16, 64 * 2**30),
    platform=HostPlatform(glibc="2.36", processor_features=PROCESSORS["x86_64"]),
)
ARM_HOST = change_host(HOST, platform={"processor_features": PROCESSORS["aarch64"]}, arch="aarch64")


def find_capability(facts: Facts, name: str) -> Capability:
    capability = facts.capability(name)
    assert capability is not None
    return capability


# The rules by which CUDA runs code, written once more: those of the package are in
# config/served_gpus.py.


def capability_number(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def entry_support(entry: str, gpu: Capability, chips: set[str]) -> str | None:
    """Return how an entry of a list runs on a GPU: "code for 8.6", "PTX of 8.6", or None."""
    name = entry.removesuffix("+PTX")
    code = capability_number(name)
    card = capability_number(gpu.name)
    is_later_minor = code[0] == card[0] and code[1] < card[1]
    if code == card or (is_later_minor and not {name, gpu.name} & chips):
        return f"code for {name}"
    if entry != name and code <= card:
        return f"PTX of {name}"
    return None


def official_entries(facts: Facts, arch: str) -> dict[str, list[str]]:
    """Return the entries of the lists of each release's official builds, as read, or announced."""
    entries: dict[str, list[str]] = {}
    for release in facts.releases["torch"]:
        for cuda, official in release.cuda.official.items():
            readings = wheel_fit.find_readings(facts, "torch", release.version, arch, cuda)
            lists = [reading.kernel_targets for reading in readings]
            if not readings:
                lists = [official.capabilities.get(arch, "")]
            for listed in lists:
                words = [entry for entry in listed.split(";") if entry]
                entries.setdefault(release.version, []).extend(words)
    return entries


@pytest.mark.parametrize("arch", official_support.OFFICIAL_ARCHES)
def test_support_agrees_with_the_rules_of_cuda(shipped: Facts, arch: str) -> None:
    chips = {capability.name for capability in shipped.gpus.capabilities if capability.tegra}
    entries_by_release = official_entries(shipped, arch)
    for gpu in shipped.gpus.capabilities:
        support_by_release = official_support.support_by_release(shipped, gpu, arch)
        for release, entries in entries_by_release.items():
            support = support_by_release.get(release, official_support.UNRECORDED)
            possible = {entry_support(entry, gpu, chips) for entry in entries} - {None}
            if support == official_support.UNRECORDED:
                assert not possible, (gpu.name, release, entries)
            else:
                assert support.partition(",")[0] in possible, (gpu.name, release, entries)
    assert len(entries_by_release) * len(shipped.gpus.capabilities) > 1000


@pytest.mark.parametrize(
    ("name", "arch", "releases", "support"),
    [
        ("3.5", "x86_64", ("1.0.0", "1.3.0"), "code for 3.5"),
        ("3.7", "x86_64", ("1.3.1", "2.0.1"), "code for 3.7"),
        ("5.2", "x86_64", ("1.0.0", "2.7.1"), "code for 5.0"),
        ("7.0", "x86_64", ("1.0.0", "2.10.0"), "code for 7.0"),
        ("8.6", "x86_64", ("1.13.0", "2.15.0"), "code for 8.6"),
        ("8.9", "x86_64", ("1.13.0", "2.15.0"), "code for 8.6"),
        ("9.0", "x86_64", ("2.1.0", "2.15.0"), "code for 9.0"),
        ("10.0", "x86_64", ("2.8.0", "2.15.0"), "code for 10.0"),
        ("12.1", "aarch64", ("2.11.0", "2.15.0"), "code for 12.0"),
        ("11.0", "aarch64", ("2.11.0", "2.15.0"), "code for 11.0"),
        ("8.6", "x86_64", ("1.8.0", "1.12.1"), "code for 8.6, as upstream says, not read"),
        ("11.0", "aarch64", ("2.9.0", "2.10.0"), "code for 11.0, as upstream says, not read"),
        ("7.5", "x86_64", ("2.15.0", "2.15.0"), "code for 7.5, not in all of its libraries"),
    ],
)
def test_a_gpu_is_served_from_a_first_to_a_last_release(
    shipped: Facts, name: str, arch: str, releases: tuple[str, str], support: str
) -> None:
    gpu = find_capability(shipped, name)
    supporting = [
        release
        for release, text in official_support.support_by_release(shipped, gpu, arch).items()
        if text == support
    ]
    assert (supporting[0], supporting[-1]) == releases


def test_code_goes_before_ptx_if_both_were_read(shipped: Facts) -> None:
    reading = next(
        reading
        for reading in shipped.official.wheel_code
        if (reading.package, reading.release, reading.arch) == ("torch", "2.4.1", "x86_64")
    )
    alike = replace(reading, code={}, required_packages=())
    with_code = replace(alike, cuda="11.8", kernel_targets="9.0")
    with_ptx = replace(alike, cuda="12.1", kernel_targets="8.0+PTX")
    facts = change_facts(shipped, official={"wheel_code": (with_code, with_ptx)})
    support = official_support.support_by_release(facts, find_capability(shipped, "9.0"), "x86_64")
    assert support["2.4.1"] == "code for 9.0"


@pytest.mark.parametrize("name", ["5.3", "7.2", "8.7"])
def test_boards_run_no_code_for_cards(shipped: Facts, name: str) -> None:
    gpu = find_capability(shipped, name)
    assert official_support.support_by_release(shipped, gpu, "aarch64") == {}


def test_support_that_is_not_recorded_is_not_guessed(shipped: Facts) -> None:
    kepler = official_support.support_by_release(shipped, find_capability(shipped, "3.7"), "x86_64")
    assert kepler["2.7.1"] == official_support.UNRECORDED
    # The toolkits of builds without a record make no code for the newest GPUs.
    newest = official_support.support_by_release(
        shipped, find_capability(shipped, "12.1"), "x86_64"
    )
    assert official_support.UNRECORDED not in newest.values()


def test_the_newest_wheel_for_a_gpu_was_read_and_fits(shipped: Facts) -> None:
    releases = shipped.releases["torch"][-14:]
    for gpu in shipped.gpus.capabilities:
        host = with_gpus(ARM_HOST if gpu.tegra else HOST, [gpu.name])
        fitting = {
            reading.release
            for reading in shipped.official.wheel_code
            if (reading.package, reading.arch) == ("torch", host.arch)
            and not wheel_fit.code_gap(shipped, reading, gpu)
        }
        versions = [release.version for release in releases if release.version in fitting]
        wheel = published.newest_published(shipped, releases, host)
        if not versions:
            assert wheel is None
            continue
        assert wheel is not None
        assert wheel.version == versions[-1]
        assert wheel.is_known_to_fit


def test_several_gpus_need_a_wheel_that_serves_all_of_them(shipped: Facts) -> None:
    releases = shipped.releases["torch"]
    wheel = published.newest_published(shipped, releases, with_gpus(HOST, ["3.7", "5.2"]))
    assert wheel is not None
    assert wheel.version == "2.0.1"
    board_and_card = with_gpus(ARM_HOST, ["8.6", "8.7"])
    assert published.newest_published(shipped, releases, board_and_card) is None


def test_wheels_for_aarch64_on_pypi_have_cuda_from_2_11_on(shipped: Facts) -> None:
    grace = with_gpus(ARM_HOST, ["9.0"])
    versions: list[str] = []
    for release in shipped.releases["torch"]:
        wheel = published.newest_published(shipped, [release], grace)
        if wheel is not None:
            assert wheel.code
            versions.append(wheel.version)
    assert versions[0] == "2.11.0"
