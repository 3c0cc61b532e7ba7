"""Which packages exist in which release of which Linux distribution; pure functions of distributions.toml."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.package_data import read_table_beside

# ID of distributions whose C library is musl: https://wiki.musl-libc.org/projects-using-musl.html
WITH_MUSL = frozenset({"alpine", "chimera", "postmarketos"})


@dataclass(frozen=True, slots=True)
class DistributionRelease:
    """What is recorded of a release of a distribution."""

    name: str  # "ubuntu 22.04", as messages name it
    id: str  # of the distribution whose packages it has: "ubuntu" for Linux Mint
    version: str  # as it is recorded: "22.04", "9"
    minor: str  # as the machine says it: "9.4"
    manager: str
    gcc: str  # major version of the usual C++ compiler; "": not recorded, or the newest of the day
    # major version of other gccs -> minor release that first had it, "" for all; None: not recorded
    compilers: Mapping[str, str] | None
    pythons: Mapping[str, str]  # "3.10" -> package with its headers
    # major version of a further gcc -> where to look for it, as a clause
    look_for: Mapping[str, str] = field(default_factory=dict)
    compiler_packages: tuple[str, ...] = ()  # (): as system_packages.toml has it for the manager
    compiler_command: str = ""
    suite: str = ""  # its archive, as toolkit_sources.toml names it: "debian/bookworm"
    isl: str = ""  # of the libisl that it has; "": not recorded

    @property
    def archive(self) -> str:
        """Return whose archive it has the keys of: "debian" for Raspbian."""
        return self.suite.partition("/")[0] or self.id

    def has_gcc(self, major: int) -> bool:
        """Tell whether a gcc of a major version is known to be in its archives, beside the usual one."""
        since = (self.compilers or {}).get(str(major))
        return since is not None and (
            not since or "." not in self.minor or Version(self.minor) >= Version(since)
        )


@dataclass(frozen=True, slots=True)
class RecordedPackage:
    """A package that a release is known to have."""

    name: str
    enable: str = ""  # an archive that has to be switched on for it
    elsewhere: str = ""  # an archive that has to be set up first


@dataclass(frozen=True, slots=True)
class Board:
    """What NVIDIA's archive has for a release of Jetson Linux."""

    cuda: str
    cudnn: str  # what its package is probably called
    toolkit: str = ""  # the package of its CUDA; "": its name is not recorded


@cache
def _tables() -> dict[str, Any]:
    return read_table_beside(__file__, "distributions.toml")


def recorded_tables(kind: str) -> list[dict[str, Any]]:
    """Return the tables of distributions.toml of a kind: "release", "packages" or "board"."""
    tables: list[dict[str, Any]] = _tables()[kind]
    return tables


def find_release(distribution: LinuxDistribution | None) -> DistributionRelease | None:
    """Return what is recorded of the release of a distribution; None for one that is not recorded."""
    if distribution is None:
        return None
    name, version = _origin(distribution)
    for table in _tables()["release"]:
        if name not in table["ids"] or (recorded := _recorded_version(table, version)) is None:
            continue
        known = {key: table[key] for key in ("manager", "gcc", "pythons")}
        known |= {
            key: table[key]
            for key in ("look_for", "compiler_command", "suite", "isl")
            if key in table
        }
        known["compilers"] = table.get("compilers")
        packages = tuple(table.get("compiler_packages", ()))
        minor = version if _is_version(version) else ""
        return DistributionRelease(
            str(distribution), name, recorded, minor, compiler_packages=packages, **known
        )
    return None


def _origin(distribution: LinuxDistribution) -> tuple[str, str]:
    """Return the ID and VERSION_ID of the distribution whose packages one has."""
    releases = _tables()["derived"].get(distribution.id, {})
    known = releases.get(distribution.version) or releases.get(
        distribution.version.partition(".")[0]
    )
    return (known[0], known[1]) if known else (distribution.id, distribution.version)


def _recorded_version(table: Mapping[str, Any], version: str) -> str | None:
    beginnings = (version, version.partition(".")[0])
    return next((one for one in beginnings if one in table["versions"]), None)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def find_package(release: DistributionRelease, name: str) -> RecordedPackage | None:
    """Return how a release has a package; None if it is not known to have it."""
    for table in _tables()["packages"]:
        here = release.id in table["ids"] and release.version in table["versions"]
        if here and name in table["names"]:
            return RecordedPackage(name, table.get("enable", ""), table.get("elsewhere", ""))
    return None


def find_board(distribution: LinuxDistribution | None) -> Board | None:
    """Return what NVIDIA's archive has for a Jetson, by its distribution; None if it has nothing recorded."""
    l4t = (distribution.l4t if distribution else None) or ""
    for table in _tables()["board"]:
        if any(f"{l4t}.".startswith(f"{release}.") for release in table["l4t"]):
            return Board(table["cuda"], table["cudnn"], table.get("toolkit", ""))
    return None


def has_one_gcc(distribution: LinuxDistribution | None) -> bool:
    """Tell whether no recorded release of a distribution has another gcc than its own."""
    compilers = [
        table.get("compilers")
        for table in _tables()["release"]
        if distribution and distribution.id in table["ids"]
    ]
    return bool(compilers) and all(recorded == {} for recorded in compilers)


def usual_managers(distribution: LinuxDistribution | None) -> tuple[str, ...]:
    """Return the package managers that a distribution may have, the usual one first; none if that is not known.

    A distribution that is not recorded has those of the first that it is like.
    """
    if distribution is None:
        return ()
    managers = dict(_managers_by_id())
    names = (distribution.id, *distribution.like)
    release = find_release(distribution)
    usual = (
        release.manager
        if release
        else next((managers[name] for name in names if name in managers), "")
    )
    return {"dnf": ("dnf", "microdnf", "yum"), "yum": ("yum", "dnf"), "": ()}.get(usual, (usual,))


def _managers_by_id() -> Iterator[tuple[str, str]]:
    for table in _tables()["release"]:
        for name in table["ids"]:
            yield name, table["manager"]
    yield from (
        ("suse", "zypper"),
        ("opensuse", "zypper"),
    )  # words of ID_LIKE that are the ID of none
