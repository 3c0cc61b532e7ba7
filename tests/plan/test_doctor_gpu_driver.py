"""Drivers and GPUs against the code that a wheel would hold, and why no GPU answers."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.hosts import change_host
from tests.support.machines import made_up_programs
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.host.host import Host, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import gpu_code, gpu_driver
from torchmill.plan.doctor.absent_gpu import absence_reason, explain_no_gpu
from torchmill.plan.doctor.finding import CheckContext, Finding

LINUX = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
GPUS = (
    Capability("7.2", "Volta", ("Jetson Xavier NX",), tegra=True),
    Capability("8.6", "Ampere", ("GeForce RTX 3060", "GeForce RTX 3060 Ti")),
    Capability("8.9", "Ada", ("GeForce RTX 4060",)),
)
A100, RTX = Gpu("NVIDIA A100-PCIE-40GB", "8.0"), Gpu("NVIDIA GeForce RTX 3060 Ti")
V100 = Gpu("Tesla V100-SXM2-16GB", "7.0")


@pytest.fixture
def gpus(known: Facts) -> Facts:
    """Return the small facts with GPUs, and drivers for the toolkits."""
    drivers = {"10.2": "440.33", "11.8": "450.80.02", "12.4": "525.60.13"}
    toolkits = (
        replace(one, driver=drivers[one.version], driver_ptx="520.61.05") for one in known.toolkits
    )
    return replace(known, capabilities=GPUS, toolkits=tuple(toolkits))


def found(facts: Facts, host: Host, capabilities: str = "8.0;8.6") -> Mapping[str, Finding]:
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cu118", "x86_64", find_release(facts, "base", "v1.0.0")
    )
    computed = build_plan.compute_plan(facts, cell, host, Options(arch_list=capabilities))
    context = CheckContext(facts, cell, host, computed)
    findings = [*gpu_driver.check_driver(context), *gpu_code.check_gpus(context)]
    return {finding.subject: finding for finding in findings}


@pytest.mark.parametrize(
    ("listed", "gpu", "verdict"),
    [
        ("8.0;8.6", "8.6", "ok"),
        ("8.0", "8.6", "ok"),  # code for an older one of the same major version
        ("8.6", "8.0", "warning"),
        ("7.5", "8.6", "warning"),
        ("7.5+PTX", "8.6", "ok"),
        ("9.0+PTX", "8.6", "warning"),
        ("7.0", "7.2", "warning"),  # a board takes no code but its own
        (
            "7.0+PTX",
            "7.2",
            "warning",
        ),  # the toolkit makes no code for it, so its libraries may have none
    ],
)
def test_code_runs_on_gpus_like_the_one_it_was_made_for(
    gpus: Facts, listed: str, gpu: str, verdict: str
) -> None:
    host = change_host(LINUX, gpus={"devices": (Gpu("some", gpu),), "kernel_driver": "535.104.05"})
    assert found(gpus, host, listed)["GPU"].verdict == verdict


def test_a_gpu_is_known_by_its_name(gpus: Facts) -> None:
    assert gpu_capability(gpus, RTX) == GPUS[1]
    assert gpu_capability(gpus, Gpu("Tesla K80")) is None
    assert (
        found(gpus, change_host(LINUX, gpus={"devices": (Gpu("Tesla K80"),)}))["GPU"].verdict
        == "unknown"
    )


def test_a_gpu_that_the_toolkit_knows_nothing_of_needs_ptx(gpus: Facts) -> None:
    newer = change_host(LINUX, gpus={"devices": (Gpu("new", "10.0"),)})
    cure = found(gpus, newer, "8.0;9.0")["GPU"].cure
    assert cure.startswith(
        "`nox -s wheel-3.10-cu118 -- --arch-list '8.0;9.0+PTX'`: the driver compiles PTX, but cuBLAS"
    )
    older = change_host(LINUX, gpus={"devices": (Gpu("old", "3.0"),)})
    assert found(gpus, older, "8.0;9.0")["GPU"].cure == ""


def test_ptx_needs_a_driver_as_new_as_the_toolkit(gpus: Facts) -> None:
    host = change_host(LINUX, gpus={"devices": (Gpu("some", "8.6"),), "kernel_driver": "470.57.02"})
    finding = found(gpus, host, "7.5+PTX")["GPU"]
    assert (finding.verdict, finding.cure) == ("warning", "install driver 520.61.05 or newer")


def test_an_old_driver_runs_what_an_older_toolkit_makes(gpus: Facts) -> None:
    host = change_host(
        LINUX, gpus={"devices": (V100,), "kernel_driver": "440.33", "driver": "440.33"}
    )
    finding = found(gpus, host)["GPU driver"]
    assert (finding.verdict, finding.cure) == ("warning", "nox -s wheel-3.10-cu102")
    unserved = change_host(host, gpus={"devices": (A100,)})
    assert found(gpus, unserved)["GPU driver"].cure == "install driver 450.80.02 or newer", (
        "10.2 has no code for it"
    )
    ancient = change_host(host, gpus={"kernel_driver": "390.46", "driver": "390.46"})
    assert found(gpus, ancient)["GPU driver"].cure == "install driver 450.80.02 or newer"


def test_who_cannot_install_a_driver_is_told_first_what_needs_none(gpus: Facts) -> None:
    host = change_host(
        LINUX,
        packages={"may_use_root": False},
        gpus={"devices": (A100,), "kernel_driver": "440.33", "driver": "440.33"},
    )
    assert (
        found(gpus, host)["GPU driver"].cure
        == "ask whoever administers this machine for driver 450.80.02 or newer"
    )
    served = found(gpus, change_host(host, gpus={"devices": (V100,)}))["GPU driver"]
    assert served.cure == "nox -s wheel-3.10-cu102"
    assert served.other_cures[-1].startswith("ask whoever administers this machine")


def test_windows_has_drivers_of_its_own(gpus: Facts) -> None:
    drivers = {"10.2": "441.22", "11.8": "452.39", "12.4": "528.33"}
    toolkits = tuple(replace(one, driver_windows=drivers[one.version]) for one in gpus.toolkits)
    host = change_host(
        LINUX, gpus={"devices": (V100,), "driver": "451.22"}, system="windows"
    )  # on Linux new enough for 11.8
    findings = found(replace(gpus, toolkits=toolkits), host, "6.0+PTX")
    assert findings["GPU driver"].cure == "nox -s wheel-3.10-cu102"
    assert findings["GPU"].verdict == "ok", "what is known of PTX is known of drivers of Linux"


def test_forward_compatibility_is_for_data_centres(gpus: Facts) -> None:
    host = change_host(
        LINUX,
        gpus={
            "devices": (A100,),
            "kernel_driver": "440.33",
            "driver": "440.33",
            "compat_folders": ("/cuda/compat",),
        },
    )
    centre = found(gpus, host)
    assert (centre["GPU driver"].verdict, centre["forward compatibility"].verdict) == ("ok", "ok")
    home = found(gpus, change_host(host, gpus={"devices": (RTX,)}))
    assert (home["GPU driver"].verdict, home["forward compatibility"].verdict) == (
        "warning",
        "warning",
    )
    bench = found(
        gpus, change_host(host, gpus={"devices": (Gpu("NVIDIA RTX 6000 Ada Generation", "8.9"),)})
    )
    assert bench["forward compatibility"].verdict == "ok", "it is for cards of workstations, too"
    silent = found(gpus, change_host(host, gpus={"kernel_driver": None, "driver": None}))
    assert (silent["GPU driver"].verdict, silent["GPU driver"].state) == (
        "unknown",
        "does not say its version",
    )
    assert (
        found(gpus, change_host(host, gpus={"devices": ()}))["forward compatibility"].verdict
        == "unknown"
    )


def test_halves_that_agree_are_not_mentioned(gpus: Facts) -> None:
    host = change_host(
        LINUX, gpus={"devices": (RTX,), "kernel_driver": "535.104.05", "driver": "535.104.05"}
    )
    assert "driver's halves" not in found(gpus, host)
    assert "driver's halves" in found(gpus, change_host(host, gpus={"driver": "550.54.15"}))
    assert "driver's halves" not in found(gpus, change_host(host, gpus={"driver": None}))


def test_a_machine_without_gpu_builds(gpus: Facts) -> None:
    assert found(gpus, LINUX)["GPU driver"].verdict == "ok"
    assert found(gpus, replace(LINUX, complete=False))["GPU driver"].verdict == "unknown"
    assert (
        found(gpus, change_host(LINUX, gpus={"devices": (A100,)}))["GPU driver"].verdict
        == "unknown"
    )


@made_up_programs
def test_the_path_is_mended_by_the_command() -> None:
    script = f"{gpu_driver.loader_path_without('/cuda/compat')}; echo $LD_LIBRARY_PATH"
    env = {"LD_LIBRARY_PATH": "/a:/cuda/compat:/b", "PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        ["sh", "-c", script], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert said == "/a:/b\n"


RTX, A100 = Gpu("NVIDIA GeForce RTX 3090", "8.6"), Gpu("NVIDIA A100-PCIE-40GB", "8.0")
HOME = change_host(
    LINUX, gpus={"devices": (RTX,), "driver": "535.104.05", "kernel_driver": "535.104.05"}
)
ERROR_804 = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
    "calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was "
    "attempted on non supported HW (__init__.py:229)"
)


def test_a_machine_without_a_gpu_is_not_asked() -> None:
    assert "no NVIDIA GPU" in (absence_reason(LINUX) or "")
    assert absence_reason(HOME) is None
    assert (
        absence_reason(change_host(LINUX, gpus={"driver": "535.104.05"})) is None
    )  # only asking tells


def test_a_container_without_the_drivers_library_is_told_so() -> None:
    assert "--gpus all" in (
        absence_reason(change_host(LINUX, gpus={"kernel_driver": "535.104.05", "devices": (RTX,)}))
        or ""
    )


def test_halves_of_two_versions_come_first(shipped: Facts) -> None:
    updated = change_host(HOME, gpus={"driver": "550.54.15", "compat_folders": ("/cuda/compat",)})
    told = explain_no_gpu(shipped, updated, "11.8", ERROR_804)
    assert told.startswith("RuntimeError: Unexpected error")
    assert told.endswith(
        "library 550.54.15, kernel 535.104.05 are of two versions: restart the machine: `sudo reboot`"
    )


def test_a_driver_older_than_the_toolkit_is_told_with_what_it_must_be(shipped: Facts) -> None:
    old = change_host(HOME, gpus={"driver": "440.33", "kernel_driver": "440.33"})
    told = explain_no_gpu(
        shipped, old, "11.8", "CUDA driver version is insufficient for CUDA runtime version"
    )
    assert (
        "driver 440.33 is older than 450.80.02, the oldest that runs what CUDA 11.8 makes" in told
    )
    with_compat = explain_no_gpu(
        shipped, change_host(old, gpus={"compat_folders": ("/cuda/compat",)}), "11.8", ERROR_804
    )
    assert "/cuda/compat makes up for it only on data-centre GPUs" in with_compat
    centre = change_host(old, gpus={"devices": (A100,), "compat_folders": ("/cuda/compat",)})
    assert "older" not in explain_no_gpu(shipped, centre, "11.8", "No CUDA GPUs are available")


def test_compatibility_libraries_on_a_consumers_gpu_are_error_804(shipped: Facts) -> None:
    told = explain_no_gpu(
        shipped, change_host(HOME, gpus={"compat_folders": ("/cuda/compat",)}), "11.8", ERROR_804
    )
    assert "the loader finds /cuda/compat, and NVIDIA GeForce RTX 3090 may not use them" in told
    assert "grep -vxF /cuda/compat" in told


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("RuntimeError: ... Error 802: system not yet initialized", "nvidia-fabricmanager"),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            "nvidia_uvm",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "--arch-list",
        ),
        ("RuntimeError: something never heard of", "`invoke doctor` shows"),
    ],
)
def test_words_are_explained_where_the_driver_looks_sound(
    shipped: Facts, said: str, cure: str
) -> None:
    assert cure in explain_no_gpu(shipped, HOME, "11.8", said)


def test_a_board_without_a_gpu_is_told_of_its_jetpack_and_of_no_graphics_driver(
    shipped: Facts,
) -> None:
    jetpack = LinuxDistribution("ubuntu", "20.04", (), "35.4.1")
    board = change_host(
        LINUX,
        platform={"distribution": jetpack},
        gpus={"devices": (Gpu("Orin", "8.7"),)},
        arch="aarch64",
    )
    told = explain_no_gpu(shipped, board, "12.6", "no GPU")
    assert "the driver of ubuntu 20.04 (JetPack 5) does not run what CUDA 12.6 makes" in told
    assert "JetPack" not in explain_no_gpu(shipped, board, "11.4", "no GPU")
    thor = change_host(
        board, platform={"distribution": replace(jetpack, l4t="38.2.0")}, gpus={"driver": "580.00"}
    )
    assert "580" not in explain_no_gpu(shipped, thor, "13.0", "no GPU")


def test_an_unknown_toolkit_is_no_reason(shipped: Facts) -> None:
    assert explain_no_gpu(shipped, HOME, None, "") == (
        "no GPU answers: `invoke doctor` shows what is known of the GPU and its driver"
    )


@pytest.mark.parametrize(
    ("named", "capability", "first", "cure"),
    [
        (
            "wheel-3.12-cu126 v2.6.0",
            "12.0",
            "CUDA 12.8, torch 2.7.0 (cu128)",
            "`invoke build --gpu 12.0`",
        ),
        (
            "wheel-3.10-cu118 v2.0.1",
            "12.0",
            "CUDA 12.8, torch 2.7.0 (cu128)",
            "`invoke build --gpu 12.0`",
        ),
        (
            "wheel-3.8-cu102 v1.8.0",
            "8.6",
            "CUDA 11.1, torch 1.8.0 (cu111)",
            "nox -s wheel-3.8-cu111",
        ),
        (
            "wheel-3.10-cu117 v1.13.1",
            "9.0",
            "CUDA 11.8, torch 2.0.0 (cu118)",
            "`invoke build --gpu 9.0`",
        ),
        ("wheel-3.12-cu130 v2.10.0", "7.0", "", "nox -s wheel-3.12-cu128"),
    ],
)
def test_what_has_code_for_a_gpu_goes_before_ptx(
    shipped: Facts, named: str, capability: str, first: str, cure: str
) -> None:
    name, tag = named.split()
    host = change_host(
        LINUX,
        gpus={"devices": (Gpu("some", capability),), "kernel_driver": "", "driver": "580.65.06"},
    )
    cell = cell_lookup.find_cell(shipped, name, "x86_64", find_release(shipped, "torch", tag))
    computed = build_plan.compute_plan(shipped, cell, host, Options())
    every = gpu_code.check_gpus(CheckContext(shipped, cell, host, computed))
    (told,) = [one for one in every if one.subject == "GPU"]
    assert first in told.because
    assert told.cure.startswith(cure)
    untried = [way for way in told.other_cures if "nobody is known to have built that" in way]
    assert [
        way.startswith("`nox -s wheel-3.10-cu118` makes code")
        for way in untried
        if "1.13.1" in named
    ] == ([True] if "1.13.1" in named else [])
    ptx = [way for way in told.other_cures if "+PTX" in way]
    assert ptx == list(told.other_cures[-1:]) or not ptx, "the last"
    assert all("may have no code" in way for way in ptx)


@pytest.mark.parametrize(
    ("named", "capability", "listed", "advised"),
    [
        (
            "wheel-3.12-cu128 v2.5.1",
            "12.0",
            "8.0;9.0",
            "8.0;9.0+PTX",
        ),  # the CMake of 2.5 cannot read 12.0
        ("wheel-3.12-cu124 v2.6.0", "12.0", "9.0a", "9.0+PTX;9.0a"),  # PTX of 9.0a is for 9.0 alone
        ("wheel-3.12-cu124 v2.6.0", "12.0", "8.0;9.0a+PTX", "8.0;9.0+PTX;9.0a+PTX"),
        ("flash-3.12-cu126 v2.9.1", "7.5", "8.0", None),  # it has no kernels for it
        ("wheel-3.12-cu124 v2.6.0", "8.6", "7.5", "8.6"),
    ],
)
def test_what_is_advised_for_a_gpu_is_a_list_that_can_be_built(
    shipped: Facts, named: str, capability: str, listed: str, advised: str | None
) -> None:
    name, tag = named.split()
    host = change_host(LINUX, gpus={"devices": (Gpu("some", capability),), "driver": "580.65.06"})
    cell = cell_lookup.find_cell(shipped, name, "x86_64", find_release(shipped, "torch", tag))
    computed = build_plan.compute_plan(shipped, cell, host, Options(arch_list=listed))
    every = gpu_code.check_gpus(CheckContext(shipped, cell, host, computed))
    (told,) = [one for one in every if one.subject == "GPU"]
    ways = [way for way in (told.cure, *told.other_cures) if "--arch-list" in way]
    assert [f"nox -s {name} -- --arch-list '{advised}'" in way for way in ways] == [True] * bool(
        advised
    )
    if advised:
        again = build_plan.compute_plan(shipped, cell, host, Options(arch_list=advised))
        every = gpu_code.check_gpus(CheckContext(shipped, cell, host, again))
        (told,) = [finding for finding in every if finding.subject == "GPU"]
        assert told.runs_here
        # of PTX alone it is said that the libraries of an older toolkit may have no code
        assert told.verdict == "ok" or "may have no code for it" in told.because
