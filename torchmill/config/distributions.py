"""Which packages exist in which release of which Linux distribution, as distributions.toml says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.version import Version

from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.versions import is_version
from torchmill.core.package_data import read_table_beside

# ID of distributions whose C library is musl: https://wiki.musl-libc.org/projects-using-musl.html
WITH_MUSL = frozenset({"alpine", "chimera", "postmarketos"})
# Managers that may be there in place of the usual one.
_ALTERNATIVES = {"dnf": ("dnf", "microdnf", "yum"), "yum": ("yum", "dnf")}


@dataclass(frozen=True, slots=True)
class DistributionRelease:
    """A recorded release of a distribution."""

    name: str  # "ubuntu 22.04", as messages name it
    id: str  # of the distribution whose packages it has: "ubuntu" for Linux Mint
    version: str  # as it is recorded: "22.04", "9"
    reported_version: str  # of the machine: "9.4"; "": it reports none
    manager: str
    gcc: str  # major version of the usual C++ compiler; "": not recorded, or the newest of the day
    # major version of a gcc that has a package of its own, "g++-11" -> the first minor release with
    # it, "" for all; None: not recorded
    compilers: Mapping[str, str] | None
    pythons: Mapping[str, str]  # "3.10" -> package with its headers
    # major version of another gcc -> its version, if that is not the last of its major version
    gcc_versions: Mapping[str, str] = field(default_factory=dict)
    # major version of a further gcc -> where to look for it, as a clause
    look_for: Mapping[str, str] = field(default_factory=dict)
    compiler_packages: tuple[str, ...] = ()  # (): the manager's in system_packages.toml
    compiler_command: str = ""
    suite: str = ""  # its archive, as toolkit_sources.toml names it: "debian/bookworm"
    isl: str = ""  # number of its libisl: "23"; "": not recorded
    nvcc: str = ""  # CUDA of its package nvidia-cuda-toolkit: "11.8"; "": it has none

    @property
    def archive(self) -> str:
        """Return the distribution whose keys are installed with it: "debian" for Raspbian."""
        return self.suite.partition("/")[0] or self.id

    def has_gcc(self, major: int) -> bool:
        """Tell whether its archives are known to have a package of a gcc of a major version.

        The usual gcc counts only if it has such a package as well.
        """
        since = (self.compilers or {}).get(str(major))
        if since is None:
            return False
        # A machine that reports only "9" is taken for the newest minor release.
        if not since or "." not in self.reported_version:
            return True
        return Version(self.reported_version) >= Version(since)


@dataclass(frozen=True, slots=True)
class RecordedPackage:
    """A package that a release is known to have."""

    name: str
    enable: str = ""  # an archive that has to be switched on for it
    elsewhere: str = ""  # an archive that has to be set up first


@dataclass(frozen=True, slots=True)
class Jetson:
    """Releases of Jetson Linux with one CUDA, and the packages of NVIDIA's archive for them."""

    jetpack: str  # releases of JetPack, as people write them: "6.1 to 6.2"
    ubuntu: str  # the release that it derives from: "22.04"
    python: str  # of that Ubuntu
    glibc: str
    capabilities: tuple[str, ...]  # of the boards that it is for
    cuda: str
    cudnn: str  # the probable name of its package
    toolkit: str = ""  # the package of its CUDA; "": its name is not recorded


@cache
def _tables() -> dict[str, Any]:
    """Return the tables of distributions.toml."""
    return read_table_beside(__file__, "distributions.toml")


def recorded_tables(kind: str) -> list[dict[str, Any]]:
    """Return the tables of distributions.toml of a kind: "release", "packages" or "board"."""
    tables: list[dict[str, Any]] = _tables()[kind]
    return tables


def find_recorded_release(distribution: LinuxDistribution | None) -> DistributionRelease | None:
    """Return the recorded release that a machine has; None if it is not recorded.

    A derived distribution, such as Linux Mint, has the release that it takes its packages from.
    None, too, without a distribution, as on macOS.
    """
    if distribution is None:
        return None
    name, version = _package_origin(distribution)
    for table in recorded_tables("release"):
        recorded_version = _recorded_version(table, version)
        if name not in table["ids"] or recorded_version is None:
            continue
        return DistributionRelease(
            name=str(distribution),
            id=name,
            version=recorded_version,
            reported_version=version if is_version(version) else "",
            manager=table["manager"],
            gcc=table["gcc"],
            compilers=table.get("compilers"),
            pythons=table["pythons"],
            gcc_versions=table.get("gcc_versions", {}),
            look_for=table.get("look_for", {}),
            compiler_packages=tuple(table.get("compiler_packages", ())),
            compiler_command=table.get("compiler_command", ""),
            suite=table.get("suite", ""),
            isl=table.get("isl", ""),
            nvcc=table.get("nvcc", ""),
        )
    return None


def _package_origin(distribution: LinuxDistribution) -> tuple[str, str]:
    """Return the ID and VERSION_ID of the distribution whose packages one has.

    Linux Mint 22 has those of Ubuntu 24.04, and most distributions have their own.
    """
    releases = _tables()["derived"].get(distribution.id, {})
    major, _, _ = distribution.version.partition(".")
    origin = releases.get(distribution.version) or releases.get(major)
    if not origin:
        return distribution.id, distribution.version
    name, version = origin
    return name, version


def _recorded_version(table: Mapping[str, Any], version: str) -> str | None:
    """Return the version that a table of a release has for a machine's: "9" for "9.4".

    None if the table is of other versions.
    """
    major, _, _ = version.partition(".")
    for recorded in (version, major):
        if recorded in table["versions"]:
            return recorded
    return None


def find_package(release: DistributionRelease, name: str) -> RecordedPackage | None:
    """Return how a release has a package; None if it is not known to have it."""
    for table in recorded_tables("packages"):
        is_of_release = release.id in table["ids"] and release.version in table["versions"]
        if is_of_release and name in table["names"]:
            return RecordedPackage(name, table.get("enable", ""), table.get("elsewhere", ""))
    return None


def jetsons() -> Iterator[tuple[tuple[str, ...], Jetson]]:
    """Yield the recorded releases of Jetson Linux, "36.4", and what each has, the oldest first."""
    for table in recorded_tables("board"):
        yield (
            tuple(table["l4t"]),
            Jetson(
                jetpack=table["jetpack"],
                ubuntu=table["ubuntu"],
                python=table["python"],
                glibc=table["glibc"],
                capabilities=tuple(table["capabilities"]),
                cuda=table["cuda"],
                cudnn=table["cudnn"],
                toolkit=table.get("toolkit", ""),
            ),
        )


def find_jetson(distribution: LinuxDistribution | None) -> Jetson | None:
    """Return what a Jetson has, by its distribution; None if its release is not recorded."""
    l4t = (distribution.l4t if distribution else None) or ""
    for releases, jetson in jetsons():
        # The dots make "36" match "36.4.3", and not "360".
        if any(f"{l4t}.".startswith(f"{release}.") for release in releases):
            return jetson
    return None


def newest_jetson(capability: str) -> Jetson | None:
    """Return what the newest Jetson Linux for boards of a capability has; None if none is recorded."""
    fitting = [jetson for _, jetson in jetsons() if capability in jetson.capabilities]
    return fitting[-1] if fitting else None


def has_one_gcc(distribution: LinuxDistribution | None) -> bool:
    """Tell whether no recorded release of a distribution has another gcc than its usual one.

    False for a distribution of which no release is recorded.
    """
    if distribution is None:
        return False
    compilers = [
        table.get("compilers")
        for table in recorded_tables("release")
        if distribution.id in table["ids"]
    ]
    return bool(compilers) and all(recorded == {} for recorded in compilers)


def usual_managers(distribution: LinuxDistribution | None) -> tuple[str, ...]:
    """Return the package managers that a distribution may have, the usual one first.

    A distribution that is not recorded has those of the first that it is like; () if they are
    unknown.
    """
    if distribution is None:
        return ()
    release = find_recorded_release(distribution)
    usual = release.manager if release else _manager_of_family(distribution)
    if not usual:
        return ()
    return _ALTERNATIVES.get(usual, (usual,))


def _manager_of_family(distribution: LinuxDistribution) -> str:
    """Return the manager of a distribution in any release, or of the nearest that it is like.

    "" if neither is recorded.
    """
    managers: dict[str, str] = {}
    for table in recorded_tables("release"):
        for name in table["ids"]:
            managers[name] = table["manager"]
    # Words of ID_LIKE that are the ID of no distribution.
    managers.update({"suse": "zypper", "opensuse": "zypper"})
    for name in (distribution.id, *distribution.like):
        if name in managers:
            return managers[name]
    return ""
