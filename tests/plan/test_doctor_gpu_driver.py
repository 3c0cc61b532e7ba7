"""The doctor's findings on GPUs and their driver, and the code that a wheel has for them."""

import subprocess
from dataclasses import replace

import pytest

from tests.support.changed_facts import change_facts
from tests.support.hosts import change_host
from tests.support.machines import made_up_programs
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.release_lookup import find_release
from torchmill.host.host import Host, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import gpu_code, gpu_driver
from torchmill.plan.doctor.finding import CheckContext, Finding

LINUX = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
CAPABILITIES = (
    Capability("7.2", "Volta", ("Jetson Xavier NX",), tegra=True),
    Capability("8.6", "Ampere", ("GeForce RTX 3060", "GeForce RTX 3060 Ti")),
    Capability("8.9", "Ada", ("GeForce RTX 4060",)),
)
A100 = Gpu("NVIDIA A100-PCIE-40GB", "8.0")
RTX_3060 = Gpu("NVIDIA GeForce RTX 3060 Ti")
V100 = Gpu("Tesla V100-SXM2-16GB", "7.0")


@pytest.fixture
def gpus(small_facts: Facts) -> Facts:
    """Return the small facts with GPUs, and drivers for the toolkits."""
    drivers = {"10.2": "440.33", "11.8": "450.80.02", "12.4": "525.60.13"}
    toolkits = [
        replace(toolkit, driver=drivers[toolkit.version], driver_ptx="520.61.05")
        for toolkit in small_facts.toolkits
    ]
    facts = change_facts(small_facts, gpus={"capabilities": CAPABILITIES})
    return replace(facts, toolkits=tuple(toolkits))


def with_gpu(gpu: Gpu, driver: str | None = None, host: Host = LINUX) -> Host:
    """Return a machine with a GPU, whose driver is whole."""
    devices = {"devices": (gpu,), "driver": driver, "kernel_driver": driver}
    return change_host(host, gpus=devices)


def check(facts: Facts, host: Host, listed: str = "8.0;8.6") -> dict[str, Finding]:
    """Return the findings of a build with CUDA 11.8 of the small facts, by subject."""
    release = find_release(facts, "base", "v1.0.0")
    cell = cell_lookup.find_cell(facts, "wheel-3.10-cu118", "x86_64", release)
    plan = build_plan.compute_plan(facts, cell, host, Options(arch_list=listed))
    context = CheckContext(facts, cell, host, plan)
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
        ("7.0", "7.2", "warning"),  # a board runs no code for another capability
        # The toolkit makes no code for it, so its libraries may have none.
        ("7.0+PTX", "7.2", "warning"),
    ],
)
def test_code_runs_on_its_own_capability_and_later_minors(
    gpus: Facts, listed: str, gpu: str, verdict: str
) -> None:
    host = change_host(LINUX, gpus={"devices": (Gpu("some", gpu),), "kernel_driver": "535.104.05"})
    assert check(gpus, host, listed)["GPU"].verdict == verdict


def test_the_name_of_a_gpu_tells_its_capability(gpus: Facts) -> None:
    assert gpu_capability(gpus, RTX_3060) == CAPABILITIES[1]
    assert gpu_capability(gpus, Gpu("Tesla K80")) is None
    assert check(gpus, with_gpu(Gpu("Tesla K80")))["GPU"].verdict == "unknown"


def test_a_gpu_that_the_toolkit_makes_no_code_for_needs_ptx(gpus: Facts) -> None:
    cure = check(gpus, with_gpu(Gpu("new", "10.0")), "8.0;9.0")["GPU"].cure
    command = "`nox -s wheel-3.10-cu118 -- --arch-list '8.0;9.0+PTX'`"
    assert cure.startswith(f"{command}: the driver compiles PTX, but cuBLAS")
    assert check(gpus, with_gpu(Gpu("old", "3.0")), "8.0;9.0")["GPU"].cure == ""


def test_ptx_needs_a_driver_as_new_as_the_toolkit(gpus: Facts) -> None:
    finding = check(gpus, with_gpu(Gpu("some", "8.6"), "470.57.02"), "7.5+PTX")["GPU"]
    assert (finding.verdict, finding.cure) == ("warning", "install driver 520.61.05 or newer")


def test_an_older_toolkit_is_the_cure_for_an_old_driver(gpus: Facts) -> None:
    finding = check(gpus, with_gpu(V100, "440.33"))["GPU driver"]
    assert (finding.verdict, finding.cure) == ("warning", "nox -s wheel-3.10-cu102")


@pytest.mark.parametrize(
    ("gpu", "driver"),
    [
        (A100, "440.33"),  # 10.2 has no code for it
        (V100, "390.46"),  # 10.2 needs a newer driver, too
    ],
)
def test_an_old_driver_that_no_toolkit_serves_is_replaced(
    gpus: Facts, gpu: Gpu, driver: str
) -> None:
    finding = check(gpus, with_gpu(gpu, driver))["GPU driver"]
    assert finding.cure == "install driver 450.80.02 or newer"


def test_without_root_an_administrator_installs_the_driver(gpus: Facts) -> None:
    request = "ask whoever administers this machine for driver 450.80.02 or newer"
    without_root = change_host(LINUX, packages={"may_use_root": False})
    finding = check(gpus, with_gpu(A100, "440.33", without_root))["GPU driver"]
    assert finding.cure == request
    finding = check(gpus, with_gpu(V100, "440.33", without_root))["GPU driver"]
    assert finding.cure == "nox -s wheel-3.10-cu102"
    assert finding.other_cures[-1] == request


def test_windows_has_drivers_of_its_own(gpus: Facts) -> None:
    drivers = {"10.2": "441.22", "11.8": "452.39", "12.4": "528.33"}
    toolkits = [
        replace(toolkit, driver_windows=drivers[toolkit.version]) for toolkit in gpus.toolkits
    ]
    # On Linux this driver would be new enough for 11.8.
    devices = {"devices": (V100,), "driver": "451.22"}
    host = change_host(LINUX, gpus=devices, system="windows")
    findings = check(replace(gpus, toolkits=tuple(toolkits)), host, "6.0+PTX")
    assert findings["GPU driver"].cure == "nox -s wheel-3.10-cu102"
    # Which driver compiles PTX is recorded for Linux only.
    assert findings["GPU"].verdict == "ok"


def with_compat(
    gpu: Gpu, driver: str | None = "440.33", compat_driver: str | None = "520.61.05"
) -> Host:
    """Return a machine whose loader finds libraries of forward compatibility."""
    compat = {"compat_folders": ("/cuda/compat",), "compat_driver": compat_driver}
    return change_host(with_gpu(gpu, driver), gpus=compat)


@pytest.mark.parametrize(
    ("gpu", "driver", "compatibility"),
    [
        (A100, "ok", "ok"),
        (Gpu("NVIDIA RTX 6000 Ada Generation", "8.9"), "ok", "ok"),  # of workstations
        (RTX_3060, "warning", "warning"),
    ],
)
def test_forward_compatibility_is_not_for_gpus_of_consumers(
    gpus: Facts, gpu: Gpu, driver: str, compatibility: str
) -> None:
    findings = check(gpus, with_compat(gpu))
    assert findings["GPU driver"].verdict == driver
    assert findings["forward compatibility"].verdict == compatibility


@pytest.mark.parametrize(
    ("compat_driver", "verdict", "runs_here"),
    [
        ("450.80.02", "ok", True),
        ("440.64.00", "warning", False),  # of CUDA 10.2, and so no newer than the driver
        (None, "unknown", True),
    ],
)
def test_forward_compatibility_reaches_as_far_as_the_driver_of_its_libraries(
    gpus: Facts, compat_driver: str | None, verdict: str, runs_here: bool
) -> None:
    finding = check(gpus, with_compat(A100, compat_driver=compat_driver))["GPU driver"]
    assert (finding.verdict, finding.runs_here) == (verdict, runs_here)


@pytest.mark.parametrize(
    ("driver", "verdict", "cure"),
    [
        ("440.33.01", "warning", "install driver 450.80.02 or newer, but before 495"),
        ("470.256.02", "ok", ""),
        ("475.14", "ok", ""),  # Windows' numbers of the same branch
        ("535.104.05", "warning", "install driver 450.80.02 or newer, but before 495"),
    ],
)
def test_a_driver_may_be_too_new_for_a_gpu(
    shipped: Facts, driver: str, verdict: str, cure: str
) -> None:
    release = find_release(shipped, "torch", "v2.0.1")
    cell = cell_lookup.find_cell(shipped, "wheel-3.8-cu118", "x86_64", release)
    host = with_gpu(Gpu("Tesla K80"), driver)
    context = CheckContext(
        shipped, cell, host, build_plan.compute_plan(shipped, cell, host, Options())
    )
    (finding,) = (found for found in gpu_driver.check_driver(context))
    assert (finding.verdict, finding.cure) == (verdict, cure)
    assert finding.runs_here is (verdict == "ok")


def test_forward_compatibility_is_unknown_without_a_gpu(gpus: Facts) -> None:
    host = change_host(with_compat(A100), gpus={"devices": ()})
    assert check(gpus, host)["forward compatibility"].verdict == "unknown"


def test_a_driver_that_does_not_say_its_version_is_unknown(gpus: Facts) -> None:
    finding = check(gpus, with_compat(A100, None))["GPU driver"]
    assert (finding.verdict, finding.state) == ("unknown", "does not say its version")
    assert finding.because == ""


@pytest.mark.parametrize(
    ("library", "is_mismatch"), [("535.104.05", False), ("550.54.15", True), (None, False)]
)
def test_library_and_kernel_have_to_be_of_one_version(
    gpus: Facts, library: str | None, is_mismatch: bool
) -> None:
    host = change_host(with_gpu(RTX_3060, "535.104.05"), gpus={"driver": library})
    assert ("driver's halves" in check(gpus, host)) is is_mismatch


def test_a_machine_without_gpu_builds(gpus: Facts) -> None:
    assert check(gpus, LINUX)["GPU driver"].verdict == "ok"
    assert check(gpus, replace(LINUX, complete=False))["GPU driver"].verdict == "unknown"
    assert check(gpus, with_gpu(A100))["GPU driver"].verdict == "unknown"


@made_up_programs
def test_the_command_takes_the_folder_out_of_the_loaders_path() -> None:
    script = f"{gpu_driver.loader_path_without('/cuda/compat')}; echo $LD_LIBRARY_PATH"
    env = {"LD_LIBRARY_PATH": "/a:/cuda/compat:/b", "PATH": "/usr/bin:/bin"}
    shell = subprocess.run(
        ["sh", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert shell.stdout == "/a:/b\n"


def check_gpu(facts: Facts, names: str, host: Host, options: Options | None = None) -> Finding:
    """Return the finding on the only GPU: `names` are a cell and the tag of its torch."""
    identifier, tag = names.split()
    release = find_release(facts, "torch", tag)
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", release)
    plan = build_plan.compute_plan(facts, cell, host, options or Options())
    (finding,) = gpu_code.check_gpus(CheckContext(facts, cell, host, plan))
    return finding


def test_a_list_without_a_readable_entry_says_nothing_of_a_gpu(shipped: Facts) -> None:
    host = change_host(LINUX, gpus={"devices": (Gpu("NVIDIA B200", "10.0"),)})
    options = Options(settings={"TORCH_CUDA_ARCH_LIST": "fermions"})
    finding = check_gpu(shipped, "wheel-3.10-cu118 v2.4.1", host, options)
    assert (finding.verdict, finding.cure) == ("unknown", "")
    assert "'fermions'" in finding.because


@pytest.mark.parametrize(
    ("names", "capability", "first", "cure"),
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
        ("wheel-3.12-cu130 v2.10.0", "7.0", "", "nox -s wheel-3.12-cu129"),
        # The official build with CUDA 12.6 has code for 6.0, which runs on 6.1; that with 12.9 has none.
        ("wheel-3.12-cu130 v2.9.0", "6.1", "", "nox -s wheel-3.12-cu126"),
    ],
)
def test_builds_with_code_for_a_gpu_go_before_ptx(
    shipped: Facts, names: str, capability: str, first: str, cure: str
) -> None:
    finding = check_gpu(shipped, names, with_gpu(Gpu("some", capability), "580.65.06"))
    assert first in finding.because
    assert finding.cure.startswith(cure)
    with_ptx = [other for other in finding.other_cures if "+PTX" in other]
    assert all("may have no code" in other for other in with_ptx)
    if with_ptx:
        assert with_ptx == [finding.other_cures[-1]]


def test_an_untried_toolkit_with_code_for_a_gpu_is_offered(shipped: Facts) -> None:
    host = with_gpu(Gpu("some", "9.0"), "580.65.06")
    finding = check_gpu(shipped, "wheel-3.10-cu117 v1.13.1", host)
    untried = [cure for cure in finding.other_cures if "nobody is known to have built that" in cure]
    assert len(untried) == 1
    assert untried[0].startswith("`nox -s wheel-3.10-cu118` makes code")


@pytest.mark.parametrize(
    ("names", "capability", "listed", "cure_list"),
    [
        # The CMake of 2.5 cannot read 12.0.
        ("wheel-3.12-cu128 v2.5.1", "12.0", "8.0;9.0", "8.0;9.0+PTX"),
        ("wheel-3.12-cu124 v2.6.0", "12.0", "9.0a", "9.0+PTX;9.0a"),  # PTX of 9.0a is for 9.0 alone
        ("wheel-3.12-cu124 v2.6.0", "12.0", "8.0;9.0a+PTX", "8.0;9.0+PTX;9.0a+PTX"),
        ("flash-3.12-cu126 v2.9.1", "7.5", "8.0", None),  # it has no kernels for it
        ("wheel-3.12-cu124 v2.6.0", "8.6", "7.5", "8.6"),
    ],
)
def test_a_list_that_is_offered_for_a_gpu_can_be_built(
    shipped: Facts, names: str, capability: str, listed: str, cure_list: str | None
) -> None:
    host = with_gpu(Gpu("some", capability), "580.65.06")
    finding = check_gpu(shipped, names, host, Options(arch_list=listed))
    cures = [cure for cure in (finding.cure, *finding.other_cures) if "--arch-list" in cure]
    if cure_list is None:
        assert not cures
        return
    command = f"nox -s {names.split(maxsplit=1)[0]} -- --arch-list '{cure_list}'"
    assert all(command in cure for cure in cures)
    finding = check_gpu(shipped, names, host, Options(arch_list=cure_list))
    assert finding.runs_here
    # A list with PTX only is a warning: the libraries of an older toolkit may have no code.
    assert finding.verdict == "ok" or "may have no code for it" in finding.because
