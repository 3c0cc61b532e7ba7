"""The cures on each distribution for each thing that may be missing: only cures that work there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.examinations import examine
from tests.support.hosts import change_host
from tests.support.plans import options_of
from torchmill.config import distributions
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostPrograms,
    HostResources,
    HostToolkits,
)
from torchmill.plan import build_plan, cell_lookup, system_packages
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import blas, compiler, cuda, interpreter, packages, tools
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import CheckContext, Finding

TABLE = Path(__file__).parents[1] / "golden" / "cures.txt"
RHEL = ("rhel", "centos", "fedora")
# Name -> distribution, package manager, glibc, usual gcc.
PLACES: Mapping[str, tuple[LinuxDistribution | None, str, str | None, str]] = {
    "Debian 11": (LinuxDistribution("debian", "11"), "apt", "2.31", "10.2.1"),
    "Debian 12": (LinuxDistribution("debian", "12"), "apt", "2.36", "12.2.0"),
    "Debian 13": (LinuxDistribution("debian", "13"), "apt", "2.41", "14.2.0"),
    "Debian sid": (LinuxDistribution("debian"), "apt", "2.42", "16.1.0"),
    "Ubuntu 18.04": (LinuxDistribution("ubuntu", "18.04", ("debian",)), "apt", "2.27", "7.5.0"),
    "Ubuntu 20.04": (LinuxDistribution("ubuntu", "20.04", ("debian",)), "apt", "2.31", "9.4.0"),
    "Ubuntu 22.04": (LinuxDistribution("ubuntu", "22.04", ("debian",)), "apt", "2.35", "11.4.0"),
    "Ubuntu 24.04": (LinuxDistribution("ubuntu", "24.04", ("debian",)), "apt", "2.39", "13.3.0"),
    "Ubuntu 26.04": (LinuxDistribution("ubuntu", "26.04", ("debian",)), "apt", "2.43", "15.2.0"),
    "Mint 22": (
        LinuxDistribution("linuxmint", "22.1", ("ubuntu", "debian")),
        "apt",
        "2.39",
        "13.3.0",
    ),
    "Kali": (LinuxDistribution("kali", "2026.3", ("debian",)), "apt", "2.41", "15.2.0"),
    "CentOS 7": (LinuxDistribution("centos", "7", ("rhel", "fedora")), "yum", "2.17", "4.8.5"),
    "RHEL 6": (LinuxDistribution("rhel", "6.10"), "yum", "2.12", "4.4.7"),
    "RHEL 8": (LinuxDistribution("rhel", "8.10", ("fedora",)), "dnf", "2.28", "8.5.0"),
    "Rocky 9": (LinuxDistribution("rocky", "9.4", RHEL), "dnf", "2.34", "11.4.1"),
    "Alma 10": (LinuxDistribution("almalinux", "10.0", RHEL), "dnf", "2.39", "14.2.1"),
    "UBI 9 minimal": (LinuxDistribution("rhel", "9.6", ("fedora",)), "microdnf", "2.34", "11.5.0"),
    "Fedora 37": (LinuxDistribution("fedora", "37"), "dnf", "2.36", "12.2.1"),  # not recorded
    "Fedora 42": (LinuxDistribution("fedora", "42"), "dnf", "2.41", "15.1.1"),
    "Amazon 2": (
        LinuxDistribution("amzn", "2", ("centos", "rhel", "fedora")),
        "yum",
        "2.26",
        "7.3.1",
    ),
    "Amazon 2023": (LinuxDistribution("amzn", "2023", ("fedora",)), "dnf", "2.34", "11.5.0"),
    "Leap 15.6": (
        LinuxDistribution("opensuse-leap", "15.6", ("suse", "opensuse")),
        "zypper",
        "2.38",
        "7.5.0",
    ),
    "Arch": (LinuxDistribution("arch"), "pacman", "2.42", "15.2.1"),
    "Alpine 3.20": (LinuxDistribution("alpine", "3.20.3"), "apk", None, "13.2.1"),
    "not described": (None, "", "2.35", "11.4.0"),
}
# Missing thing -> a cell that needs it, the tag of its release, and the subject of the finding.
MISSING: Mapping[str, tuple[str, str, str]] = {
    "compiler": ("wheel-3.12-cpu", "v2.4.1", "C++ compiler"),
    "newer gcc": ("wheel-3.12-cpu", "v2.4.1", "C++ compiler"),
    "older gcc": ("wheel-3.12-cu121", "v2.4.1", "host compiler of nvcc"),
    "git": ("wheel-3.12-cpu", "v2.4.1", "git"),
    "OpenBLAS": ("wheel-3.12-cpu", "v2.4.1", "BLAS"),
    "headers": ("wheel-3.12-cpu", "v2.4.1", "interpreter"),
    "clang": ("wheel-3.12-cpu", "v2.4.1", "C++ compiler"),
    "packages": ("wheel-3.12-cpu", "v2.4.1", "system packages"),
    "toolkit": ("wheel-3.12-cu121", "v2.4.1", "CUDA toolkit"),
}
PACKAGE_NAMES: set[str] = set()
for _table in distributions.recorded_tables("packages"):
    PACKAGE_NAMES.update(_table["names"])
CHECKS = (
    interpreter.check_interpreter,
    compiler.check_compiler,
    tools.check_tools,
    cuda.check_cuda,
    packages.check_packages,
    blas.check_blas,
)
CELLS: dict[tuple[str, str], Cell] = {}  # by identifier and tag
OLD_GCC = Compiler("gcc", "6.5.0")
NEW_GCC = Compiler("gcc", "19.1.0")


def make_host(place: str) -> Host:
    """Return a complete machine with a distribution's usual compiler and Python, no more."""
    distribution, manager, glibc, version = PLACES[place]
    gcc = Compiler("gcc", version)
    return Host(
        "x86_64",
        "linux",
        HostResources(16, 2**36, free_disk=2**39),
        platform=HostPlatform(glibc=glibc, distribution=distribution),
        compilers=HostCompilers(default=gcc, by_command={"g++": gcc}),
        programs=HostPrograms(paths={"c++": "c++", "git": "/usr/bin/git", "sudo": "/usr/bin/sudo"}),
        packages=HostPackages(
            manager=manager or None, managers=(manager,) if manager else (), may_use_root=True
        ),
        toolkits=HostToolkits(homes={"12.1": "/usr/local/cuda-12.1"}),
        interpreters=HostInterpreters(paths={"3.12": "/usr/bin/python3.12"}),
        complete=True,
    )


def with_gcc(host: Host, gcc: Compiler) -> Host:
    return change_host(host, compilers={"default": gcc, "by_command": {"g++": gcc}})


def without(host: Host, thing: str) -> tuple[Host, tuple[str, ...]]:
    """Return a host that lacks something, and the options of a build that needs it."""
    bare = change_host(
        host,
        compilers={"default": None, "by_command": {}},
        programs={"paths": {"sudo": "/usr/bin/sudo", "git": "/usr/bin/git"}},
    )
    without_git = {"c++": "c++", "sudo": "/usr/bin/sudo"}
    without_headers = {"3.12": "/usr/bin/python3.12"}
    not_installed = dict.fromkeys(PACKAGE_NAMES, "")
    cases: Mapping[str, tuple[Host, tuple[str, ...]]] = {
        "compiler": (bare, ()),
        "clang": (bare, ("--set", "CXX=clang++", "--set", "CC=clang")),
        "newer gcc": (with_gcc(host, OLD_GCC), ()),
        "older gcc": (with_gcc(host, NEW_GCC), ()),
        "git": (change_host(host, programs={"paths": without_git}), ()),
        "OpenBLAS": (host, ("--set", "BLAS=OpenBLAS")),
        "headers": (change_host(host, interpreters={"without_headers": without_headers}), ()),
        "packages": (change_host(host, packages={"installed": not_installed}), ()),
        "toolkit": (change_host(host, toolkits={"homes": {}}), ()),
    }
    return cases[thing]


def find_cell(facts: Facts, identifier: str, tag: str) -> Cell:
    """Return a cell of x86_64. It is cached: to find one takes a quarter of a second."""
    if (identifier, tag) not in CELLS:
        release = find_release(facts, "torch", tag)
        CELLS[identifier, tag] = cell_lookup.find_cell(facts, identifier, "x86_64", release)
    return CELLS[identifier, tag]


def finding_on(facts: Facts, place: str, thing: str, **changes: Any) -> Finding:
    """Return the finding on a missing thing; `changes` are made to the machine."""
    host, arguments = without(change_host(make_host(place), **changes), thing)
    identifier, tag, subject = MISSING[thing]
    cell = find_cell(facts, identifier, tag)
    plan = build_plan.compute_plan(facts, cell, host, options_of(*arguments))
    context = CheckContext(facts, cell, host, plan)
    for check in CHECKS:
        for finding in check(context):
            if finding.subject == subject:
                return finding
    return Finding(subject, "not checked", "", "ok")


def cures_of(finding: Finding) -> list[str]:
    return [cure for cure in (finding.cure, *finding.other_cures) if cure]


def test_the_table_of_cures_is_as_recorded(shipped: Facts, request: pytest.FixtureRequest) -> None:
    lines = [
        "What `invoke doctor --all` offers on each distribution, if nothing but this is missing.",
        "",
    ]
    for place in PLACES:
        lines.append(place)
        for thing in MISSING:
            finding = finding_on(shipped, place, thing)
            lines.append(f"  {thing}: {finding.verdict}: {finding.state}")
            lines += [f"      {cure}" for cure in cures_of(finding)]
        lines.append("")
    text = "\n".join(lines)
    if request.config.getoption("--update-golden"):
        TABLE.write_text(text, encoding="utf-8")
    assert text == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("root", [True, False, None])
def test_the_machine_can_run_each_command(shipped: Facts, place: str, root: bool | None) -> None:
    """It is of the machine's own package manager, for packages that exist, and for its user."""
    distribution, manager, _, _ = PLACES[place]
    release = distributions.find_recorded_release(distribution)
    managers = {command[0]: name for name, command in system_packages.INSTALL_COMMANDS.items()}
    for thing in MISSING:
        finding = finding_on(shipped, place, thing, packages={"may_use_root": root})
        for cure in cures_of(finding):
            if not is_command(cure):
                continue
            words = cure.split(" && ")[0].removeprefix("sudo ").split()
            if words[:2] == ["invoke", "deps"]:
                assert release is not None, (thing, cure)
                assert root is not False, (thing, cure)
            elif words[0] in managers:
                assert managers[words[0]] == manager, (thing, cure)
                assert root is not False, (thing, cure)
                assert release is not None, (thing, cure)
            else:
                is_assignment = "=" in words[0]
                assert is_assignment or words[0] in {"invoke", "uv", "nox"}, (thing, cure)


@pytest.mark.parametrize("place", PLACES)
def test_commands_need_no_root_if_there_is_none(shipped: Facts, place: str) -> None:
    for thing in MISSING:
        finding = finding_on(shipped, place, thing, packages={"may_use_root": False})
        commands = [cure for cure in cures_of(finding) if is_command(cure)]
        assert finding.cure in commands or not commands, thing
        assert not any(command.startswith(("sudo", "invoke deps")) for command in commands), thing


def test_invoke_deps_is_offered_only_for_packages_that_it_installs(shipped: Facts) -> None:
    """It installs the packages of rules: clang is none of these, and OpenBLAS is only on Arm."""
    for place in PLACES:
        assert "invoke deps" not in finding_on(shipped, place, "clang").cure, place
        assert "invoke deps" not in finding_on(shipped, place, "OpenBLAS").cure, place
    assert finding_on(shipped, "Debian 12", "git").cure == "invoke deps --tag v2.4.1"


@pytest.mark.parametrize(
    ("place", "thing", "cure"),
    [
        (
            "Fedora 37",
            "older gcc",
            "fedora 37 is not known to have a gcc that fits, such as gcc 12: with conda, ",
        ),
        (
            "Fedora 42",
            "older gcc",
            "fedora 42 is not known to have a gcc that fits, such as gcc 12: with conda, ",
        ),
        (
            "Leap 15.6",
            "older gcc",
            "look for it as gcc12-c++ among the packages of opensuse-leap 15.6",
        ),
        ("RHEL 6", "newer gcc", "look for it as devtoolset-"),
        ("Debian 12", "clang", "sudo apt-get install --yes --no-install-recommends clang"),
        ("Rocky 9", "OpenBLAS", "sudo dnf install --assumeyes --enablerepo=crb openblas-devel"),
        ("RHEL 8", "OpenBLAS", "openblas-devel comes from CodeReady Linux Builder"),
        ("Arch", "OpenBLAS", "sudo pacman --sync --needed --noconfirm openblas"),
        (
            "Ubuntu 18.04",
            "OpenBLAS",
            "sudo apt-get install --yes --no-install-recommends libopenblas-dev",
        ),
        ("Kali", "compiler", "look for it as build-essential among the packages of kali 2026.3"),
        ("Amazon 2023", "headers", "uv python install 3.12"),
        ("Alpine 3.20", "toolkit", "build on a system with glibc"),
        ("RHEL 8", "compiler", "sudo dnf install --assumeyes gcc-toolset-"),
    ],
)
def test_cures_that_were_wrong_once(shipped: Facts, place: str, thing: str, cure: str) -> None:
    assert finding_on(shipped, place, thing).cure.startswith(cure)


def test_a_container_is_offered_only_with_an_engine(shipped: Facts) -> None:
    finding = finding_on(shipped, "Fedora 42", "older gcc")
    assert not any(cure.startswith("in a container") for cure in cures_of(finding))
    paths = {**make_host("Fedora 42").programs.paths, "podman": "/usr/bin/podman"}
    finding = finding_on(shipped, "Fedora 42", "older gcc", programs={"paths": paths})
    cure = "in a container: `invoke build wheel-3.12-cu121-x86_64 --tag v2.4.1`"
    assert cure in cures_of(finding)
    assert not find_cures([finding]).commands


def test_conda_is_offered_only_if_it_is_there(shipped: Facts) -> None:
    managers = ("dnf", "conda")
    installed = finding_on(shipped, "Fedora 42", "older gcc", packages={"managers": managers})
    assert any("conda create --yes --name gcc-" in cure for cure in cures_of(installed))
    packages = {"manager": "conda", "may_use_root": False}
    active = finding_on(shipped, "Fedora 42", "older gcc", packages=packages)
    assert active.cure.startswith("conda install --yes --channel conda-forge gxx=")


def test_a_jetson_gets_the_packages_of_its_own_jetpack(shipped: Facts) -> None:
    distribution = LinuxDistribution("ubuntu", "22.04", ("debian",), "36.4.3")
    board = change_host(
        make_host("Ubuntu 22.04"),
        platform={"distribution": distribution},
        toolkits={"homes": {}},
        arch="aarch64",
    )

    def toolkit_cure(identifier: str) -> str:
        findings = examine(shipped, board, identifier, "v2.6.0")
        return next(finding.cure for finding in findings if finding.subject == "CUDA toolkit")

    install = "sudo apt-get install --yes --no-install-recommends cuda-toolkit-12-6"
    assert toolkit_cure("wheel-3.12-cu126") == install
    other = "build for CUDA 12.6, which is that of this board's JetPack"
    assert toolkit_cure("wheel-3.12-cu124") == other


def test_an_old_jetpack_gets_no_package_of_a_new_one(shipped: Facts) -> None:
    distribution = LinuxDistribution("ubuntu", "20.04", ("debian",), "35.4.1")
    board = change_host(
        make_host("Ubuntu 22.04"),
        platform={"distribution": distribution},
        toolkits={"homes": {}, "libraries": {}},
        arch="aarch64",
    )
    for finding in examine(shipped, board, "wheel-3.10-cu118", "v2.1.0"):
        assert not any("libcudnn9" in cure for cure in cures_of(finding))


def test_every_record_has_a_source_and_a_known_manager() -> None:
    for kind in ("release", "packages", "board"):
        assert all(table["source"].strip() for table in distributions.recorded_tables(kind))
    for table in distributions.recorded_tables("release"):
        assert table["manager"] in system_packages.INSTALL_COMMANDS
        for version in table["versions"]:
            distribution = LinuxDistribution(table["ids"][0], version)
            release = distributions.find_recorded_release(distribution)
            assert release is not None
            assert release.manager == table["manager"]


def test_a_toolset_is_known_from_the_minor_release_that_first_had_it() -> None:
    older = distributions.find_recorded_release(LinuxDistribution("rocky", "9.2"))
    newer = distributions.find_recorded_release(LinuxDistribution("rocky", "9.4"))
    assert older is not None
    assert newer is not None
    assert not older.has_gcc(13)
    assert newer.has_gcc(13)
    assert not newer.has_gcc(14)


def test_no_command_needs_an_archive_that_is_not_set_up(shipped: Facts) -> None:
    finding = finding_on(shipped, "CentOS 7", "older gcc")
    assert "look for it as devtoolset-11-gcc-c++ in Software Collections" in finding.cure
    assert not any("yum install" in cure for cure in cures_of(finding))


def test_a_board_is_known_only_by_the_releases_that_are_recorded() -> None:
    def find_board(l4t: str) -> distributions.Jetson | None:
        distribution = LinuxDistribution("ubuntu", "18.04", ("debian",), l4t)
        return distributions.find_jetson(distribution)

    nano = find_board("32.7.1")
    assert nano is not None
    assert nano.cuda == "10.2"
    assert find_board("32.2.1") is None  # it has CUDA 10.0
    assert find_board("32.70") is None


def test_toolsets_of_centos_7_are_not_named_as_those_of_rhel_8(shipped: Facts) -> None:
    """Descriptions of such machines may name dnf, which CentOS 7 has under the name of yum."""
    cure = finding_on(shipped, "CentOS 7", "newer gcc", packages={"manager": "dnf"}).cure
    assert "devtoolset-1" in cure
    assert "gcc-toolset" not in cure


def test_who_is_not_root_is_sent_to_no_archive_on_centos_7(shipped: Facts) -> None:
    finding = finding_on(shipped, "CentOS 7", "newer gcc", packages={"may_use_root": False})
    assert finding.cure.startswith("centos 7 is not known to have")
