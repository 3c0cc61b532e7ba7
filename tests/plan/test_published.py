"""Published wheels: which there are, whom they serve, and when one would do as well as a build."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host, HostGpus, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, published, wheel_fit
from torchmill.plan.arch_choice import official_arch_list
from torchmill.plan.build_options import Options
from torchmill.plan.published import with_gpus
from torchmill.plan.published_wheel import PublishedWheel

PROCESSORS = {  # in the words of /proc/cpuinfo
    "x86_64": ("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "bmi1", "bmi2", "avx512f"),
    "aarch64": (
        *(
            "asimd",
            "aes",
            "pmull",
            "crc32",
            "atomics",
            "fphp",
            "asimdhp",
            "asimdrdm",
            "lrcpc",
            "asimddp",
            "sve",
        ),
    ),
}
CORTEX_A72 = ("fp", "asimd", "evtstrm", "crc32", "cpuid")  # of a Raspberry Pi 4
HOST = Host(
    "x86_64",
    "linux",
    HostResources(16, 64 * 2**30),
    platform=HostPlatform(glibc="2.36", processor_features=PROCESSORS["x86_64"]),
)
K80, GTX960, RTX3090, H100 = (
    Gpu("Tesla K80", "3.7"),
    Gpu("GTX 960", "5.2"),
    Gpu("RTX 3090", "8.6"),
    Gpu("H100", "9.0"),
)


# CUDA's rules of compatibility, stated once more: the suite's own are in config/served_gpus.py.


def number(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def runs(entry: str, gpu: Capability, chips: set[str]) -> str | None:
    """Say by what an entry of a list runs on a GPU: binaries within a major number and upwards, PTX upwards."""
    written = entry.removesuffix("+PTX")
    code, card = number(written), number(gpu.name)
    if code == card or (
        code[0] == card[0] and code[1] < card[1] and not {written, gpu.name} & chips
    ):
        return f"code for {written}"
    return f"PTX of {written}" if entry != written and code <= card else None


def recorded(facts: Facts, arch: str) -> dict[str, list[str]]:
    """Return the entries of all official builds of each release for a machine: as read, else as upstream says."""
    found: dict[str, list[str]] = {}
    for release in facts.releases["torch"]:
        for cuda, said in release.cuda_official.items():
            read = [
                one.own
                for one in wheel_fit.find_readings(facts, "torch", release.version, arch, cuda)
            ]
            for listed in read or [said.capabilities.get(arch, "")]:
                found.setdefault(release.version, []).extend(filter(None, listed.split(";")))
    return found


@pytest.mark.parametrize("arch", published.OFFICIAL_ARCHES)
def test_every_gpu_runs_exactly_what_cuda_lets_it_run(shipped: Facts, arch: str) -> None:
    chips = {one.name for one in shipped.capabilities if one.tegra}
    compared, wrong = 0, []
    for gpu in shipped.capabilities:
        ways = published.official_support(shipped, gpu, arch)
        for release, entries in recorded(shipped, arch).items():
            compared += 1
            told = ways.get(release, published.UNRECORDED)
            possible = {way for entry in entries if (way := runs(entry, gpu, chips))}
            if told == published.UNRECORDED and possible:
                wrong.append((gpu.name, release, told, entries))
            if told != published.UNRECORDED and told.partition(",")[0] not in possible:
                wrong.append((gpu.name, release, told, entries))
    assert wrong == []
    assert compared > 1000


@pytest.mark.parametrize(
    ("gpu", "arch", "served", "way"),
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
def test_known_gpus_are_served_from_one_release_to_another(
    shipped: Facts, gpu: str, arch: str, served: tuple[str, str], way: str
) -> None:
    found = [
        release
        for release, by in published.official_support(shipped, of(shipped, gpu), arch).items()
        if by == way
    ]
    assert (found[0], found[-1]) == served


def of(facts: Facts, name: str) -> Capability:
    found = facts.capability(name)
    assert found is not None
    return found


def test_boards_run_nothing_that_was_made_for_cards(shipped: Facts) -> None:
    for name in ("5.3", "7.2", "8.7"):
        assert published.official_support(shipped, of(shipped, name), "aarch64") == {}


def test_what_is_not_recorded_is_not_guessed(shipped: Facts) -> None:
    kepler, newest = of(shipped, "3.7"), of(shipped, "12.1")
    assert published.official_support(shipped, kepler, "x86_64")["2.7.1"] == published.UNRECORDED
    assert (
        published.UNRECORDED not in published.official_support(shipped, newest, "x86_64").values()
    ), "11.8 makes none"


def test_the_newest_wheel_is_the_newest_that_was_read_and_fits(shipped: Facts) -> None:
    releases = shipped.releases["torch"][-14:]
    for gpu in shipped.capabilities:
        arch = "aarch64" if gpu.tegra else "x86_64"
        where = with_gpus(
            change_host(HOST, platform={"processor_features": PROCESSORS[arch]}, arch=arch),
            [gpu.name],
        )
        able = [
            one.release
            for one in shipped.wheel_code
            if (one.package, one.arch) == ("torch", arch)
            and not wheel_fit.code_gap(shipped, one, gpu)
        ]
        there = [release.version for release in releases if release.version in able]
        wheel = published.newest_published(shipped, releases, where)
        assert (wheel and wheel.version) == (there[-1] if there else None)
        assert wheel is None or wheel.would_do


def test_several_gpus_need_one_wheel_that_serves_them_all(shipped: Facts) -> None:
    wheel = published.newest_published(
        shipped, shipped.releases["torch"], with_gpus(HOST, ["3.7", "5.2"])
    )
    assert wheel is not None
    assert wheel.version == "2.0.1"
    board_and_card = with_gpus(
        change_host(HOST, platform={"processor_features": PROCESSORS["aarch64"]}, arch="aarch64"),
        ["8.6", "8.7"],
    )
    assert published.newest_published(shipped, shipped.releases["torch"], board_and_card) is None


# When one would do as well


def wheel_for(
    facts: Facts, name: str, tag: str, host: Host = HOST, **asked: Any
) -> PublishedWheel | None:
    cell = cell_lookup.find_cell(facts, name, host.arch, find_release(facts, "torch", tag))
    return build_plan.compute_plan(facts, cell, host, Options(**asked)).official.published


INDEX = "--extra-index-url https://download.pytorch.org/whl"
MAC = Host("arm64", "macos", HostResources(8, 2**34))
ARM = Host(
    "aarch64",
    "linux",
    HostResources(8, 2**34),
    platform=HostPlatform(glibc="2.36", processor_features=PROCESSORS["aarch64"]),
)


@pytest.mark.parametrize(
    ("name", "tag", "host", "command", "fit"),
    [
        ("wheel-3.12-cu121", "v2.4.1", HOST, "pip install torch==2.4.1", "fits"),
        (
            "wheel-3.12-cu118",
            "v2.4.1",
            HOST,
            f"pip install torch==2.4.1+cu118 {INDEX}/cu118",
            "cannot tell",
        ),
        ("wheel-3.12-cu122", "v2.4.1", HOST, "pip install torch==2.4.1", "fits"),
        (
            "wheel-3.12-cpu",
            "v2.4.1",
            HOST,
            f"pip install torch==2.4.1+cpu {INDEX}/cpu",
            "cannot tell",
        ),
        ("wheel-3.9-cu102", "v1.8.1", HOST, "pip install torch==1.8.1", "fits"),
        ("vision-3.12-cu121", "v2.4.1", HOST, "pip install torchvision==0.19.1", "fits"),
        (
            "vision-3.12-cu118",
            "v2.4.1",
            HOST,
            f"pip install torchvision==0.19.1+cu118 {INDEX}/cu118",
            "cannot tell",
        ),
        ("wheel-3.10-cpu", "v2.4.1", MAC, "pip install torch==2.4.1", "fits"),
        ("wheel-3.10-cpu", "v2.4.1", ARM, "pip install torch==2.4.1", "fits"),
        ("wheel-3.12-cu130", "v2.11.0", ARM, "pip install torch==2.11.0", "fits"),
        (
            "wheel-3.12-cu126",
            "v2.11.0",
            ARM,
            f"pip install torch==2.11.0+cu126 {INDEX}/cu126",
            "cannot tell",
        ),
        ("wheel-3.15-cpu", "v2.14.1", HOST, None, None),  # upstream made no wheel for it
        (
            "wheel-3.10-cpu",
            "v1.13.1",
            ARM,
            None,
            None,
        ),  # its METADATA requires what only x86_64 has
        (
            "wheel-3.8-cu110",
            "v1.8.1",
            HOST,
            None,
            None,
        ),  # 11.1 needs a newer driver, 10.2 is of another major version
        ("scatter-3.12-cpu", "v2.4.1", HOST, None, None),
    ],
)
def test_a_published_wheel_is_named_where_there_is_one(  # noqa: PLR0917
    shipped: Facts, name: str, tag: str, host: Host, command: str | None, fit: str | None
) -> None:
    wheel = wheel_for(shipped, name, tag, host)
    assert (wheel and wheel.command, wheel and wheel.verdict.fit) == (command, fit)


@pytest.mark.parametrize(
    ("changes", "version", "fit", "why"),
    [
        ({"gpus": {"devices": (RTX3090,), "driver": "535.104.05"}}, "2.4.1", "fits", ""),
        (
            {"gpus": {"devices": (RTX3090,), "driver": "440.33"}},
            "2.4.1",
            "does not fit",
            "needs driver 525.60.13",
        ),
        (
            {"gpus": {"devices": (K80, GTX960), "driver": "535.104.05"}},
            "2.4.1+cu118",
            "cannot tell",
            "script lists 3.7;5.0",
        ),
        (
            {"gpus": {"devices": (Gpu("RTX 5090", "12.0"),), "driver": "575.57"}},
            "2.4.1",
            "does not fit",
            "no code for 12.0",
        ),
        (
            {"gpus": {"devices": (Gpu("a board that nobody knows"),)}},
            "2.4.1",
            "cannot tell",
            "capability of a board that nobody",
        ),
        (
            {"platform": {"glibc": "2.12"}},
            "2.4.1",
            "does not fit",
            "needs glibc 2.17, and this machine has 2.12",
        ),
        (
            {"platform": {"processor_features": ()}},
            "2.4.1",
            "cannot tell",
            "avx2, bmi1, bmi2; this one is not described",
        ),
        (
            {
                "gpus": {"driver": None, "kernel_driver": None},
                "programs": {"unanswered": {"nvidia-smi": "did not answer within 30 s"}},
            },
            "2.4.1",
            "cannot tell",
            "the driver could not be read: nvidia-smi did not answer within 30 s",
        ),
        (
            {"platform": {"processor_features": ("sse2",)}},
            "2.4.1",
            "cannot tell",
            "this one lacks some of these",
        ),
        (
            {"platform": {"glibc": None}, "complete": True},
            "2.4.1",
            "does not fit",
            "C libraries other than glibc",
        ),
    ],
)
def test_what_is_known_of_the_machine_counts(
    shipped: Facts, changes: dict[str, Any], version: str, fit: str, why: str
) -> None:
    wheel = wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1", change_host(HOST, **changes))
    assert wheel is not None
    assert (wheel.version, wheel.verdict.fit) == (version, fit)
    assert why in wheel.verdict.reason
    assert wheel.would_do == ("would do as well" in str(wheel)) == (fit == "fits")


@pytest.mark.parametrize(
    "asked",
    [
        {"settings": {"CFLAGS": "-O3"}},
        {"arch_list": "8.6"},
        {"toolkit": "12.4"},
        {"platform": "linux"},
    ],
)
def test_options_that_make_another_wheel_leave_it_out(
    shipped: Facts, asked: dict[str, Any]
) -> None:
    assert wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1", **asked) is None
    usual: list[dict[str, Any]] = [{"label": "git", "jobs": 2, "memory": 2**33, "guard": False}]
    for how in (*usual, {"shard": "1/2", "parts": "/p", "until": 9.0}):
        assert wheel_for(shipped, "wheel-3.12-cu121", "v2.4.1", **how) is not None


@pytest.mark.parametrize(("provider", "there"), [("git", True), ("path", False)])
def test_a_source_of_the_users_makes_another_wheel(
    shipped: Facts, provider: str, there: bool, tmp_path: Path
) -> None:
    source = Source("torch", "2.4.1", "v2.4.1", provider, "there", None, tmp_path, verified=False)
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.12-cpu", "x86_64", find_release(shipped, "torch", "v2.4.1")
    )
    assert (
        bool(build_plan.compute_plan(shipped, cell, HOST, Options(), source).official.published)
        == there
    )


def test_a_sentence_says_what_is_to_be_known_beside_the_command(shipped: Facts) -> None:
    told = str(
        wheel_for(
            shipped, "wheel-3.12-cu121", "v2.4.1", change_host(HOST, gpus={"devices": (RTX3090,)})
        )
    )
    assert told == (
        "the official wheel with CUDA 12.1, `pip install torch==2.4.1`, would do as well; "
        "it needs driver 525.60.13 or newer"
    )
    windows = str(wheel_for(shipped, "wheel-3.12-cu121-amd64", "v2.4.1"))
    assert "its device code was not read (it is not on PyPI)" in windows
    assert "it needs driver 528.33 or newer" in windows
    unread = str(wheel_for(shipped, "wheel-3.12-cu118", "v2.4.1"))
    assert "cannot tell whether it fits: its device code was not read (it is not on PyPI)" in unread
    assert "upstream's build script lists 3.7;5.0;6.0;7.0;7.5" in unread
    assert str(wheel_for(shipped, "vision-3.12-cpu", "v2.4.1")).endswith(
        "; it goes with the official torch"
    )


# Instances of "it would do" that were not so


def judged(facts: Facts, name: str, tag: str, host: Host, *gpus: Gpu) -> tuple[str, str]:
    wheel = wheel_for(facts, name, tag, change_host(host, gpus={"devices": gpus}))
    assert wheel is not None
    return wheel.verdict.fit, wheel.verdict.reason


def test_a_k40_is_not_served_by_code_for_3_7(shipped: Facts) -> None:
    fit, why = judged(shipped, "wheel-3.7-cu101", "v1.3.1", HOST, Gpu("Tesla K40", "3.5"))
    assert fit == "does not fit"
    assert why == "it has no code for 3.5: its own kernels are for 3.7+PTX;5.0;6.0;6.1;7.0;7.5"
    assert judged(shipped, "wheel-3.7-cu101", "v1.3.1", HOST, K80)[0] == "fits"


def test_what_a_toolkit_cannot_make_is_in_no_wheel_whether_read_or_not(shipped: Facts) -> None:
    fit, why = judged(shipped, "wheel-3.12-cu130", "v2.15.0", HOST, Gpu("Tesla V100", "7.0"))
    assert (fit, why) == ("does not fit", "CUDA 13.0 makes no code that runs on 7.0")
    modern = wheel_for(
        shipped, "wheel-3.12-cu130", "v2.15.0", change_host(HOST, gpus={"devices": (H100,)})
    )
    assert modern is not None
    assert modern.command == "pip install torch==2.15.0", (
        "of CUDA 13.2, read, and with no newer driver"
    )


def test_ptx_of_torchs_own_kernels_alone_is_not_enough(shipped: Facts) -> None:
    fit, why = judged(shipped, "wheel-3.7-cu101", "v1.3.1", HOST, RTX3090)
    assert fit == "does not fit"
    assert why.startswith(
        "it may run, but not all of its libraries have code for 8.6: its own kernels have PTX"
    )
    assert "652 of 1162 fatbins of libtorch.so have none" in why


def test_code_of_libraries_counts(shipped: Facts) -> None:
    told = str(
        wheel_for(
            shipped,
            "wheel-3.12-cu130",
            "v2.14.1",
            change_host(HOST, gpus={"devices": (Gpu("Tesla T4", "7.5"),)}),
        )
    )
    assert "2.14.1 does not fit: it may run" in told
    assert (
        "65 of 65 fatbins of libtorch_cuda_linalg.so have none" in told
    )  # MAGMA was compiled for 8.0 and newer
    assert judged(shipped, "wheel-3.12-cu130", "v2.14.1", HOST, RTX3090)[0] == "fits"


@pytest.mark.parametrize(
    ("tag", "name", "fit"),
    [("v2.10.0", "wheel-3.12-cpu", "does not fit"), ("v2.4.0", "wheel-3.12-cpu", "does not fit")],
)
def test_a_raspberry_pi_has_no_lse_atomics(shipped: Facts, tag: str, name: str, fit: str) -> None:
    found, why = judged(
        shipped, name, tag, change_host(ARM, platform={"processor_features": CORTEX_A72})
    )
    assert found == fit
    assert "this processor has no atomics" in why


def test_the_wheel_of_nvpl_is_not_for_armv8_0(shipped: Facts) -> None:
    board = change_host(ARM, platform={"processor_features": CORTEX_A72})
    fit, why = judged(shipped, "wheel-3.12-cu130", "v2.11.0", board, Gpu("", "8.6"))
    assert fit == "does not fit"
    assert "NVPL" in why


def test_the_aarch64_wheels_of_pypi_have_cuda_from_2_11_on(shipped: Facts) -> None:
    grace = with_gpus(ARM, ["9.0"])
    found = [published.newest_published(shipped, [one], grace) for one in shipped.releases["torch"]]
    able = [one.version for one in found if one]
    assert able[0] == "2.11.0"
    assert all(one.code for one in found if one)


@pytest.mark.parametrize(
    ("name", "tag", "gpu", "said"),
    [
        (
            "wheel-3.12-cu128",
            "v2.10.0",
            Gpu("Tesla P100", "6.0"),
            "2.10.0 does not fit: it has no code for 6.0",
        ),
        (
            "wheel-3.11-cu128",
            "v2.8.0",
            Gpu("GTX 1060", "6.1"),
            "2.8.0 does not fit: it has no code for 6.1",
        ),
        (
            "wheel-3.12-cu128",
            "v2.11.0",
            Gpu("Tesla V100", "7.0"),
            "upstream's build script lists 5.0;6.0;7.0",
        ),
    ],
)
def test_a_wheel_of_another_toolkit_is_named_if_upstream_says_that_it_has_code(
    shipped: Facts, name: str, tag: str, gpu: Gpu, said: str
) -> None:
    host = change_host(HOST, gpus={"devices": (gpu,), "driver": "570.133.20"})
    wheel = wheel_for(shipped, name, tag, host)
    assert wheel is not None
    assert (wheel.version, wheel.verdict.fit) == (f"{tag[1:]}+cu126", "cannot tell")
    assert said in str(wheel)
    old = wheel_for(shipped, name, tag, change_host(host, gpus={"driver": "470.57.02"}))
    assert old is None or old.verdict.fit == "does not fit", (
        "its driver does not run that one, either"
    )


# Only a reading makes a wheel fit


def every_wheel(facts: Facts) -> list[tuple[Release, PublishedWheel]]:
    return [
        (release, wheel)
        for name in ("torch", "torchvision", "torchaudio")
        for release in facts.releases[name]
        for arch in release.arches
        for wheel in published.published_wheels(facts, release, arch)
    ]


def able_machine(facts: Facts, wheel: PublishedWheel, gpu: str) -> Host:
    """Return a machine with all that a wheel may want of one."""
    system = facts.arches[wheel.arch].system
    processor = PROCESSORS.get(wheel.arch, PROCESSORS["x86_64"])
    host = Host(
        wheel.arch,
        system,
        HostResources(8, 2**36),
        platform=HostPlatform(glibc="2.39", processor_features=processor),
        gpus=HostGpus(driver="999.1"),
    )
    return with_gpus(
        change_host(host, programs={"versions": {"macos": "26.0"}}), [gpu] if wheel.toolkit else []
    )


def test_no_fact_without_a_reading_makes_a_wheel_do(shipped: Facts) -> None:
    unread, tried = replace(shipped, wheel_code=()), 0
    for release, wheel in every_wheel(unread):
        for gpu in ("7.0", "8.6", "9.0"):
            tried += 1
            where = able_machine(unread, wheel, gpu)
            verdict = published.judge(unread, release, wheel, where)
            assert verdict.fit != "fits"
            assert "would do" not in str(replace(wheel, verdict=verdict))
            assert "would do" not in str(replace(wheel, verdict=wheel_fit.FITS)), "not even then"
    assert tried > 1000


def test_a_wheel_whose_libraries_were_not_read_cannot_be_told(shipped: Facts) -> None:
    host = change_host(HOST, gpus={"devices": (RTX3090,)})
    assert judged(shipped, "wheel-3.12-cu130", "v2.14.1", host, RTX3090)[0] == "fits"
    fit, why = judged(
        replace(shipped, package_code=()), "wheel-3.12-cu130", "v2.14.1", host, RTX3090
    )
    assert fit == "cannot tell"
    assert "the code of nvidia-" in why


def test_what_was_read_beats_what_is_said(shipped: Facts) -> None:
    lying = [
        replace(one, cuda_official={cuda: replace(said, capabilities={"x86_64": "3.5;8.6"})})
        for one in shipped.releases["torch"]
        for cuda, said in one.cuda_official.items()
        if (one.version, cuda) == ("1.3.1", "10.1")
    ]
    others = [one for one in shipped.releases["torch"] if one.version != "1.3.1"]
    facts = replace(shipped, releases={**shipped.releases, "torch": (*others, *lying)})
    for release, wheel in every_wheel(facts):
        if release.version == "1.3.1" and wheel.toolkit:
            assert wheel.announced == "3.5;8.6"
            verdict = published.judge(facts, release, wheel, with_gpus(HOST, ["3.5"]))
            assert verdict.fit == "does not fit"


def test_an_unknown_processor_is_told_what_is_needed(shipped: Facts) -> None:
    fit, why = judged(
        shipped, "wheel-3.12-cpu", "v2.10.0", change_host(ARM, platform={"processor_features": ()})
    )
    assert fit == "cannot tell"
    assert "needs a processor with atomics" in why


def test_a_misfit_of_a_feature_is_a_remark(shipped: Facts) -> None:
    wheel = wheel_for(
        shipped, "wheel-3.12-cu121", "v2.2.2", change_host(HOST, gpus={"devices": (H100,)})
    )
    assert wheel is not None
    assert wheel.would_do
    assert "it has no code for semi-structured sparsity (cuSPARSELt) on 9.0" in wheel.remarks


def test_an_extension_fits_only_if_its_torch_does(shipped: Facts) -> None:
    told = str(
        wheel_for(
            shipped,
            "vision-3.12-cu130",
            "v2.14.1",
            change_host(HOST, gpus={"devices": (Gpu("Tesla T4", "7.5"),)}),
        )
    )
    assert "does not fit: it goes with the official torch 2.14.1" in told


@pytest.mark.parametrize(
    ("name", "tag", "told"),
    [
        (
            "wheel-3.15-cpu",
            "v2.14.1",
            "upstream made wheels for Python 3.10, 3.11, 3.12, 3.13, 3.14, 3.14t on x86_64 only",
        ),
        (
            "wheel-3.8-cu110",
            "v1.8.1",
            "upstream made wheels with CUDA 10.1, 10.2, 11.1 only: this one has to be built",
        ),
        ("conv1d-3.12-cu118", "v2.6.0", "where to get upstream's wheel is not recorded"),
        ("wheel-3.9-cpu", "v1.8.1", "where to get upstream's wheel is not recorded"),
    ],
)
def test_why_there_is_none_is_told(shipped: Facts, name: str, tag: str, told: str) -> None:
    cell = cell_lookup.find_cell(shipped, name, "x86_64", find_release(shipped, "torch", tag))
    assert published.find_published(shipped, cell, HOST, official_arch_list(shipped, cell)) is None
    assert published.unpublished_reason(shipped, cell).startswith(told)


def test_a_mac_that_is_too_old_is_told(shipped: Facts) -> None:
    for macos, tag, fit in (
        ("13.6", "v2.15.0", "does not fit"),
        ("14.5", "v2.15.0", "fits"),
        ("13.6", "v2.11.0", "fits"),
    ):
        mac = change_host(MAC, programs={"versions": {"macos": macos}}, complete=True)
        assert judged(shipped, "wheel-3.12-cpu", tag, mac)[0] == fit


@pytest.mark.parametrize(
    ("tags", "arch", "glibc"),
    [
        (["manylinux1_x86_64", "macosx_11_0_arm64"], "x86_64", "2.17"),
        (["manylinux2014_aarch64", "manylinux_2_28_x86_64"], "x86_64", "2.28"),
        (["manylinux2014_aarch64", "manylinux_2_28_x86_64"], "aarch64", "2.17"),
        (["manylinux_2_28_aarch64", "manylinux_2_35_aarch64"], "aarch64", "2.28"),
        (["win_amd64", "linux_x86_64"], "x86_64", None),
        ([], "x86_64", None),
    ],
)
def test_the_official_tags_promise_a_glibc(tags: list[str], arch: str, glibc: str | None) -> None:
    assert published.official_glibc(tags, arch) == glibc
