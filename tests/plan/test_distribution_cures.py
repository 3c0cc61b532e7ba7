"""What the doctor offers on each distribution for each thing that is missing: only what works there."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plan.test_doctor import examined
from tests.support.hosts import change_host
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
from torchmill.plan.doctor import compiler, cuda, interpreter, system, tools
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.options import parse_options

TABLE = Path(__file__).parents[1] / "golden" / "cures.txt"
RHEL = ("rhel", "centos", "fedora")
PLACES: Mapping[
    str, tuple[LinuxDistribution | None, str, str | None, str]
] = {  # manager, glibc, usual gcc
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
MISSING: Mapping[str, tuple[str, str, str]] = {  # cell, tag, subject of the finding
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
NAMES = {name for table in distributions.recorded_tables("packages") for name in table["names"]}
CHECKS = (
    interpreter.check_interpreter,
    compiler.check_compiler,
    tools.check_tools,
    cuda.check_cuda,
    system.check_packages,
    system.check_blas,
)
CELLS: dict[tuple[str, str], Cell] = {}
_OLD, _NEW = Compiler("gcc", "6.5.0"), Compiler("gcc", "19.1.0")


def make_host(place: str) -> Host:
    """Return a complete machine with a distribution's usual compiler and Python, and nothing else."""
    distribution, manager, glibc, gcc = PLACES[place]
    own = Compiler("gcc", gcc)
    return Host(
        "x86_64",
        "linux",
        HostResources(16, 2**36, free_disk=2**39),
        platform=HostPlatform(glibc=glibc, distribution=distribution),
        compilers=HostCompilers(default=own, by_command={"g++": own}),
        programs=HostPrograms(paths={"c++": "c++", "git": "/usr/bin/git", "sudo": "/usr/bin/sudo"}),
        packages=HostPackages(
            manager=manager or None, managers=(manager,) if manager else (), may_use_root=True
        ),
        toolkits=HostToolkits(homes={"12.1": "/usr/local/cuda-12.1"}),
        interpreters=HostInterpreters(paths={"3.12": "/usr/bin/python3.12"}),
        complete=True,
    )


def lacking(host: Host, thing: str) -> tuple[Host, tuple[str, ...]]:
    """Return a host without something, and the options of a build that needs it."""
    bare = change_host(
        host,
        compilers={"default": None, "by_command": {}},
        programs={"paths": {"sudo": "/usr/bin/sudo", "git": "/usr/bin/git"}},
    )
    old, new = (
        change_host(host, compilers={"default": one, "by_command": {"g++": one}})
        for one in (_OLD, _NEW)
    )
    cases: Mapping[str, tuple[Host, tuple[str, ...]]] = {
        "compiler": (bare, ()),
        "newer gcc": (old, ()),
        "older gcc": (new, ()),
        "git": (change_host(host, programs={"paths": {"c++": "c++", "sudo": "/usr/bin/sudo"}}), ()),
        "OpenBLAS": (host, ("--set", "BLAS=OpenBLAS")),
        "headers": (
            change_host(host, interpreters={"headless": {"3.12": "/usr/bin/python3.12"}}),
            (),
        ),
        "clang": (bare, ("--set", "CXX=clang++", "--set", "CC=clang")),
        "packages": (change_host(host, packages={"installed": dict.fromkeys(NAMES, "")}), ()),
        "toolkit": (change_host(host, toolkits={"homes": {}}), ()),
    }
    return cases[thing]


def find_cell(known: Facts, identifier: str, tag: str) -> Cell:
    """Return a cell of x86_64; the list of all builds, in which it is looked up, takes a quarter of a second."""
    if (identifier, tag) not in CELLS:
        release = find_release(known, "torch", tag)
        CELLS[identifier, tag] = cell_lookup.find_cell(known, identifier, "x86_64", release)
    return CELLS[identifier, tag]


def findings_on(known: Facts, place: str, thing: str, **changes: Any) -> Finding:
    host, arguments = lacking(change_host(make_host(place), **changes), thing)
    identifier, tag, subject = MISSING[thing]
    cell = find_cell(known, identifier, tag)
    plan = build_plan.compute_plan(known, cell, host, parse_options(arguments, "test"))
    context = CheckContext(known, cell, host, plan)
    findings = (one for check in CHECKS for one in check(context) if one.subject == subject)
    return next(findings, Finding(subject, "not checked", "", "ok"))


def ways(finding: Finding) -> Iterator[str]:
    yield from filter(None, (finding.cure, *finding.other_cures))


def test_the_table_of_cures_is_as_it_was_read(
    shipped: Facts, request: pytest.FixtureRequest
) -> None:
    lines = [
        "What `invoke doctor --all` offers on each distribution, if nothing but this is missing.",
        "",
    ]
    for place in PLACES:
        lines.append(place)
        for thing in MISSING:
            found = findings_on(shipped, place, thing)
            lines.append(f"  {thing}: {found.verdict}: {found.state}")
            lines += [f"      {way}" for way in ways(found)]
        lines.append("")
    text = "\n".join(lines)
    if request.config.getoption("--update-golden"):
        TABLE.write_text(text, encoding="utf-8")
    assert text == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("root", [True, False, None])
def test_a_command_is_one_that_the_machine_can_run(
    shipped: Facts, place: str, root: bool | None
) -> None:
    """It is of the machine's own package manager, needs no root that nobody has, and names packages that exist."""
    distribution, manager, _, _ = PLACES[place]
    release = distributions.find_release(distribution)
    programs = {command[0]: name for name, command in system_packages.INSTALL_COMMANDS.items()}
    for thing in MISSING:
        for way in filter(
            is_command, ways(findings_on(shipped, place, thing, packages={"may_use_root": root}))
        ):
            first = way.split(" && ")[0].removeprefix("sudo ").split()
            if first[:2] == ["invoke", "deps"]:
                assert release is not None, (thing, way)
                assert root is not False, (thing, way)
            elif first[0] in programs:
                assert (programs[first[0]], root is not False) == (manager, True), (thing, way)
                assert release is not None, (thing, way)
            else:
                assert first[0] in {"invoke", "uv", "nox"} or "=" in first[0], (thing, way)


@pytest.mark.parametrize("place", PLACES)
def test_without_root_a_way_that_needs_none_stands_first(shipped: Facts, place: str) -> None:
    for thing in MISSING:
        found = findings_on(shipped, place, thing, packages={"may_use_root": False})
        commands = [way for way in ways(found) if is_command(way)]
        assert found.cure in commands or not commands, thing
        assert not any(command.startswith(("sudo", "invoke deps")) for command in commands), thing


def test_every_cure_that_names_deps_brings_what_is_missing(shipped: Facts) -> None:
    """`invoke deps` installs what rules name: clang is not among that, and OpenBLAS only on Arm."""
    for place in PLACES:
        assert "invoke deps" not in findings_on(shipped, place, "clang").cure, place
        assert "invoke deps" not in findings_on(shipped, place, "OpenBLAS").cure, place
    assert findings_on(shipped, "Debian 12", "git").cure == "invoke deps --tag v2.4.1"


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
def test_what_was_wrong_once(shipped: Facts, place: str, thing: str, cure: str) -> None:
    assert findings_on(shipped, place, thing).cure.startswith(cure)


def test_a_container_is_offered_only_where_one_can_be_run(shipped: Facts) -> None:
    host = make_host("Fedora 42")
    without = findings_on(shipped, "Fedora 42", "older gcc")
    assert not any(way.startswith("in a container") for way in ways(without))
    found = findings_on(
        shipped,
        "Fedora 42",
        "older gcc",
        programs={"paths": {**host.programs.paths, "podman": "/usr/bin/podman"}},
    )
    assert "in a container: `invoke build wheel-3.12-cu121-x86_64 --tag v2.4.1`" in ways(found)
    assert not find_cures([found]).commands


def test_conda_is_offered_only_where_it_is(shipped: Facts) -> None:
    there = findings_on(shipped, "Fedora 42", "older gcc", packages={"managers": ("dnf", "conda")})
    assert any("conda create --yes --name gcc-" in way for way in ways(there))
    active = findings_on(
        shipped, "Fedora 42", "older gcc", packages={"manager": "conda", "may_use_root": False}
    )
    assert active.cure.startswith("conda install --yes --channel conda-forge gxx=")


def test_a_jetson_gets_what_its_own_jetpack_has(shipped: Facts) -> None:
    place = LinuxDistribution("ubuntu", "22.04", ("debian",), "36.4.3")
    board = change_host(
        make_host("Ubuntu 22.04"),
        platform={"distribution": place},
        toolkits={"homes": {}},
        arch="aarch64",
    )
    own = {one.subject: one for one in examined(shipped, board, "wheel-3.12-cu126", "v2.6.0")}
    assert (
        own["CUDA toolkit"].cure
        == "sudo apt-get install --yes --no-install-recommends cuda-toolkit-12-6"
    )
    other = {one.subject: one for one in examined(shipped, board, "wheel-3.12-cu124", "v2.6.0")}
    assert (
        other["CUDA toolkit"].cure == "build for CUDA 12.6, which is that of this board's JetPack"
    )
    older = change_host(
        board,
        platform={"distribution": replace(place, version="20.04", l4t="35.4.1")},
        toolkits={"libraries": {}},
    )
    cures = [
        way for one in examined(shipped, older, "wheel-3.10-cu118", "v2.1.0") for way in ways(one)
    ]
    assert not any("libcudnn9" in way for way in cures)


def test_every_recorded_fact_has_a_source_and_a_manager() -> None:
    for kind in ("release", "packages", "board"):
        assert all(table["source"].strip() for table in distributions.recorded_tables(kind))
    for table in distributions.recorded_tables("release"):
        assert table["manager"] in system_packages.INSTALL_COMMANDS
        for version in table["versions"]:
            found = distributions.find_release(LinuxDistribution(table["ids"][0], version))
            assert found is not None
            assert found.manager == table["manager"]


def test_a_toolset_is_known_only_from_the_minor_release_that_has_it() -> None:
    old, new = (
        distributions.find_release(LinuxDistribution("rocky", version))
        for version in ("9.2", "9.4")
    )
    assert old is not None
    assert new is not None
    assert (old.has_gcc(13), new.has_gcc(13), new.has_gcc(14)) == (False, True, False)


def test_a_compiler_of_an_archive_that_is_not_set_up_is_never_in_a_command(shipped: Facts) -> None:
    found = findings_on(shipped, "CentOS 7", "older gcc")
    assert "look for it as devtoolset-11-gcc-c++ in Software Collections" in found.cure
    assert not any("yum install" in way for way in ways(found))


def test_a_board_is_recorded_only_for_the_releases_that_were_read() -> None:
    def board(l4t: str) -> distributions.Board | None:
        place = LinuxDistribution("ubuntu", "18.04", ("debian",), l4t)
        return distributions.find_board(place)

    nano = board("32.7.1")
    assert nano is not None
    assert nano.cuda == "10.2"
    assert board("32.2.1") is None  # which has CUDA 10.0
    assert board("32.70") is None


def test_centos_7_calls_no_toolset_as_rhel_8_does(shipped: Facts) -> None:
    """Descriptions of such machines may name dnf, for which yum stands there."""
    cure = findings_on(shipped, "CentOS 7", "newer gcc", packages={"manager": "dnf"}).cure
    assert "devtoolset-1" in cure
    assert "gcc-toolset" not in cure
    assert findings_on(
        shipped, "CentOS 7", "newer gcc", packages={"may_use_root": False}
    ).cure.startswith("centos 7 is not known to have")
