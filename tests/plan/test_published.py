"""Published wheels: which there are, whom they serve, and when one would do as well as a build."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchmill.config import cell_lookup, matrix
from torchmill.config.arch_list import official_arch_list
from torchmill.config.model import Capability, Facts, Gpu, Host, Options, PublishedWheel, Source
from torchmill.plan import build_plan, published
from torchmill.plan.published import with_gpus

HOST = Host("x86_64", "linux", cores=16, memory=64 * 2**30, glibc="2.36")
K80, GTX960, RTX3090, H100 = Gpu("Tesla K80", "3.7"), Gpu("GTX 960", "5.2"), Gpu("RTX 3090", "8.6"), Gpu("H100", "9.0")


# CUDA's rules of compatibility, stated once more: the suite's own are in config/arch_list.py.


def number(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def runs(entry: str, gpu: Capability, chips: set[str]) -> str | None:
    """Say by what an entry of a list runs on a GPU: binaries within a major number and upwards, PTX upwards."""
    written = entry.removesuffix("+PTX")
    code, card = number(written), number(gpu.name)
    if code == card or (code[0] == card[0] and code[1] < card[1] and not {written, gpu.name} & chips):
        return f"code for {written}"
    return f"PTX of {written}" if entry != written and code <= card else None


def best(entries: list[str], gpu: Capability, chips: set[str]) -> str | None:
    ways = [way for entry in entries if (way := runs(entry, gpu, chips))]
    return max(ways, key=lambda way: (way.startswith("code"), number(way.split()[-1])), default=None)


def recorded(facts: Facts, arch: str) -> dict[str, list[str]]:
    """Return the entries of all official builds of each release for a machine."""
    return {
        release.version: [
            entry
            for said in release.cuda_official.values()
            for entry in said.capabilities.get(arch, "").split(";")
            if entry
        ]
        for release in facts.releases["torch"]
    }


@pytest.mark.parametrize("arch", published.OFFICIAL_ARCHES)
def test_every_gpu_runs_exactly_what_cuda_lets_it_run(shipped: Facts, arch: str) -> None:
    chips = {one.name for one in shipped.capabilities if one.tegra}
    compared, wrong = 0, []
    for gpu in shipped.capabilities:
        ways = published.official_ways(shipped, gpu, arch)
        for release, entries in recorded(shipped, arch).items():
            compared += 1
            told = None if ways.get(release) == published.UNRECORDED else ways.get(release)
            if told != best(entries, gpu, chips):
                wrong.append((gpu.name, release, told, entries))
    assert wrong == []
    assert compared == len(shipped.capabilities) * len(shipped.releases["torch"]) > 1000


@pytest.mark.parametrize(
    ("gpu", "arch", "served", "way"),
    [
        ("3.7", "x86_64", ("1.4.0", "2.6.0"), "code for 3.7"),
        ("5.2", "x86_64", ("1.0.0", "2.14.1"), "code for 5.0"),
        ("6.1", "x86_64", ("1.6.0", "2.14.1"), "code for 6.0"),
        ("7.0", "x86_64", ("1.0.0", "2.14.1"), "code for 7.0"),
        ("8.6", "x86_64", ("1.8.0", "2.15.0"), "code for 8.6"),
        ("8.9", "x86_64", ("1.8.0", "2.15.0"), "code for 8.6"),
        ("9.0", "x86_64", ("2.0.0", "2.15.0"), "code for 9.0"),
        ("10.0", "x86_64", ("2.7.0", "2.15.0"), "code for 10.0"),
        ("12.1", "aarch64", ("2.9.0", "2.15.0"), "code for 12.0"),
        ("11.0", "aarch64", ("2.9.0", "2.15.0"), "code for 11.0"),
    ],
)
def test_known_gpus_are_served_from_one_release_to_another(
    shipped: Facts, gpu: str, arch: str, served: tuple[str, str], way: str
) -> None:
    capability = shipped.capability(gpu)
    assert capability is not None
    found = [release for release, by in published.official_ways(shipped, capability, arch).items() if by == way]
    assert (found[0], found[-1]) == served


def test_boards_run_nothing_that_was_made_for_cards(shipped: Facts) -> None:
    for name in ("5.3", "7.2", "8.7"):
        capability = shipped.capability(name)
        assert capability is not None
        assert published.official_ways(shipped, capability, "aarch64") == {}


def test_what_is_not_recorded_is_not_guessed(shipped: Facts) -> None:
    kepler, newest = shipped.capability("3.7"), shipped.capability("12.1")
    assert kepler is not None
    assert newest is not None
    assert published.official_ways(shipped, kepler, "x86_64")["2.7.1"] == published.UNRECORDED
    assert published.UNRECORDED not in published.official_ways(shipped, newest, "x86_64").values(), "11.8 makes none"


def test_the_newest_wheel_is_the_newest_that_is_known_to_run(shipped: Facts) -> None:
    chips, releases = {one.name for one in shipped.capabilities if one.tegra}, shipped.releases["torch"][-12:]
    there = {
        arch: [one for release in releases for one in published.published_wheels(shipped, release, arch) if one.code]
        for arch in published.OFFICIAL_ARCHES
    }
    for gpu in shipped.capabilities:
        arch = "aarch64" if gpu.tegra else "x86_64"
        able = [one for one in there[arch] if best((one.code or "").split(";"), gpu, chips)]
        wheel = published.newest_published(shipped, releases, with_gpus(replace(HOST, arch=arch), [gpu.name]))
        assert (wheel and wheel.version.partition("+")[0]) == (able[-1].version.partition("+")[0] if able else None)


def test_several_gpus_need_one_wheel_that_serves_them_all(shipped: Facts) -> None:
    wheel = published.newest_published(shipped, shipped.releases["torch"], with_gpus(HOST, ["3.7", "5.2"]))
    assert wheel is not None
    assert wheel.version == "2.6.0+cu118"
    board_and_card = with_gpus(replace(HOST, arch="aarch64"), ["8.6", "8.7"])
    assert published.newest_published(shipped, shipped.releases["torch"], board_and_card) is None


# When one would do as well


def wheel_for(facts: Facts, name: str, tag: str, host: Host = HOST, **asked: Any) -> PublishedWheel | None:
    cell = cell_lookup.find_cell(facts, name, host.arch, matrix.find_release(facts, "torch", tag))
    return build_plan.compute_plan(facts, cell, host, Options(**asked)).published


INDEX = "--extra-index-url https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    ("name", "tag", "command"),
    [
        ("wheel-3.12-cu121", "v2.4.1", "pip install torch==2.4.1"),
        ("wheel-3.12-cu118", "v2.4.1", f"pip install torch==2.4.1+cu118 {INDEX}/cu118"),
        ("wheel-3.12-cu122", "v2.4.1", "pip install torch==2.4.1"),
        ("wheel-3.12-cpu", "v2.4.1", f"pip install torch==2.4.1+cpu {INDEX}/cpu"),
        ("wheel-3.9-cu102", "v1.8.1", "pip install torch==1.8.1"),
        ("vision-3.12-cu118", "v2.4.1", f"pip install torchvision==0.19.1+cu118 {INDEX}/cu118"),
        ("wheel-3.10-cpu-arm64", "v2.4.1", "pip install torch==2.4.1"),
        ("wheel-3.10-cpu-aarch64", "v2.4.1", "pip install torch==2.4.1"),
        ("wheel-3.12-cu130-aarch64", "v2.11.0", "pip install torch==2.11.0"),
        ("wheel-3.12-cu126-aarch64", "v2.11.0", f"pip install torch==2.11.0+cu126 {INDEX}/cu126"),
        ("wheel-3.15-cpu", "v2.14.1", None),  # upstream made no wheel for it
        ("wheel-3.10-cpu-aarch64", "v1.13.1", None),  # its METADATA requires what only x86_64 has
        ("wheel-3.8-cu110", "v1.8.1", None),  # 11.1 needs a newer driver, 10.2 is of another major version
        ("scatter-3.12-cpu", "v2.4.1", None),
        # torchaudio 2.11.0 goes with torch up to 2.15, but its wheels are of the CUDA of torch 2.11.0, and check that
        ("audio-3.12-cu130", "v2.11.0", "pip install torchaudio==2.11.0"),
        ("audio-3.12-cu132", "v2.15.0", "pip install torchaudio==2.11.0"),
    ],
)
def test_a_published_wheel_is_named_where_there_is_one(
    shipped: Facts, name: str, tag: str, command: str | None
) -> None:
    wheel = wheel_for(shipped, name, tag)
    assert (wheel and wheel.command) == command


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({"gpus": (RTX3090,), "driver": "535.104.05"}, "2.4.1"),
        ({"gpus": (RTX3090,), "driver": "470.57.02"}, "2.4.1+cu118"),  # it is too old for CUDA 12
        ({"gpus": (RTX3090,), "driver": "440.33"}, None),
        ({"gpus": (K80, GTX960), "driver": "535.104.05"}, "2.4.1+cu118"),  # 12.1 has no code for the K80
        ({"gpus": (Gpu("RTX 5090", "12.0"),), "driver": "575.57"}, None),
        ({"gpus": (Gpu("a board that nobody knows"),)}, None),
        ({"glibc": "2.12"}, None),
    ],
)
def test_what_is_known_of_the_machine_counts(shipped: Facts, changes: dict[str, Any], version: str | None) -> None:
    wheel = wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1", replace(HOST, **changes))
    assert (wheel and wheel.version) == version


@pytest.mark.parametrize(
    "asked",
    [{"settings": {"CFLAGS": "-O3"}}, {"arch_list": "8.6"}, {"toolkit": "12.4"}, {"platform": "linux"}],
)
def test_options_that_make_another_wheel_leave_it_out(shipped: Facts, asked: dict[str, Any]) -> None:
    assert wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1", **asked) is None
    usual: list[dict[str, Any]] = [{"label": "git", "jobs": 2, "memory": 2**33, "guard": False}]
    for how in (*usual, {"shard": "1/2", "parts": "/p", "until": 9.0}):
        assert wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1", **how) is not None


@pytest.mark.parametrize(("provider", "there"), [("git", True), ("path", False)])
def test_a_source_of_the_users_makes_another_wheel(shipped: Facts, provider: str, there: bool, tmp_path: Path) -> None:
    source = Source("torch", "2.4.1", "v2.4.1", provider, "there", None, tmp_path, verified=False)
    cell = cell_lookup.find_cell(shipped, "wheel-3.12-cpu", "x86_64", matrix.find_release(shipped, "torch", "v2.4.1"))
    assert bool(build_plan.compute_plan(shipped, cell, HOST, Options(), source).published) == there


def test_a_sentence_says_what_is_to_be_known_beside_the_command(shipped: Facts) -> None:
    told = str(wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1"))
    assert told == (
        "a known official wheel with CUDA 12.1 would do as well: `pip install torch==2.4.1`; "
        "it needs driver 525.60.13 or newer"
    )
    windows = str(wheel_for(shipped, "wheel-3.12-cu121-amd64", "v2.4.1"))
    assert "for which GPUs it has code is not recorded; it needs driver 528.33 or newer" in windows
    assert str(wheel_for(shipped, "vision-3.12-cpu", "v2.4.1")).endswith("; it goes with the official torch")


def test_a_wheel_whose_cudnn_has_no_code_for_a_gpu_says_so(shipped: Facts) -> None:
    def newest(*gpus: Gpu, before: str = "") -> tuple[str, str]:
        releases = shipped.releases["torch"]
        some = [one for one in releases if not before or one.version == before]
        wheel = published.newest_published(shipped, some, replace(HOST, gpus=gpus))
        assert wheel is not None
        return wheel.version, "; ".join(wheel.remarks)

    version, remarks = newest(K80, GTX960)
    assert version == "2.6.0+cu118"
    assert "its cuDNN 9.1.0.70 has no code for 3.7: set torch.backends.cudnn.enabled = False there" in remarks
    assert "cuDNN" not in newest(GTX960)[1] + newest(RTX3090)[1] + newest(K80, before="2.3.1")[1]


@pytest.mark.parametrize(
    ("name", "tag", "told"),
    [
        (
            "wheel-3.15-cpu",
            "v2.14.1",
            "upstream made wheels for Python 3.10, 3.11, 3.12, 3.13, 3.14, 3.14t on x86_64 only",
        ),
        ("wheel-3.8-cu110", "v1.8.1", "upstream made wheels with CUDA 10.1, 10.2, 11.1 only: this one has to be built"),
        ("conv1d-3.12-cu118", "v2.6.0", "where to get upstream's wheel is not recorded"),
        ("wheel-3.9-cpu", "v1.8.1", "where to get upstream's wheel is not recorded"),
    ],
)
def test_why_there_is_none_is_told(shipped: Facts, name: str, tag: str, told: str) -> None:
    cell = cell_lookup.find_cell(shipped, name, "x86_64", matrix.find_release(shipped, "torch", tag))
    assert published.find_published(shipped, cell, HOST, official_arch_list(shipped, cell)) is None
    assert published.why_unpublished(shipped, cell).startswith(told)


def test_no_wheel_is_named_that_pip_does_not_install_on_the_system(shipped: Facts) -> None:
    musl = replace(HOST, glibc=None, complete=True)
    assert wheel_for(shipped, "wheel-3.12-cpu", "v2.6.0", musl) is None
    assert wheel_for(shipped, "wheel-3.12-cpu", "v2.6.0", replace(musl, complete=False)) is not None
    mac = Host("arm64", "macos", cores=8, memory=16 * 2**30, complete=True)
    for macos, tag, there in (("13.6", "v2.15.0", False), ("14.5", "v2.15.0", True), ("13.6", "v2.11.0", True)):
        wheel = wheel_for(shipped, "wheel-3.12-cpu", tag, replace(mac, versions={"macos": macos}))
        assert (wheel is not None) == there
