"""Published wheels: which is named for a build, and whether it would do on a machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.changed_facts import change_facts, change_groups
from tests.support.hosts import change_host
from tests.support.processors import CORTEX_A72, PROCESSORS
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host, HostGpus, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, published, wheel_fit
from torchmill.plan.arch_choice import official_arch_list
from torchmill.plan.build_options import Options
from torchmill.plan.published import with_gpus
from torchmill.plan.published_wheel import PublishedWheel

HOST = Host(
    "x86_64",
    "linux",
    HostResources(16, 64 * 2**30),
    platform=HostPlatform(glibc="2.36", processor_features=PROCESSORS["x86_64"]),
)
MAC = Host("arm64", "macos", HostResources(8, 2**34))
ARM = Host(
    "aarch64",
    "linux",
    HostResources(8, 2**34),
    platform=HostPlatform(glibc="2.36", processor_features=PROCESSORS["aarch64"]),
)
RASPBERRY_PI = change_host(ARM, platform={"processor_features": CORTEX_A72})
K80 = Gpu("Tesla K80", "3.7")
GTX_960 = Gpu("GTX 960", "5.2")
TESLA_T4 = Gpu("Tesla T4", "7.5")
RTX_3090 = Gpu("RTX 3090", "8.6")
H100 = Gpu("H100", "9.0")
PYG = "https://data.pyg.org/whl"
INDEX = "--extra-index-url https://download.pytorch.org/whl"


def find_wheel(
    facts: Facts, name: str, tag: str, host: Host = HOST, **options: Any
) -> PublishedWheel | None:
    """Return the published wheel that the plan of a build names."""
    cell = cell_lookup.find_cell(facts, name, host.arch, find_release(facts, "torch", tag))
    return build_plan.compute_plan(facts, cell, host, Options(**options)).official.published


def wheel_for_gpus(
    facts: Facts, name: str, tag: str, *gpus: Gpu, host: Host = HOST
) -> PublishedWheel:
    """Return the published wheel for a machine that has some GPUs."""
    wheel = find_wheel(facts, name, tag, change_host(host, gpus={"devices": gpus}))
    assert wheel is not None
    return wheel


# Which wheel is named


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
        # Its METADATA requires packages that there are for x86_64 only.
        ("wheel-3.10-cpu", "v1.13.1", ARM, None, None),
        # 11.1 needs a newer driver, 10.2 is of another major version.
        ("wheel-3.8-cu110", "v1.8.1", HOST, None, None),
        (
            "scatter-3.12-cpu",
            "v2.4.1",
            HOST,
            f"pip install torch-scatter==2.1.2+pt24cpu -f {PYG}/torch-2.4.0+cpu.html",
            "cannot tell",
        ),
        ("xformers-3.12-cu128", "v2.10.0", HOST, "pip install xformers==0.0.35", "cannot tell"),
        ("scatter-3.12-cpu", "v2.15.0", HOST, None, None),
    ],
)
def test_a_plan_names_the_published_wheel(  # noqa: PLR0917 - a build, and the wheel
    shipped: Facts, name: str, tag: str, host: Host, command: str | None, fit: str | None
) -> None:
    wheel = find_wheel(shipped, name, tag, host)
    if wheel is None:
        assert command is None
        return
    assert wheel.command == command
    assert wheel.verdict.fit == fit


@pytest.mark.parametrize(
    "options",
    [
        {"settings": {"CFLAGS": "-O3"}},
        {"arch_list": "8.6"},
        {"toolkit": "12.4"},
        {"platform": "linux"},
    ],
)
def test_no_wheel_is_named_if_options_change_the_wheel(
    shipped: Facts, options: dict[str, Any]
) -> None:
    assert find_wheel(shipped, "wheel-3.12-cu121", "v2.4.1", **options) is None


@pytest.mark.parametrize(
    "options",
    [
        {"label": "git", "jobs": 2, "memory": 2**33, "guard": False},
        {"shard": "1/2", "parts": "/p", "until": 9.0},
    ],
)
def test_a_wheel_is_named_if_options_change_only_the_build(
    shipped: Facts, options: dict[str, Any]
) -> None:
    assert find_wheel(shipped, "wheel-3.12-cu121", "v2.4.1", **options) is not None


@pytest.mark.parametrize(("provider", "is_named"), [("git", True), ("path", False)])
def test_no_wheel_is_named_for_a_source_of_the_user(
    shipped: Facts, provider: str, is_named: bool, tmp_path: Path
) -> None:
    source = Source("torch", "2.4.1", "v2.4.1", provider, "there", None, tmp_path, verified=False)
    release = find_release(shipped, "torch", "v2.4.1")
    cell = cell_lookup.find_cell(shipped, "wheel-3.12-cpu", "x86_64", release)
    plan = build_plan.compute_plan(shipped, cell, HOST, Options(), source)
    assert (plan.official.published is not None) is is_named


@pytest.mark.parametrize(
    ("name", "tag", "gpu", "text"),
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
    shipped: Facts, name: str, tag: str, gpu: Gpu, text: str
) -> None:
    host = change_host(HOST, gpus={"devices": (gpu,), "driver": "570.133.20"})
    wheel = find_wheel(shipped, name, tag, host)
    assert wheel is not None
    assert wheel.version == f"{tag[1:]}+cu126"
    assert wheel.verdict.fit == "cannot tell"
    assert text in str(wheel)
    # A driver that does not run the other toolkit either leaves no wheel that may fit.
    wheel = find_wheel(shipped, name, tag, change_host(host, gpus={"driver": "470.57.02"}))
    assert wheel is None or wheel.verdict.fit == "does not fit"


@pytest.mark.parametrize(
    ("name", "tag", "reason"),
    [
        (
            "wheel-3.15-cpu",
            "v2.14.1",
            "PyPI has no wheel for Python 3.15 on x86_64, but for 3.10, 3.11, 3.12, 3.13, 3.14, 3.14t",
        ),
        (
            "wheel-3.8-cu110",
            "v1.8.1",
            "no wheel of upstream with CUDA 11.0 is recorded, but with CUDA 10.1, 10.2, 11.1",
        ),
        (
            "conv1d-3.12-cu130",
            "v2.15.0",
            "no wheel of causal-conv1d for torch 2.15.0 with CUDA 13.0 and Python 3.12 on x86_64",
        ),
        ("wheel-3.9-cpu", "v1.8.1", "where to get upstream's wheel is not recorded"),
    ],
)
def test_the_reason_for_no_wheel_is_named(shipped: Facts, name: str, tag: str, reason: str) -> None:
    cell = cell_lookup.find_cell(shipped, name, "x86_64", find_release(shipped, "torch", tag))
    listed = official_arch_list(shipped, cell)
    assert published.find_published(shipped, cell, HOST, listed) is None
    assert published.unpublished_reason(shipped, cell).startswith(reason)


# Whether it fits a machine


@pytest.mark.parametrize(
    ("changes", "version", "fit", "reason"),
    [
        ({"gpus": {"devices": (RTX_3090,), "driver": "535.104.05"}}, "2.4.1", "fits", ""),
        (
            {"gpus": {"devices": (RTX_3090,), "driver": "440.33"}},
            "2.4.1",
            "does not fit",
            "needs driver 525.60.13",
        ),
        (
            {"gpus": {"devices": (K80, GTX_960), "driver": "470.256.02"}},
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
def test_a_wheel_is_judged_by_the_properties_of_a_machine(
    shipped: Facts, changes: dict[str, Any], version: str, fit: str, reason: str
) -> None:
    host = change_host(HOST, **changes)
    wheel = find_wheel(shipped, "wheel-3.12-cu121", "v2.4.1", host)
    assert wheel is not None
    assert (wheel.version, wheel.verdict.fit) == (version, fit)
    assert reason in wheel.verdict.reason
    assert wheel.is_known_to_fit is (fit == "fits")
    assert ("would do as well" in str(wheel)) is (fit == "fits")


@pytest.mark.parametrize(
    ("macos", "tag", "fit"),
    [
        ("13.6", "v2.15.0", "does not fit"),
        ("14.5", "v2.15.0", "fits"),
        ("13.6", "v2.11.0", "fits"),
    ],
)
def test_a_wheel_needs_a_macos_as_new_as_its_tag(
    shipped: Facts, macos: str, tag: str, fit: str
) -> None:
    mac = change_host(MAC, programs={"versions": {"macos": macos}}, complete=True)
    wheel = find_wheel(shipped, "wheel-3.12-cpu", tag, mac)
    assert wheel is not None
    assert wheel.verdict.fit == fit


def test_a_sentence_has_the_command_and_the_remarks(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu121", "v2.4.1", RTX_3090)
    assert str(wheel) == (
        "the official wheel with CUDA 12.1, `pip install torch==2.4.1`, would do as well; "
        "it needs driver 525.60.13 or newer"
    )
    extension = str(find_wheel(shipped, "vision-3.12-cpu", "v2.4.1"))
    assert extension.endswith("; it goes with the official torch")


def test_a_sentence_on_a_wheel_that_was_not_read_says_so(shipped: Facts) -> None:
    windows = str(find_wheel(shipped, "wheel-3.12-cu121-amd64", "v2.4.1"))
    assert "its device code was not read (it is not on PyPI)" in windows
    assert "it needs driver 528.33 or newer" in windows
    linux = str(find_wheel(shipped, "wheel-3.12-cu118", "v2.4.1"))
    assert "cannot tell whether it fits: its device code was not read (it is not on PyPI)" in linux
    assert "upstream's build script lists 3.7;5.0;6.0;7.0;7.5" in linux


# Wheels that were once said to fit, and did not


def test_a_k40_is_not_served_by_code_for_3_7(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "wheel-3.7-cu101", "v1.3.1", Gpu("Tesla K40", "3.5"))
    assert wheel.verdict.fit == "does not fit"
    reason = "it has no code for 3.5: its own kernels are for 3.7+PTX;5.0;6.0;6.1;7.0;7.5"
    assert wheel.verdict.reason == reason
    assert wheel_for_gpus(shipped, "wheel-3.7-cu101", "v1.3.1", K80).verdict.fit == "fits"


def test_no_wheel_has_code_that_its_toolkit_cannot_make(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.15.0", Gpu("Tesla V100", "7.0"))
    assert wheel.verdict.fit == "does not fit"
    assert wheel.verdict.reason == "CUDA 13.0 makes no code that runs on 7.0"


def test_a_wheel_of_a_newer_toolkit_stands_for_a_build(shipped: Facts) -> None:
    """That of PyPI has CUDA 13.2: it was read, and needs no newer driver than 13.0 does."""
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.15.0", H100)
    assert wheel.command == "pip install torch==2.15.0"


def test_ptx_of_torchs_own_kernels_is_not_enough(shipped: Facts) -> None:
    verdict = wheel_for_gpus(shipped, "wheel-3.7-cu101", "v1.3.1", RTX_3090).verdict
    assert verdict.fit == "does not fit"
    assert verdict.reason.startswith(
        "it may run, but not all of its libraries have code for 8.6: its own kernels have PTX"
    )
    assert "652 of 1162 fatbins of libtorch.so have none" in verdict.reason


def test_the_code_of_libraries_counts(shipped: Facts) -> None:
    sentence = str(wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.14.1", TESLA_T4))
    assert "2.14.1 does not fit: it may run" in sentence
    # MAGMA was compiled for 8.0 and newer.
    assert "65 of 65 fatbins of libtorch_cuda_linalg.so have none" in sentence
    assert wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.14.1", RTX_3090).verdict.fit == "fits"


@pytest.mark.parametrize("tag", ["v2.10.0", "v2.4.0"])
def test_a_raspberry_pi_has_no_lse_atomics(shipped: Facts, tag: str) -> None:
    verdict = wheel_for_gpus(shipped, "wheel-3.12-cpu", tag, host=RASPBERRY_PI).verdict
    assert verdict.fit == "does not fit"
    assert "this processor has no atomics" in verdict.reason


def test_wheels_with_nvpl_are_not_for_armv8_0(shipped: Facts) -> None:
    gpu = Gpu("", "8.6")
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.11.0", gpu, host=RASPBERRY_PI)
    assert wheel.verdict.fit == "does not fit"
    assert "NVPL" in wheel.verdict.reason


def test_the_needs_of_a_wheel_are_named_if_the_processor_is_not_described(
    shipped: Facts,
) -> None:
    host = change_host(ARM, platform={"processor_features": ()})
    verdict = wheel_for_gpus(shipped, "wheel-3.12-cpu", "v2.10.0", host=host).verdict
    assert verdict.fit == "cannot tell"
    assert "needs a processor with atomics" in verdict.reason


def test_a_gap_in_a_library_for_one_feature_is_a_remark(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu121", "v2.2.2", H100)
    assert wheel.is_known_to_fit
    assert "it has no code for semi-structured sparsity (cuSPARSELt) on 9.0" in wheel.remarks


def test_an_extension_fits_only_if_its_torch_does(shipped: Facts) -> None:
    sentence = str(wheel_for_gpus(shipped, "vision-3.12-cu130", "v2.14.1", TESLA_T4))
    assert "does not fit: it goes with the official torch 2.14.1" in sentence


# Only a reading makes a wheel fit


def all_wheels(facts: Facts) -> Iterator[tuple[Release, PublishedWheel]]:
    for name in ("torch", "torchvision", "torchaudio"):
        for release in facts.releases[name]:
            for arch in release.arches:
                for wheel in published.published_wheels(facts, release, arch):
                    yield release, wheel


def able_host(facts: Facts, wheel: PublishedWheel, gpu: str) -> Host:
    """Return a machine that has all a wheel may need."""
    features = PROCESSORS.get(wheel.arch, PROCESSORS["x86_64"])
    host = Host(
        wheel.arch,
        facts.arches[wheel.arch].system,
        HostResources(8, 2**36),
        platform=HostPlatform(glibc="2.39", processor_features=features),
        gpus=HostGpus(driver="999.1"),
    )
    host = change_host(host, programs={"versions": {"macos": "26.0"}})
    return with_gpus(host, [gpu] if wheel.toolkit else [])


def test_no_wheel_fits_without_a_reading(shipped: Facts) -> None:
    facts = change_facts(shipped, official={"wheel_code": ()})
    count = 0
    for release, wheel in all_wheels(facts):
        for gpu in ("7.0", "8.6", "9.0"):
            count += 1
            verdict = published.judge(facts, release, wheel, able_host(facts, wheel, gpu))
            assert verdict.fit != "fits"
            assert "would do" not in str(replace(wheel, verdict=verdict))
            # Not even a verdict makes an unread wheel do.
            assert "would do" not in str(replace(wheel, verdict=wheel_fit.FITS))
    assert count > 1000


def test_a_wheel_whose_required_packages_were_not_read_cannot_be_told(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.14.1", RTX_3090)
    assert wheel.verdict.fit == "fits"
    facts = change_facts(shipped, official={"package_code": ()})
    wheel = wheel_for_gpus(facts, "wheel-3.12-cu130", "v2.14.1", RTX_3090)
    assert wheel.verdict.fit == "cannot tell"
    assert "the code of nvidia-" in wheel.verdict.reason


def test_a_reading_counts_more_than_upstreams_build_script(shipped: Facts) -> None:
    """The script is changed to list 3.5, which the wheel was read to have no code for."""
    release = find_release(shipped, "torch", "v1.3.1")
    official = replace(release.cuda.official["10.1"], capabilities={"x86_64": "3.5;8.6"})
    changed = change_groups(release, cuda={"official": {"10.1": official}})
    releases = tuple(changed if other is release else other for other in shipped.releases["torch"])
    facts = replace(shipped, releases={**shipped.releases, "torch": releases})
    wheels = [
        wheel for wheel in published.published_wheels(facts, changed, "x86_64") if wheel.toolkit
    ]
    assert wheels
    for wheel in wheels:
        assert wheel.announced == "3.5;8.6"
        verdict = published.judge(facts, changed, wheel, with_gpus(HOST, ["3.5"]))
        assert verdict.fit == "does not fit"


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
def test_the_tags_of_official_wheels_promise_a_glibc(
    tags: list[str], arch: str, glibc: str | None
) -> None:
    assert published.official_glibc(tags, arch) == glibc


def test_a_wheel_with_device_code_is_no_reading_of_a_build_without_cuda(shipped: Facts) -> None:
    # Wheels with device code were uploaded by mistake, and replaced by those of build 1.
    readings = wheel_fit.find_readings(shipped, "torchvision", "0.20.0", "aarch64", None)
    assert [reading.kernel_targets for reading in readings] == [""]


def test_the_driver_of_a_board_is_named_by_its_jetpack(shipped: Facts) -> None:
    jetpack_5 = LinuxDistribution("ubuntu", "20.04", ("debian",), l4t="35.4.1")
    board = change_host(ARM, platform={"distribution": jetpack_5, "glibc": "2.31"})
    wheel = wheel_for_gpus(shipped, "wheel-3.12-cu130", "v2.11.0", Gpu("Orin", "8.7"), host=board)
    assert wheel.verdict.fit == "does not fit"
    assert wheel.verdict.reason.startswith("the driver of ubuntu 20.04 (JetPack 5) does not run")


# Recorded wheels of extensions


def test_a_wheel_that_is_listed_for_this_torch_is_offered(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "xformers-3.12-cu128", "v2.10.0", H100)
    assert wheel.is_offered
    assert str(wheel).startswith("the wheel exists: `pip install xformers==0.0.35` (on PyPI, ")
    assert "which GPUs it has code for was not read" in str(wheel)
    assert "7.5;8.0+PTX" in str(wheel)


def test_a_wheel_that_only_a_workflow_names_is_not_offered(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "flash-3.12-cu128", "v2.8.0", H100)
    assert not wheel.is_offered
    assert str(wheel).startswith("upstream's workflow makes the wheel: ")
    assert "nobody read whether it is there" in str(wheel)


@pytest.mark.parametrize(
    ("name", "host", "gpu", "reason"),
    [
        ("flash-3.12-cu128", HOST, TESLA_T4, "no kernels for 7.5"),
        ("xformers-3.12-cu128", change_host(HOST, gpus={"driver": "450.80.02"}), H100, "driver"),
        ("xformers-3.12-cu128", change_host(HOST, platform={"glibc": "2.17"}), H100, "glibc 2.28"),
    ],
)
def test_a_recorded_wheel_is_judged_like_an_official_one(
    shipped: Facts, name: str, host: Host, gpu: Gpu, reason: str
) -> None:
    tag = "v2.10.0" if name.startswith("xformers") else "v2.8.0"
    wheel = wheel_for_gpus(shipped, name, tag, gpu, host=host)
    assert wheel.verdict.is_ruled_out
    assert reason in str(wheel)
    assert not wheel.is_offered


def test_a_wheel_without_compiled_code_is_named_with_its_note(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "gsplat-3.12-cu130", "v2.15.0", H100)
    assert not wheel.is_offered
    assert "a wheel without compiled code: `pip install gsplat==1.5.3`" in str(wheel)
    assert "when they are first used" in str(wheel)


def test_the_data_of_a_recorded_wheel_name_its_place(shipped: Facts) -> None:
    data = wheel_for_gpus(shipped, "xformers-3.12-cu128", "v2.10.0", H100).as_data()
    assert (data["place"], data["evidence"]) == ("PyPI", "listed")


def test_a_torch_that_no_release_goes_with_may_have_a_wheel(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.9.1")
    with refused("no-partner-release") as caught:
        cell_lookup.find_cell(shipped, "xformers-3.12-cu128", "x86_64", release)
    assert "`pip install xformers==0.0.33.post2`" in str(caught.value)
    with refused("no-partner-release") as caught:
        cell_lookup.find_cell(shipped, "codec-3.12-cu128", "x86_64", release)
    clause = "`pip install torchcodec==0.9.1` (on PyPI, for torch 2.9.1 without CUDA"
    assert clause in str(caught.value)


def test_an_installed_torch_must_be_the_official_one(shipped: Facts) -> None:
    wheel = wheel_for_gpus(shipped, "xformers-3.12-cu128", "v2.10.0", H100)
    installed = published.for_installed_torch(wheel, Path("/venv"))
    assert installed is not None
    assert installed.is_offered
    assert str(installed).endswith("that in /venv must be such a wheel")
    torch = wheel_for_gpus(shipped, "wheel-3.12-cu121", "v2.4.1", H100)
    assert published.for_installed_torch(torch, Path("/venv")) is None
